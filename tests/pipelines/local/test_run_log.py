"""Tests that the output of libraries and child processes during a run goes to a log.

Each test starts a separate process, since the file descriptors of a process are redirected.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.light

START = """
import logging, os, subprocess, sys
from pipelines.console.quiet import silence
from pipelines.local.run_display import captured
silence()
print("before")
with captured(".") as screen:
    print("progress", file=screen, flush=True)
    if "noise" in sys.argv:
        print("python prints")
        os.write(2, b"a line of C++\\n")
        logging.getLogger("absl").error("Execution 7 failed.")
        subprocess.run([sys.executable, "-c", "raise SystemExit('a child dies')"])
    if "fail" in sys.argv:
        raise RuntimeError("deep inside Beam")
print("after")
"""


def _run(folder, *words):
    return subprocess.run(
        [sys.executable, "-c", START, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def _logs(folder):
    return sorted((folder / "logs").glob("*.log"))


def test_noise_of_others_goes_to_the_log_and_not_to_the_screen(tmp_path):
    done = _run(tmp_path, "noise")
    assert (done.stdout, done.stderr) == ("before\nafter\n", "progress\n")
    (log,) = _logs(tmp_path)
    assert log.stat().st_mode & 0o777 == 0o600
    for words in ("python prints", "a line of C++", "Execution 7 failed.", "a child dies"):
        assert words in log.read_text()


def test_quiet_run_leaves_no_log(tmp_path):
    assert _run(tmp_path).stderr == "progress\n"
    assert _logs(tmp_path) == []


def test_error_is_raised_and_its_traceback_is_in_the_log(tmp_path):
    done = _run(tmp_path, "fail")
    assert done.returncode == 1
    assert "RuntimeError: deep inside Beam" in _logs(tmp_path)[0].read_text()
    assert "RuntimeError: deep inside Beam" in done.stderr, "the streams are those of before again"


def test_old_logs_are_removed(tmp_path):
    (tmp_path / "logs").mkdir()
    for number in range(30):
        (tmp_path / "logs" / f"20000101-{number:06d}.log").write_text("x")
    _run(tmp_path, "noise")
    assert len(_logs(tmp_path)) == 20
    assert "Execution 7" in _logs(tmp_path)[-1].read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "logs").mkdir(mode=0o500)
    assert "no log can be written" in _run(tmp_path).stderr


def test_place_of_the_logs_that_is_a_file_is_one_error(tmp_path):
    (tmp_path / "logs").write_text("")
    assert "no log can be written to './logs' (File exists)" in _run(tmp_path).stderr
