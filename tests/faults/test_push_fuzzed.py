"""Sends a mutated row with a valid one: the valid row gets its usual answer or an error, and no process dies."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.fuzzing import export

ROOT = Path(__file__).parents[2]
SHORT_AND_LONG = [pytest.param(200, id="short"), pytest.param(20_000, id="long", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzzed")
    export(place)
    return place


def outcomes(folder, signature, count):
    """Count the letters that `fuzzing` prints; `X` is a mutant that killed its process. A new process continues."""
    found = ""
    while len(found) < count:
        numbers = (str(len(found)), str(count - len(found)))
        command = [sys.executable, "-m", "tests.faults.fuzzing", str(folder), signature, *numbers]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        found += done.stdout
        if done.returncode:
            assert done.returncode < 0, done.stderr[-2000:]
            found += "X"
    counts = dict(collections.Counter(found))
    sys.stdout.write(json.dumps({"campaign": "mutated examples", "signature": signature, "n": count, **counts}) + "\n")
    return counts


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", SHORT_AND_LONG)
@pytest.mark.parametrize("signature", ["serving_default", "raw"])
def test_push_survives_mutated_examples(folder, signature, count):
    counts = outcomes(folder, signature, count)
    assert "W" not in counts
    assert "X" not in counts
    assert counts["s"] > count / 40
    assert "e" not in counts or signature == "serving_default"
