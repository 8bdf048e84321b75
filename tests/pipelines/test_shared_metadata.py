"""Tests that a store which pipelines share, SQLite's or MariaDB's, stays consistent if runs are killed at random times.

The campaign `shared-metadata` runs only this test.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipelines.mariadb import needs_mariadb, running_mariadb

pytestmark = [pytest.mark.tfx, pytest.mark.slow]


def campaign(folder, pipelines, runs, seed, **environment):
    here = Path(__file__).parent
    program = "import killed_runs; killed_runs.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, (folder, pipelines, runs, seed))],
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parents[1]}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(report):
    sys.stdout.write(json.dumps(report) + "\n")
    assert report["killed"] >= 20
    assert report["live"] >= 4 * 3
    assert {key: report[key] for key in ("failed", "half", "mixed", "stale")} == {
        "failed": 0, "half": 0, "mixed": 0, "stale": 0,
    }  # fmt: skip


def test_killed_runs_of_4_pipelines_leave_nothing_half_or_open(tmp_path):
    check(campaign(tmp_path, 4, 25, 1))


@needs_mariadb
def test_the_same_on_a_server_that_all_four_share(tmp_path):
    with running_mariadb(tmp_path / "server") as server:
        began = time.monotonic()
        report = campaign(tmp_path, 4, 25, 1, SHARED_STORE=server.address, METADATA_PASSWORD=server.password)
        sys.stdout.write(f"{time.monotonic() - began:.0f} s\n")
        check(report)
