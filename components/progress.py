"""How long steps say how far they are: one call, whatever shows it.

A step calls `report` as often as it likes. The default sink writes a plain log line at most every
ten seconds; the command line puts a live display in its place (`pipelines/progress.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

__all__ = ["Report", "Sink", "log_sink", "report", "set_sink"]


class Report(NamedTuple):
    """How far one task is: `done` of `total` (None: not known) in `unit`s, and a word on its state."""

    task: str
    done: int
    total: int | None
    unit: str
    detail: str


Sink: TypeAlias = Callable[[Report], None]


_log = logging.getLogger(__name__)


def log_sink(seconds: float = 10.0, log: Callable[[str], None] = _log.info) -> Sink:
    """A sink that logs a line per task at most every `seconds`, and the last one of a task that took longer."""
    started: dict[str, tuple[float, float]] = {}

    def sink(state: Report) -> None:
        now = time.monotonic()
        begun, last = started.get(state.task, (now, now))
        over = state.total is not None and state.done >= state.total
        started[state.task] = (begun, last)
        if now - last < seconds and not (over and last > begun):
            return
        started[state.task] = (begun, now)
        rate = state.done / (now - begun) if now > begun else 0.0
        left = "" if state.total is None or not rate else f", {max(0.0, state.total - state.done) / rate:.0f} s left"
        of = "" if state.total is None else f" of {state.total:,}"
        log(f"{state.task}: {state.done:,}{of} {state.unit}, {rate:,.0f}/s{left} {state.detail}".rstrip())

    return sink


_sink: Sink = log_sink()


def set_sink(sink: Sink) -> Sink:
    """Show progress through `sink` from now on; returns the one before."""
    global _sink
    before, _sink = _sink, sink
    return before


def report(task: str, done: int, total: int | None = None, *, unit: str = "rows", detail: str = "") -> None:
    """Say that `task` has done `done` of `total` units."""
    _sink(Report(task, done, total, unit, detail))
