"""Tests that a stage's figures measure the stage alone, child processes included."""

import subprocess
import sys
import time

import pytest

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


def test_cpu_and_wall_time():
    def work():
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        time.sleep(0.2)

    stage = _of("busy", work)
    assert 0.3 <= stage.cpu_seconds < 0.45
    assert stage.wall_seconds >= 0.5


def test_cpu_time_of_children_counts():
    program = "import time\nwhile time.process_time() < 0.4: pass"
    assert _of("child", lambda: subprocess.run([sys.executable, "-c", program], check=True)).cpu_seconds >= 0.4


@pytest.mark.skipif(sys.platform != "linux", reason="the figures come from /proc")
def test_bytes_and_peak_are_of_the_stage_alone(tmp_path):
    def work():
        (tmp_path / "file").write_bytes(b"x" * (40 * _MEGABYTE))
        assert len((tmp_path / "file").read_bytes()) == 40 * _MEGABYTE

    profile = RunProfile()
    with profile.stage("large"):
        work()
    with profile.stage("small"):
        pass
    _, large, small = profile.stages
    for moved in (large.read_bytes, large.written_bytes):
        assert 40 * _MEGABYTE <= moved < 41 * _MEGABYTE
    assert small.read_bytes + small.written_bytes < _MEGABYTE
    assert large.peak_bytes - small.peak_bytes > 30 * _MEGABYTE


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
    assert wall >= 0.4
    assert 0 < cpu < wall
    assert peak > _MEGABYTE
