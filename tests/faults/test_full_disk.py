"""Runs a pipeline on a nearly full disk: there is one error, and the same run succeeds once there is room."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from embedding_core.errors import StorageError
from tests.pipelines.test_damaged_inputs import Pipeline

pytestmark = pytest.mark.tfx

SIZE = 2 << 20
SHORT = (0, 4096, 253952, 327680)
LONG = tuple(range(0, 400_000, 8192))
SHORT_AND_LONG = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk, free):
    """Write a file that leaves `free` bytes on the disk."""
    facts = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        file.write(bytes(max(0, facts.f_bavail * facts.f_frsize - free)))


def run(pipeline, again):
    """Run the pipeline as the command does; return the states of its nodes, or the error."""
    from pipelines.local.storage_errors import storage_errors_as_one
    from pipelines.local.work_dir import ready_metadata

    config = SimpleNamespace(work_dir=str(pipeline.folder), metadata_path=f"{pipeline.folder}/metadata.sqlite")
    try:
        with storage_errors_as_one(config):
            ready_metadata(config)
            return pipeline.run(again)
    except StorageError as error:
        return error


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("levels", SHORT_AND_LONG)
@pytest.mark.parametrize("has_run", [False, True])
def test_full_disk_is_one_error_and_loses_nothing(disk, levels, has_run):
    failed = 0
    for level in levels:
        folder = disk / f"at-{level}"
        folder.mkdir()
        pipeline = Pipeline(folder)
        if has_run:
            assert set(run(pipeline, "").values()) == {"executed"}
        fill(disk, level)
        found = run(pipeline, "again")
        failed += isinstance(found, StorageError)
        assert "\n" not in str(found)
        (disk / "filler").unlink()
        done = run(pipeline, "again")
        assert not isinstance(done, StorageError), done
        assert (pipeline.newest("Third") / "text").read_text() == "as everagain"
        subprocess.run(["rm", "-r", folder], check=True)
    sys.stdout.write(f'{{"campaign": "full disk", "levels": {len(levels)}, "failed": {failed}}}\n')
    assert failed >= 2
