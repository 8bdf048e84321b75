"""Tests the exit codes and the output of `metadata check`."""

import os
from pathlib import Path

import ml_metadata
import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.commands import cli
from pipelines.local.content import note_content

TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"


def code(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["metadata", *map(str, arguments)])
    return ended.value.code


@pytest.fixture
def work_dir(tmp_path, monkeypatch):
    """Make a work_dir whose metadata store contains one artifact."""
    monkeypatch.setattr(cli, "silence", lambda: None)
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(tmp_path / "metadata.sqlite")
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    store = ml_metadata.MetadataStore(connection)
    (tmp_path / "thing").write_text("whole")
    kind = store.put_artifact_type(mlmd.ArtifactType(name="Thing"))
    artifact = mlmd.Artifact(type_id=kind, uri=str(tmp_path / "thing"), state=mlmd.Artifact.LIVE)
    note_content(artifact)
    (artifact_id,) = store.put_artifacts([artifact])
    context = mlmd.Context(type_id=store.put_context_type(mlmd.ContextType(name="pipeline")), name="taxi")
    (context_id,) = store.put_contexts([context])
    store.put_attributions_and_associations([mlmd.Attribution(artifact_id=artifact_id, context_id=context_id)], [])
    return tmp_path


def flip(path):
    before = path.stat()
    path.write_text("whale")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_check_reads_every_artifact(work_dir, capsys):
    arguments = ("check", TAXI, f"--set=work_dir={work_dir}")
    assert code(*arguments) == 0
    assert "1 artifacts are as they were recorded" in capsys.readouterr().out
    flip(work_dir / "thing")
    assert code(*arguments) == 1
    assert f"error: '{work_dir}/thing' is damaged or gone" in capsys.readouterr().err


def test_check_names_damaged_metadata(work_dir, capsys):
    (work_dir / "metadata.sqlite").write_bytes(b"damaged")
    assert code("check", TAXI, f"--set=work_dir={work_dir}") == 1
    assert "is damaged" in capsys.readouterr().err


def test_metadata_that_is_not_there_is_one_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "silence", lambda: None)
    assert code("check", TAXI, f"--set=work_dir={tmp_path}") == 1
    assert "does not exist or is empty" in capsys.readouterr().err
