"""Kills a process that saves, or fills its disk: no saved state is lost, no restart fails, no files are left over."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    library = tmp_path_factory.mktemp("interpose") / "interpose.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, HERE / "interpose.c", "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def campaign(name, trials, seed, folder, environment):
    command = [sys.executable, "-m", "tests.faults.saving", name, str(trials), str(seed), str(folder)]
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    sys.stdout.write(line + "\n")
    figures = json.loads(line)
    assert (figures["lost"], figures["failed_restarts"], figures["orphan_bytes"]) == (0, 0, 0), line
    return figures


SHORT_AND_LONG = [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.slow)]


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_kill_at_every_call_of_a_save(tmp_path, preloaded, long):
    figures = campaign("calls", 10**6 if long else 16, 1, tmp_path, preloaded)
    assert {"fwrite", "rename", "fsync", "close", "fclose"} <= set(figures["kinds"])
    assert figures["killed"] == (figures["calls"] if long else 16)
    assert figures["swept_bytes"] > 0


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_kill_at_a_random_moment(tmp_path, preloaded, long):
    trials = 200 if long else 10
    figures = campaign("random", trials, 1, tmp_path, preloaded)
    assert figures["killed"] == figures["trials"] - 1 >= trials  # the last one only restores
    assert figures["swept_bytes"] > 0


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_disk_full_at_every_write_of_a_save(tmp_path, preloaded, long):
    figures = campaign("full", 10**6 if long else 8, 1, tmp_path, preloaded)
    assert figures["unnoticed"] == []
    assert figures["trials"] == (figures["writes"] if long else 8) + 1
