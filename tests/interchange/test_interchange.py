"""Tests that the oldest and the newest supported TensorFlow read each other's files.

The environment variable NEWEST is the path of a Python with the newest version; the campaign `interchange` sets it.
Without it, only one test runs: the installed version reads `written_by_newest`. The newest version wrote that folder
with `exchange.py write`; the folder keeps only the files of PARTS.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE_TESTS = HERE.parent / "embedding_core"
PARTS = ("stopped", "embeddings")
NEWEST = os.environ.get("NEWEST", "")
FOLDERS = (HERE.parents[1], CORE_TESTS / "serving")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)),
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
needs_newest = pytest.mark.skipif(
    not os.access(NEWEST, os.X_OK),
    reason=f"NEWEST is {NEWEST!r}: no Python of an environment with the newest TensorFlow",
)


def exchange(python, *arguments):
    command = [python, HERE / "exchange.py", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)


def test_what_the_newest_version_wrote_is_read(monkeypatch):
    for folder in FOLDERS[1:]:
        monkeypatch.syspath_prepend(folder)
    from tests.interchange.exchange import read

    read(HERE / "written_by_newest", *PARTS)


@needs_newest
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("writer", "reader"), [(sys.executable, NEWEST), (NEWEST, sys.executable)], ids=["up", "down"])
def test_what_one_version_writes_the_other_reads(writer, reader, tmp_path):
    exchange(writer, "write", tmp_path / "files")
    exchange(reader, "read", tmp_path / "files")
