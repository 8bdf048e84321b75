import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.charts import line_chart
from pipelines.report import Report, print_report, save_report

REPORT = Report(
    name="clicks & <b>buys</b>",
    finished="2026-01-02T03:04:05",
    seconds=12.5,
    nodes=[{"node": "ExampleGen", "state": "cached", "seconds": 0.1, "execution": 1}],
    push={"pushed": True, "version": "7", "destination": "/srv/7", "reason": "", "query": "import tensorflow"},
    quality=[
        {"scorer": "this model", "metrics": {"AUC": 0.91234, "log loss": 0.3}},
        {"scorer": "popularity of item", "metrics": {"AUC": 0.8, "log loss": None}},
    ],
    eval_rows=1234,
    quality_note="",
    curves={"loss": {"train": [(1, 0.7), (2, 0.5)], "eval": []}, "auc": {"eval": []}},
    training_note="2 s of training",
    parity=[{"name": "training/logit", "difference": 0.0, "tolerance": 1e-5, "rows": 99}],
    tables=[
        {
            "name": "item", "vocabulary": "item", "rows": 11, "dim": 8, "combiner": "mean", "optimizer": "Adagrad",
            "table_bytes": 352, "slot_bytes": 352, "features": ["item"],
        }
    ],
    vocabularies=[
        {
            "name": "item", "size": 10, "distinct": 12, "coverage": 0.99, "digest": "ab" * 32, "sample": ["<i>"],
            "evolution": {"mode": "append", "kept": 8, "new": 2, "dropped": 0, "expired": 3, "refused": 0},
        }
    ],
    drift=[{"feature": "item", "vocabulary": "item", "new_rows": 0.1234, "new_tokens": 0.05}],
    data={"rows read": "1,234"},
)  # fmt: skip


def test_html_shows_the_figures_and_escapes_what_comes_from_data(tmp_path):
    html = Path(save_report(REPORT, str(tmp_path))).read_text(encoding="utf-8")
    assert "0.9123" in html
    assert "&lt;b&gt;buys" in html
    assert "<i>" not in html
    assert "12.34%" in html  # of the rows hold a token that the earlier vocabulary does not have


def test_html_shows_what_a_warm_start_kept(tmp_path):
    moved = [{"token": "<x>", "before": 0.0, "now": 0.125}]
    item = {"rows": 4, "kept": 1234, "new": 2, "dropped": 1, "kept_traffic": 0.875}
    tables = {"item": {**item, "largest_gains": moved, "largest_losses": []}, "raw": {"rows": 7}}
    start = {"step": 40, "tables": tables, "tables_new": ["fresh"], "tables_dropped": []}
    html = Path(save_report(dataclasses.replace(REPORT, warm_start=start), str(tmp_path))).read_text(encoding="utf-8")
    assert "87.50%" in html
    assert "&lt;x&gt; 0.00→12.50%" in html
    assert "New tables: fresh." in html
    assert "raw ids" in html
    assert "Warm start" not in Path(save_report(REPORT, str(tmp_path))).read_text(encoding="utf-8")


def test_json_holds_the_same_figures(tmp_path):
    save_report(REPORT, str(tmp_path))
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved == json.loads(json.dumps(dataclasses.asdict(REPORT)))


def test_screen_says_why_nothing_was_pushed():
    console = Console(record=True, width=120, file=io.StringIO())
    push = {**REPORT.push, "pushed": False, "reason": "auc is 0.6, its threshold asks for at least 0.9."}
    print_report(dataclasses.replace(REPORT, push=push), "report.html", console)
    assert "asks for at least 0.9" in console.export_text()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("executed", "pushed version 7 to /srv/7"),
        ("cached", "version 7 is already served; nothing new was trained or pushed: /srv/7"),
    ],
)
def test_screen_says_whether_the_version_is_new(state, words):
    console = Console(record=True, width=120, file=io.StringIO())
    nodes = [{"node": "EmbeddingPusher", "state": state, "seconds": 0.1, "execution": 9}]
    print_report(dataclasses.replace(REPORT, nodes=nodes), "report.html", console)
    assert words in console.export_text()


def test_chart_is_one_svg_element_with_readable_text():
    svg = line_chart({"train": [(1, 2.0), (2, 1.0)], "eval": []}, x_label="step")
    assert svg.startswith("<svg")
    assert ">train<" in svg.replace("\n", "")


def test_screen_shows_paths_as_they_are():
    console = Console(record=True, width=40, file=io.StringIO())
    push = {
        **REPORT.push,
        "destination": "/data/[v1]/serving/7",
        "query": "model = load('/data/[v1]/" + "x" * 60 + "')",
    }
    print_report(dataclasses.replace(REPORT, push=push), "/data/[v1]/report.html", console)
    shown = console.export_text()
    assert "/data/[v1]/serving/7" in shown
    assert push["query"] in shown
