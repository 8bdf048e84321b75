"""Kills a process that pushes: no incomplete version is ever seen, no files are left over, no record is wrong."""

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


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    subprocess.run(
        [sys.executable, "-m", "tests.faults.fuzzing", str(place), "export"], cwd=HERE.parents[1], check=True
    )
    return str(place / "model")


def campaign(name, trials, folder, environment, *model):
    command = [sys.executable, "-m", "tests.faults.pushing", name, str(trials), "1", str(folder), *model]
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    sys.stdout.write(line + "\n")
    figures = json.loads(line)
    assert (figures["incomplete"], figures["wrong_records"]) == ([], []), line
    assert (figures["leftovers"], figures["failed_pushes"]) == (0, 0), line
    assert figures["killed"] == figures["trials"], line
    assert figures["records"] >= figures["trials"]
    assert figures["polls"] > 0 < figures["seen"]
    assert figures["died_with_leftovers"] > 0
    return figures


SHORT_AND_LONG = [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.slow)]


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_push_killed_at_every_call(tmp_path, preloaded, long):
    figures = campaign("calls", 10**6 if long else 20, tmp_path, preloaded)
    assert {"write", "rename", "fsync", "close", "mkdir"} <= set(figures["kinds"])


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_push_killed_at_a_random_moment(tmp_path, preloaded, long):
    assert campaign("random", 200 if long else 10, tmp_path, preloaded)["killed"] >= (200 if long else 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "trials"), [("calls", 10**6), ("random", 30)])
def test_push_of_a_saved_model_killed(tmp_path, preloaded, saved_model, name, trials):
    """A watcher loads the versions and compares their answers."""
    figures = campaign(name, trials, tmp_path, preloaded, saved_model)
    assert figures["wrong"] == []
    assert figures["loaded"] >= 30
