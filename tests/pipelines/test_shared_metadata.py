"""Tests that a SQLite store which pipelines share stays consistent if their runs are killed at random times.

`make shared-metadata` runs only this test.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tfx, pytest.mark.slow]


def campaign(folder, pipelines, runs, seed):
    here = Path(__file__).parent
    program = "import killed_runs; killed_runs.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, (folder, pipelines, runs, seed))],
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("seed", [1])
def test_four_pipelines_of_25_killed_runs_leave_nothing_half_and_nothing_open(tmp_path, seed):
    report = campaign(tmp_path, 4, 25, seed)
    assert report["killed"] >= 20
    assert report["live"] >= 4 * 3
    assert {key: report[key] for key in ("failed", "half", "mixed", "stale")} == {
        "failed": 0, "half": 0, "mixed": 0, "stale": 0,
    }  # fmt: skip
