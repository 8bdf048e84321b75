"""Kills what writes deltas, and what copies them: no reader ever sees a part of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    library = tmp_path_factory.mktemp("interpose") / "interpose.so"
    source = ROOT / "tests" / "faults" / "interpose.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


@pytest.mark.parametrize("campaign", ["deltas", "rollback"])
def test_killed_at_every_call_that_changes_files(tmp_path, preloaded, campaign):
    """A delta that is written, and a version that is copied with its deltas, are seen whole or not at all."""
    command = [sys.executable, "-m", "tests.deltas.killing", campaign, str(10**6), "1", str(tmp_path)]
    done = subprocess.run(command, env=preloaded, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    sys.stdout.write(line + "\n")
    figures = json.loads(line)
    assert figures["killed"] == figures["trials"] > figures["visible"] > 0, line
    assert [figures[name] for name in ("half", "lost", "leftovers", "failed")] == [0, 0, 0, 0], line
    assert {"write", "rename", "fsync", "mkdir"} <= set(figures["kinds"])
