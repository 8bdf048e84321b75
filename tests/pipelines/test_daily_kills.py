"""Tests that two daily runs, and `follow`, killed at random times and repeated, give the tables of undisturbed runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.tfx, pytest.mark.timeout(14400)]

CAMPAIGN = Path(__file__).with_name("daily_kills.py")


def days(folder, kills, seed, command="run"):
    command = [sys.executable, str(CAMPAIGN), str(folder), str(kills), str(seed), command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", ["run", "follow"])
def test_killed_days_end_with_the_tables_of_undisturbed_ones(tmp_path, command):
    """The environment variables KILLS and SEED change the number and times of kills.

    A day that `follow` has finished cannot be killed any more, so it may be killed less often.
    """
    kills = int(os.environ.get("KILLS", "40"))
    undisturbed = days(tmp_path / "undisturbed", 0, 0)
    killed = days(tmp_path / "killed", kills, int(os.environ.get("SEED", "1")), command)
    sys.stdout.write(json.dumps({"undisturbed": undisturbed, "killed": killed}) + "\n")
    assert killed["killed"] == kills or (command == "follow" and killed["killed"] >= kills / 4)
    assert killed["rows"] == undisturbed["rows"]
    assert killed["tokens"] == undisturbed["tokens"]
    assert killed["spans"] == undisturbed["spans"] == [[2], [1]]
