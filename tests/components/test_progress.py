import pytest

from components import progress

pytestmark = pytest.mark.light


def test_long_task_logs_rate_and_time_left_and_its_end(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = []
    sink = progress.log_sink(seconds=10.0, log=lines.append)
    for done in (0, 5, 10, 20):
        now[0] = done * 2.0
        sink(progress.Report("count", done, 20, "rows", ""))
    assert lines == [
        "count: 5 of 20 rows, 0.5/s, 30 s left",
        "count: 10 of 20 rows, 0.5/s, 20 s left",
        "count: 20 of 20 rows, 0.5/s, 0 s left",
    ]


def test_resumed_task_says_so_and_its_rate_is_of_this_process(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = []
    sink = progress.log_sink(seconds=10.0, log=lines.append)
    for done in (9_000, 9_010, 9_100):
        now[0] = (done - 9_000) * 1.0
        sink(progress.Report("train", done, 10_000, "steps", "", 9_000))
    assert lines == [
        "train: resumed at step 9,000 of 10,000",
        "train: 9,010 of 10,000 steps, 1/s, 990 s left",
        "train: 9,100 of 10,000 steps, 1/s, 900 s left",
    ]


def test_reports_go_to_the_sink_that_was_set():
    seen = []
    before = progress.set_sink(seen.append)
    try:
        progress.report("train", 3, 10, unit="steps", detail="loss 1")
    finally:
        progress.set_sink(before)
    assert seen == [progress.Report("train", 3, 10, "steps", "loss 1")]


def test_parts_of_a_task_add_up_to_its_total():
    seen = []
    before = progress.set_sink(seen.append)
    try:
        progress.advance("worker", 5)
        for _ in range(2):
            progress.begin("count", 10, unit="KB")
            progress.advance("count", 3, "first")
        progress.advance("count", 7)
    finally:
        progress.set_sink(before)
    assert seen == [
        progress.Report("worker", 5, None, "rows", ""),
        progress.Report("count", 3, 10, "KB", "first"),
        progress.Report("count", 3, 10, "KB", "first"),
        progress.Report("count", 10, 10, "KB", ""),
    ]
