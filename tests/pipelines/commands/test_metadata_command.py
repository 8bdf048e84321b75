"""Tests the exit codes and the output of `metadata check`."""

import os
from pathlib import Path

import pytest

from pipelines.commands import cli
from pipelines.local.metadata_repair import note_content
from tests.pipelines.commands.exit_code import exit_code
from tests.support.metadata import put_artifact, sqlite_store

TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"


@pytest.fixture(autouse=True)
def _loud(monkeypatch):
    monkeypatch.setattr(cli, "silence", lambda: None)


@pytest.fixture
def work_dir(tmp_path):
    """Make a work_dir whose metadata store contains one artifact."""
    store = sqlite_store(tmp_path / "metadata.sqlite")
    (tmp_path / "thing").write_text("whole")
    artifact = put_artifact(store, "Thing", tmp_path / "thing", "taxi")
    note_content(artifact)
    store.put_artifacts([artifact])
    return tmp_path


def flip(path):
    before = path.stat()
    path.write_text("whale")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_check_reads_every_artifact(work_dir, capsys):
    arguments = ("metadata", "check", TAXI, f"--set=work_dir={work_dir}")
    assert exit_code(*arguments) == 0
    assert "1 artifacts are as they were recorded" in capsys.readouterr().out
    flip(work_dir / "thing")
    assert exit_code(*arguments) == 1
    assert f"error: '{work_dir}/thing' is damaged or gone" in capsys.readouterr().err


def test_folder_of_the_user_that_was_replaced_is_not_damaged(work_dir, capsys):
    store = sqlite_store(work_dir / "metadata.sqlite")
    (artifact,) = store.get_artifacts()
    artifact.custom_properties["is_external"].int_value = 1
    store.put_artifacts([artifact])
    flip(work_dir / "thing")
    assert exit_code("metadata", "check", TAXI, f"--set=work_dir={work_dir}") == 0
    assert "thing' changed since it was imported" in capsys.readouterr().err


def test_check_names_damaged_metadata(work_dir, capsys):
    (work_dir / "metadata.sqlite").write_bytes(b"damaged")
    assert exit_code("metadata", "check", TAXI, f"--set=work_dir={work_dir}") == 1
    assert "is damaged" in capsys.readouterr().err


def test_metadata_that_is_not_there_is_one_error(tmp_path, capsys):
    assert exit_code("metadata", "check", TAXI, f"--set=work_dir={tmp_path}") == 1
    assert "does not exist or is empty" in capsys.readouterr().err
