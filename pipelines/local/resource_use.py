"""Measures where the time and memory of a run go, stage by stage."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc/self")
_RESET_PEAK = "5"  # resets `VmHWM` when it is written to `clear_refs` of Linux


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageUse:
    """What one stage of a run used; all figures but the peak include the child processes that it waited for.

    Attributes:
      stage: id of the node, or "start-up" or "report and baselines".
      cpu_seconds: CPU time of all threads.
      wall_seconds: time that passed.
      peak_bytes: largest resident memory; on other systems than Linux the largest since the process started.
      read_bytes: bytes that it read from files and pipes, also from the page cache; None on systems other than Linux.
      written_bytes: bytes that it wrote to files and pipes; None on systems other than Linux.
    """

    stage: str
    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    read_bytes: int | None
    written_bytes: int | None


class RunProfile:
    """Collects what the stages of a run use; the first stage is everything before this object was made.

    Attributes:
      stages: one entry per finished stage, in order.
    """

    def __init__(self) -> None:
        read, written = _bytes_moved()
        self.stages = [
            StageUse(
                stage="start-up",
                cpu_seconds=_cpu_seconds(),
                wall_seconds=_seconds_since_start(),
                peak_bytes=_peak_bytes(),
                read_bytes=read,
                written_bytes=written,
            )
        ]

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the block as a stage, even if it fails."""
        _reset_peak()
        wall, cpu, (read, written) = time.monotonic(), _cpu_seconds(), _bytes_moved()
        try:
            yield
        finally:
            read_after, written_after = _bytes_moved()
            self.stages.append(
                StageUse(
                    stage=name,
                    cpu_seconds=_cpu_seconds() - cpu,
                    wall_seconds=time.monotonic() - wall,
                    peak_bytes=_peak_bytes(),
                    read_bytes=_difference(read_after, read),
                    written_bytes=_difference(written_after, written),
                )
            )


def _cpu_seconds() -> float:
    """Sum up the CPU time of this process and of the children that it waited for."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def _seconds_since_start() -> float:
    """Compute the age of this process; on systems other than Linux its CPU time instead."""
    try:
        after_name = (_PROC / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _cpu_seconds()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _fields(name: str) -> dict[str, str]:
    """Read a file of `key: value` lines below /proc/self; empty if there is none."""
    try:
        lines = (_PROC / name).read_text().splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _bytes_moved() -> tuple[int | None, int | None]:
    """Return the bytes read and written so far."""
    fields = _fields("io")
    return (int(fields["rchar"]), int(fields["wchar"])) if fields else (None, None)


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _peak_bytes() -> int:
    """Return the largest resident memory since `_reset_peak`."""
    peak = _fields("status").get("VmHWM")
    if peak is not None:
        return int(peak.split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        (_PROC / "clear_refs").write_text(_RESET_PEAK)
