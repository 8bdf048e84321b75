"""Tests that the output of libraries and child processes during a run goes to a log.

Each test starts a separate process, since the file descriptors of a process are redirected.
"""

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
print("after")
"""


def _run(folder, *words):
    return subprocess.run(
        [sys.executable, "-c", START, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def _logs(folder):
    return sorted((folder / "logs").glob("*.log"))


def test_noise_goes_to_the_log_and_old_logs_are_removed(tmp_path):
    (tmp_path / "logs").mkdir()
    for number in range(30):
        (tmp_path / "logs" / f"20000101-{number:06d}.log").write_text("x")
    done = _run(tmp_path, "noise")
    assert (done.stdout, done.stderr) == ("before\nafter\n", "progress\n")
    *old, log = _logs(tmp_path)
    assert len(old) == 19
    assert log.stat().st_mode & 0o777 == 0o600
    for words in ("python prints", "a line of C++", "Execution 7 failed.", "a child dies"):
        assert words in log.read_text()


def test_logs_with_later_names_do_not_remove_the_log_of_this_run(tmp_path):
    """A clock may have been put back."""
    (tmp_path / "logs").mkdir()
    for number in range(30):
        (tmp_path / "logs" / f"29990101-{number:06d}.log").write_text("x")
    assert _run(tmp_path, "noise").stderr == "progress\n"
    log, *later = _logs(tmp_path)
    assert "python prints" in log.read_text()
    assert len(later) == 19


def test_quiet_run_leaves_no_log(tmp_path):
    assert _run(tmp_path).stderr == "progress\n"
    assert _logs(tmp_path) == []


def test_place_of_the_logs_that_is_a_file_is_one_error(tmp_path):
    (tmp_path / "logs").write_text("")
    assert "no log can be written to './logs' (File exists)" in _run(tmp_path).stderr
