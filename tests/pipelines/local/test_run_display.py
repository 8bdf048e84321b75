import io

from rich.console import Console

from components import progress
from pipelines.local.run_display import Display
from pipelines.report.run_report import NodeRun


def _terminal():
    out = io.StringIO()
    return out, Console(file=out, force_terminal=True, width=120, color_system=None)


def test_rate_and_time_left_of_resumed_task_are_of_this_process(monkeypatch):
    out, console = _terminal()
    now = [100.0]
    with Display(console) as display:
        monkeypatch.setattr(display._bars, "get_time", lambda: now[0])
        for done in (9_000, 9_010, 9_020, 9_030):
            progress.report("train", done, 10_000, unit="steps", start=9_000)
            now[0] += 10
        (task,) = display._bars.tasks
        assert task.speed == 1.0
        assert task.time_remaining == 970
    assert "train: resumed at step 9,000" in out.getvalue()


def test_quiet_display_shows_only_what_is_said():
    out, console = _terminal()
    before = progress.set_sink(lambda _: None)
    try:
        with Display(console, quiet=True) as display:
            display.node_changed(NodeRun(node="ExampleGen", index=1, count=9, state="running"))
            progress.report("train", 1, 2)
            display.node_changed(NodeRun(node="ExampleGen", index=1, count=9, state="executed"))
            display.say("artifact 7 is damaged")
    finally:
        progress.set_sink(before)
    assert out.getvalue() == "artifact 7 is damaged\n"


def test_display_gives_the_sink_back():
    seen = []
    before = progress.set_sink(seen.append)
    try:
        with Display(_terminal()[1]):
            progress.report("train", 1, 2)
        progress.report("train", 2, 2)
    finally:
        progress.set_sink(before)
    assert [state.done for state in seen] == [2]
