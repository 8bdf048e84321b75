"""Reports the progress of long steps: `report` passes it to a sink, which shows it.

A step may call `report` as often as it likes. The default sink writes a plain log line at most every
ten seconds; the command line replaces it with a live display (`pipelines/local/run_display.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Report(NamedTuple):
    """Progress of one task: `done` of `total` (None if unknown) in `unit`s, and a short text on its state.

    An earlier process did `start` of the units: the rate does not include these.
    """

    task: str
    done: int
    total: int | None
    unit: str
    detail: str
    start: int = 0


Sink: TypeAlias = Callable[[Report], None]


_log = logging.getLogger(__name__)


def log_sink(seconds: float = 10.0, log: Callable[[str], None] = _log.info) -> Sink:
    """Make a sink that logs each task at most every `seconds`, and also at its end if it took longer.

    A task that resumes an earlier process is logged at once. Rates count only what this process did.
    """
    started: dict[str, tuple[float, float]] = {}

    def sink(state: Report) -> None:
        now = time.monotonic()
        if state.start and state.task not in started:
            log(f"{state.task}: {resumed(state)}{_of(state)}")
        begun, last = started.get(state.task, (now, now))
        over = state.total is not None and state.done >= state.total
        started[state.task] = (begun, last)
        if now - last < seconds and not (over and last > begun):
            return
        started[state.task] = (begun, now)
        rate = (state.done - state.start) / (now - begun) if now > begun else 0.0
        left = "" if state.total is None or not rate else f", {max(0.0, state.total - state.done) / rate:.0f} s left"
        place = f"{state.task}: {state.done:,}{_of(state)} {state.unit}"
        log(f"{place}, {per_second(rate)}{left}" + (f"; {state.detail}" if state.detail else ""))

    return sink


def resumed(state: Report) -> str:
    """Name the point at which the task resumes an earlier process: "resumed at step 1,000"."""
    return f"resumed at {state.unit.removesuffix('s')} {state.start:,}"


def per_second(rate: float) -> str:
    """Return the rate with its significant digits: "1,200/s", "0.25/s"."""
    return f"{rate:,.0f}/s" if rate >= 10 or not rate else f"{rate:.2g}/s"


def _of(state: Report) -> str:
    return "" if state.total is None else f" of {state.total:,}"


_sink: Sink = log_sink()


def set_sink(sink: Sink) -> Sink:
    """Show progress through `sink` from now on; return the previous sink."""
    global _sink
    before, _sink = _sink, sink
    return before


_done: dict[str, tuple[int, int | None, str]] = {}


def begin(task: str, total: int | None, *, unit: str = "rows") -> None:
    """Begin to count what `advance` adds to a task: units done, of `total` (None if unknown)."""
    _done[task] = 0, total, unit


def advance(task: str, count: int, detail: str = "") -> None:
    """Report `count` more units of a task. A worker process, in which no task began, reports its own, of no total."""
    done, total, unit = _done.get(task, (0, None, "rows"))
    _done[task] = done + count, total, unit
    report(task, done + count, total, unit=unit, detail=detail)


def report(
    task: str, done: int, total: int | None = None, *, unit: str = "rows", detail: str = "", start: int = 0
) -> None:
    """Report that `task` has done `done` of `total` units, `start` of them in an earlier process."""
    _sink(Report(task, done, total, unit, detail, start))
