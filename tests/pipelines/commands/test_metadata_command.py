"""Tests the exit codes and the output of the `metadata` commands."""

import os
from pathlib import Path

import ml_metadata
import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.commands import cli
from pipelines.local.content import content_json

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
    artifact.custom_properties["content"].string_value = content_json(artifact.uri)
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


def test_backup_and_what_is_restored_are_readable_by_whom_the_metadata_was(work_dir):
    place, store = f"--set=work_dir={work_dir}", work_dir / "metadata.sqlite"
    store.chmod(0o640)
    assert code("backup", TAXI, place, "--out", work_dir / "copy") == 0
    assert code("restore", TAXI, work_dir / "copy", place) == 0
    assert [path.stat().st_mode & 0o777 for path in (work_dir / "copy", store)] == [0o640, 0o640]


def test_damaged_metadata_is_restored_from_a_backup(work_dir, capsys):
    place, store = f"--set=work_dir={work_dir}", work_dir / "metadata.sqlite"
    assert code("backup", TAXI, place, "--out", work_dir / "copy") == 0
    store.write_bytes(b"damaged")
    assert code("check", TAXI, place) == 1
    assert "is damaged" in capsys.readouterr().err
    assert code("restore", TAXI, work_dir / "copy", place) == 0
    assert f"the replaced file is now {store}.replaced" in capsys.readouterr().out
    assert code("check", TAXI, place) == 0


def test_metadata_that_is_not_there_is_one_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "silence", lambda: None)
    for arguments in (("check", TAXI), ("backup", TAXI), ("restore", TAXI, tmp_path / "absent")):
        assert code(*arguments, f"--set=work_dir={tmp_path}") == 1
        assert "does not exist or is empty" in capsys.readouterr().err
