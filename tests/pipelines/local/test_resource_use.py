"""Tests that a stage's figures measure the stage alone, child processes included."""

import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pipelines.local import resource_use
from pipelines.local.resource_use import RunProfile

pytestmark = pytest.mark.light

_MEGABYTE = 1 << 20


def _of(name, work):
    profile = RunProfile()
    with profile.stage(name):
        work()
    start, stage = profile.stages
    assert (start.stage, stage.stage) == ("start-up", name)
    return stage


def test_times_are_of_the_stage_with_its_children(monkeypatch):
    clock, used = [100.0], {resource.RUSAGE_SELF: [7.0, 1.0], resource.RUSAGE_CHILDREN: [2.0, 0.5]}
    monkeypatch.setattr(resource_use.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(resource_use.resource, "getrusage", lambda who: usage(*used[who]))

    def work():
        clock[0] += 9.0
        used[resource.RUSAGE_SELF] = [8.0, 1.25]
        used[resource.RUSAGE_CHILDREN] = [6.0, 0.75]

    stage = _of("busy", work)
    assert (stage.wall_seconds, stage.cpu_seconds) == (9.0, 5.5)


def usage(user, system):
    return SimpleNamespace(ru_utime=user, ru_stime=system, ru_maxrss=1)


def test_bytes_and_peak_are_of_the_stage_alone(tmp_path, monkeypatch):
    """The files are those of proc(5); the kernel resets the peak when 5 is written to `clear_refs`."""
    monkeypatch.setattr(resource_use, "_PROC", tmp_path)

    def counted(read, written, peak):
        (tmp_path / "io").write_text(f"rchar: {read}\nwchar: {written}\nsyscr: 9\n")
        (tmp_path / "status").write_text(f"Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t  {peak} kB\nVmRSS:\t  1 kB\n")

    counted(read=50, written=30, peak=900)
    profile = RunProfile()
    assert not (tmp_path / "clear_refs").exists()
    with profile.stage("large"):
        assert (tmp_path / "clear_refs").read_text() == "5"
        counted(read=90, written=31, peak=800)
    start, large = profile.stages
    assert (start.read_bytes, start.written_bytes, start.peak_bytes) == (50, 30, 900 * 1024)
    assert (large.read_bytes, large.written_bytes, large.peak_bytes) == (40, 1, 800 * 1024)


def test_a_stage_that_fails_is_measured_too():
    profile = RunProfile()
    with pytest.raises(ValueError, match="bad"), profile.stage("fails"):
        raise ValueError("bad")
    assert [stage.stage for stage in profile.stages] == ["start-up", "fails"]


def test_start_up_is_the_age_of_the_process():
    program = (
        "import time; time.sleep(0.4)\n"
        "from pipelines.local.resource_use import RunProfile\n"
        "stage = RunProfile().stages[0]; print(stage.wall_seconds, stage.cpu_seconds, stage.peak_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    wall, cpu, peak = map(float, done.stdout.split())
    assert wall >= 0.4  # `sleep` takes at least this long
    assert cpu > 0
    assert peak > _MEGABYTE
