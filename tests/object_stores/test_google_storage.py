"""Pushes, checkpoints and a whole run at gs:// addresses: TensorFlow's own client before fake-gcs-server.

The campaign `object-stores` installs the server, and runs all of it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.object_stores.google_storage import needs_google_storage, running_google_storage

pytestmark = [pytest.mark.slow, needs_google_storage]
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    with running_google_storage(folder) as store:
        yield store


def run(store, module, *arguments):
    """Run a module of the tests in a process that reaches the store; return its last line."""
    command = [sys.executable, "-m", f"tests.object_stores.{module}", *map(str, arguments)]
    environment = {**os.environ, **store.environment, "GCS_STAT_CACHE_MAX_AGE": "0"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(3600)
def test_no_reader_sees_half_a_version_however_pushes_are_killed(store, tmp_path):
    report = json.loads(run(store, "killed_pushes", "gs://bucket", 40, 1, tmp_path))
    sys.stdout.write(f"{report}\n")
    assert report["killed"] >= 15
    assert report["whole"] >= 40
    assert (report["failed"], report["wrong"], report["left_wrong"]) == (0, [], [])
    assert len(report["left"]) == report["left_whole"] == 3


@pytest.mark.tfx
@pytest.mark.timeout(3600)
def test_demo_runs_with_root_versions_and_checkpoints_in_store(store, tmp_path):
    report = json.loads(run(store, "demo_run", "gs://bucket", tmp_path))
    assert (report["whole"], report["wrong"], len(report["checkpoints"])) == (1, [], 1)


@pytest.mark.tfx
@pytest.mark.timeout(3600)
def test_run_killed_in_checkpoint_upload_ends_with_same_tables(store, tmp_path):
    report = json.loads(run(store, "killed_runs", "gs://bucket", 4, 1, tmp_path))
    sys.stdout.write(f"{report}\n")
    assert min(report["killed"].values()) >= 1
    assert (report["wrong"], report["equal"]) == ([], True)
    assert report["files"] >= 1
    assert any(report["resumed_at"])
