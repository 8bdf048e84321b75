"""Shows the progress of a run: a live display or plain lines; what libraries write goes to a log file.

In a terminal, one line per finished node (its number, result and seconds) stays on the screen. Below, each task of the
running node has a bar with the rows or steps done, the rate and the time left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from components.progress import Report, Sink, log_sink, per_second, resumed, set_sink
from embedding_core.errors import ConfigError
from pipelines.report.run_report import NodeRun

_WORDS = {
    "executed": "done",
    "cached": "from cache",
    "skipped": "skipped",
    "failed": "failed",
    "damaged": "found a damaged input",
}


class _Rate(ProgressColumn):
    """Shows the rate of a task in its unit, such as "1,200 rows/s"."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed or 0.0
        words = per_second(speed).replace("/", f" {task.fields['unit']}/")
        return Text(words if speed else "", style="progress.data.speed")


class Display:
    """Shows the progress of a run. Use it as a context manager, and give `node_changed` to the runner.

    Args:
      console: the console to write to; a terminal gets the live display, anything else plain lines.
      quiet: whether to hide progress, which the log then has; messages of `say` are still shown.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._live = self._console.is_terminal and not quiet
        self._bars = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._sink: Sink = self._show_bar if self._live else log_sink(log=self.say)
        self._before: Sink | None = None

    def __enter__(self) -> Display:
        if not self._quiet:
            self._before = set_sink(self._sink)
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if self._before is not None:
            set_sink(self._before)

    def node_changed(self, run: NodeRun) -> None:
        """Show that a node started or ended."""
        if self._quiet:
            return
        name = f"[{run.index:>2}/{run.count}] {run.node}"
        if run.state == "running":
            if self._live:
                self._tasks[name] = self._bars.add_task(name, total=None, unit="", detail="")
            else:
                self.say(f"{name} ...")
            return
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()
        self.say(f"{name}: {_WORDS[run.state]} in {run.seconds:.1f} s")

    def say(self, line: str) -> None:
        """Show a line that stays on the screen."""
        self._console.print(line, markup=False, soft_wrap=True)

    def _show_bar(self, state: Report) -> None:
        if state.task not in self._tasks:
            if state.start:
                self.say(f"{state.task}: {resumed(state)}")
            # What an earlier process did is `completed` from the start, so that rate and time left do not include it.
            self._tasks[state.task] = self._bars.add_task(
                state.task, total=state.total, completed=state.start, unit=state.unit, detail=""
            )
        self._bars.update(self._tasks[state.task], completed=state.done, total=state.total, detail=state.detail)


# Redirects what TensorFlow, TFX and Beam write during a run from the screen to a log file in the work_dir.

_KEPT = 20


@dataclasses.dataclass
class _State:
    failed: str | None = None  # log of the run in this process that failed
    on_screen: bool = False


_state = _State()


def current_log() -> str | None:
    """Return the path of the log of the run in this process that failed, or None."""
    return _state.failed


def forget_log() -> None:
    """Forget the log of a previous run in this process."""
    _state.failed = None


def to_screen(wanted: bool) -> None:
    """Choose whether later runs in this process write to the screen instead of a log."""
    _state.on_screen = wanted


@contextlib.contextmanager
def captured(work_dir: str) -> Iterator[TextIO]:
    """Redirect stdout and stderr, also of C++ and of child processes, to a new log file.

    An error that ends the run is logged with its traceback. If the log stays empty, it is removed. Only the newest 20
    logs are kept. After `to_screen(True)`, nothing is redirected.

    Args:
      work_dir: folder of the pipeline; the log is in `logs` below it.

    Yields:
      The screen, which is the previous stderr, for messages to the user.

    Raises:
      ConfigError: no log can be written there.
    """
    if _state.on_screen:
        yield sys.stderr
        return
    path = _new_log(os.path.join(work_dir, "logs"))
    before = _redirected(path)
    try:
        with os.fdopen(os.dup(before[1]), "w", encoding="utf-8", errors="backslashreplace") as screen:
            yield screen
    except BaseException:
        _state.failed = path
        _append_traceback(path)
        raise
    finally:
        _flush()
        for number, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        if os.path.exists(path) and not os.path.getsize(path):
            os.remove(path)


def _new_log(folder: str) -> str:
    """Create a log that only its owner can read, since messages of packages may quote rows; remove the oldest logs."""
    moment = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
    path = os.path.join(folder, f"{moment}.log")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        earlier = sorted(file for file in os.listdir(folder) if file.endswith(".log"))
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        for name in earlier[: 1 - _KEPT]:
            os.remove(os.path.join(folder, name))
    except OSError as error:
        raise ConfigError(
            f"`work_dir`: no log can be written to {folder!r} ({error.strerror}); free some space, or give another one."
        ) from error
    return path


def _redirected(path: str) -> tuple[int, int]:
    """Point stdout and stderr of the process to the file; return copies of the previous ones."""
    _flush()
    before = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return before


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a stream that is closed
            stream.flush()


def _append_traceback(path: str) -> None:
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8", errors="backslashreplace") as log:
        traceback.print_exc(file=log)
