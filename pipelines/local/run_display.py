"""Shows the progress of a run: a live display in a terminal, plain lines in a log.

In a terminal, one line per finished node (its number, result and seconds) stays on the screen. Below, each task of the
running node has a bar with the rows or steps done, the rate and the time left.
"""

from __future__ import annotations

from types import TracebackType

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
from pipelines.console.terminal import SafeConsole
from pipelines.report.node_run import NodeRun

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
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or SafeConsole(stderr=True, highlight=False)
        self._live = self._console.is_terminal
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
