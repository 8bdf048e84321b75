import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.report.charts import line_chart
from pipelines.report.html_report import save_report
from pipelines.report.run_report import Report, RunResult
from pipelines.report.screen_report import print_report, print_summary
from pipelines.report.verdict import comparison, overfitting, verdict

REPORT = Report(
    name="clicks & <b>buys</b>",
    finished="2026-01-02T03:04:05",
    seconds=12.5,
    nodes=[{"node": "ExampleGen", "state": "cached", "seconds": 0.1, "execution": 1, "made_in": 39.9}],
    seconds_with_cache=52.3,
    push=RunResult(pushed=True, version="7", destination="/srv/7"),
    query="import tensorflow",
    quality=[
        {"scorer": "this model", "metrics": {"AUC": 0.91234, "log loss": 0.3}},
        {"scorer": "popularity of item", "metrics": {"AUC": 0.8, "log loss": None}},
    ],
    eval_rows=1234,
    quality_note="",
    evaluation=[
        {"metric": "Recall@10", "value": 0.085, "bound": "at least popularity's 0.1390", "outcome": "missed"},
        {"metric": "AUC", "value": 0.91234, "bound": "at least 0.8", "outcome": "met"},
        {"metric": "ExampleCount", "value": 1234.0, "bound": "", "outcome": "no bound"},
    ],
    slices=[{"slice": "shop = <s>", "metrics": {"AUC": 0.5432, "ExampleCount": 9.0}}],
    retrieval={"metrics": {"Recall@10": 0.085}, "popularity": {"Recall@10": 0.139}, "feature": "item"},
    retrieval_note="all 99 positive rows",
    configuration={"model": {"arguments": {"hidden_units": [64, 32]}}, "seed": 7},
    changed=["seed"],
    labels=[
        {"label": "label", "rows": 1234, "positives": 234, "negatives": 1000, "rate": 0.1896, "train_rate": 0.2111},
        {"label": "stars", "rows": 900},
    ],
    columns=[{"column": "always", "missing": {"train": 0.25, "eval": 0.5}, "constant": True}],
    features=[
        {
            "feature": "item", "vocabulary": "item", "empty_train": 0.0, "empty_eval": 0.0, "unknown_train": 0.01,
            "unknown_eval": 0.0765, "unknown_rows_eval": 0.08,
        }
    ],
    curves={"loss": {"train": [(1, 0.7), (2, 0.5)], "eval": []}, "auc": {"eval": []},
            "recall": {"this model": [(1, 0.01), (10, 0.085)], "popularity": [(1, 0.02), (10, 0.139)]}},
    training_note="2 s of training",
    parity=[{"name": "training/logit", "difference": 0.0, "mean": 0.0, "tolerance": 1e-5, "rows": 99}],
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


def changed(**fields):
    """Return the report with other fields; those of `push` change single fields of it."""
    push = dataclasses.replace(REPORT.push, **fields.pop("push", {}))
    return dataclasses.replace(REPORT, push=push, **fields)


def screen(report, width=120, place="report.html"):
    console = Console(record=True, width=width, file=io.StringIO())
    print_report(report, place, console)
    return console.export_text()


def page(report, folder):
    return Path(save_report(report, str(folder))).read_text(encoding="utf-8")


def test_html_shows_figures_and_escapes_what_comes_from_data(tmp_path):
    html = page(REPORT, tmp_path)
    shown = ["0.9123", "&lt;b&gt;buys", "0.0850", "popularity&#39;s 0.1390", ">missed<", ">met<"]
    shown += ["shop = &lt;s&gt;", "0.5432", "model.arguments.hidden_units", "[64, 32]", "<code>seed</code>", "7.65%"]
    shown += ["18.96%; of the train split 21.11%", "25.00%", "constant in the train split: always"]
    shown += ["12.5 s with 1 of 1 nodes from the cache; 52.3 s without"]
    shown += ["12.34%"]  # the share of rows with a token that the previous vocabulary lacks
    assert [words for words in shown if words not in html] == []
    absent = ["<i>", "Warm start", "Time and memory"]
    assert [words for words in absent if words in html] == []


def test_parity_is_one_line_with_its_details_behind_it(tmp_path):
    html = page(REPORT, tmp_path)
    details = html.partition("<details><summary>training equals serving: 1 outputs, 99 rows, at most 0 apart")[2]
    assert "training/logit" in details.partition("</details>")[0]


def test_report_of_a_version_stays_that_of_the_pushing_run(tmp_path):
    again = changed(push={"from_cache": True}, seconds=0.5)
    for report in (REPORT, again):
        save_report(report, str(tmp_path / "last"), str(tmp_path))
    assert json.loads((tmp_path / "last" / "report.json").read_text())["seconds"] == 0.5
    assert json.loads((tmp_path / "7" / "report.json").read_text())["seconds"] == 12.5
    for _ in range(2):
        save_report(changed(push={"pushed": False}), str(tmp_path / "last"), str(tmp_path))
    assert (tmp_path / "refused-20260102T030405" / "report.html").is_file()
    assert (tmp_path / "refused-20260102T030405.1" / "report.html").is_file()


def test_html_shows_what_a_warm_start_kept(tmp_path):
    moved = [{"token": "<x>", "before": 0.0, "now": 0.125}]
    item = {"rows": 4, "kept": 1234, "new": 2, "dropped": 1, "kept_traffic": 0.875}
    tables = {"item": {**item, "largest_gains": moved, "largest_losses": []}, "raw": {"rows": 7}}
    dense = {"dense": "restored", "variables": ["dense/kernel"], "optimizer": "new", "optimizer_reason": "<reset>"}
    dense |= {"ranges": {"fare": "kept"}, "not_recorded": ["tasks"]}
    start = {"step": 40, "tables": tables, "tables_new": ["fresh"], "tables_dropped": [], "dense": dense}
    html = page(changed(warm_start=start), tmp_path)
    shown = ["87.50%", "&lt;x&gt; 0.00→12.50%", "New tables: fresh.", "raw ids", "restored (dense/kernel)"]
    shown += ["new: &lt;reset&gt;", "fare kept", "taken to be the same: tasks."]
    assert [words for words in shown if words not in html] == []


@pytest.mark.parametrize(
    ("push", "words"),
    [
        ({"pushed": False, "reason": "auc is 0.6, its threshold asks for at least 0.9."}, "asks for at least 0.9"),
        ({}, "pushed version 7 to /srv/7"),
        ({"from_cache": True}, "version 7 is already served; nothing new was trained or pushed: /srv/7"),
        ({"form": "delta"}, "version 7, a delta, to /srv/7"),
        ({"form": "whole version", "full_push": "it is too large."}, "7, a whole version (it is too large), to /srv/7"),
    ],
)
def test_screen_and_page_say_what_was_pushed_and_why(tmp_path, push, words):
    report = changed(push=push)
    assert words in screen(report)
    if "form" in push:
        assert words.partition(", to ")[0] in page(report, tmp_path).partition("<h2>")[0]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "Recall@10 0.0850, worse than the 0.1390 of the popularity of item"),
        ({"retrieval": None}, "AUC 0.9123, better than the 0.8000 of the popularity of item"),
        ({"retrieval": None, "quality": REPORT.quality[:1]}, "AUC 0.9123"),
        (
            {
                "retrieval": None,
                "quality": [
                    {"scorer": "this model", "metrics": {"AUC": 0.70001}},
                    {"scorer": "mean of the label", "metrics": {"AUC": 0.70004}},
                ],
            },
            "AUC 0.7000, equal to the 0.7000 of the mean of the label",
        ),
        (
            {"retrieval": None, "quality": [{**REPORT.quality[0], "metrics": {"AUC": None}}, REPORT.quality[1]]},
            "AUC cannot be computed",
        ),
        (
            {
                "retrieval": None,
                "quality": [
                    {"scorer": "click: this model", "metrics": {"AUC": 0.8}},
                    {"scorer": "click: mean of the label", "metrics": {"AUC": 0.5}},
                    {"scorer": "stars: this model", "metrics": {"RMSE": 0.8}},
                    {"scorer": "stars: mean of the label", "metrics": {"RMSE": 0.5}},
                    {"scorer": "stars: ridge regression", "metrics": {"RMSE": 0.9}},
                ],
            },
            (
                "click: AUC 0.8000, better than the 0.5000 of the mean of the label; "
                "stars: RMSE 0.8000, worse than the 0.5000 of the mean of the label"
            ),
        ),
    ],
)
def test_summary_is_three_lines(fields, line):
    console = Console(record=True, width=40, file=io.StringIO())
    print_summary(changed(**fields), "report.html", console)
    assert console.export_text() == f"pushed version 7 to /srv/7\n{line}\nreport: report.html\n"


def test_chart_is_one_svg_element_with_readable_text():
    svg = line_chart({"train <b>": [(1, 2.0), (2, 1.0)], "eval": []}, x_label="step")
    assert svg.startswith("<svg")
    assert ">train &lt;b&gt;<" in svg
    assert ">_id<" in line_chart({"_id": [(1, 2.0), (2, 1.0)]}, x_label="step")
    assert line_chart({"eval": [(1, float("nan"))]}, x_label="step") == ""


def ticks(points, x_label="run"):
    """Return the texts of the ticks, those of the y axis first."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", line_chart({"a": points}, x_label=x_label))
    at = texts.index(x_label)
    return texts[at + 1 : -1] + texts[:at]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(2, 1.9)], ["1.8", "1.85", "1.9", "1.95", "2", "2"]),
        ([(1, 1.9), (2, 2.1)], ["1.9", "1.95", "2", "2.05", "2.1", "1", "2"]),
        ([(1, 5.0), (100, 2e6)], ["0", "500,000", "1,000,000", "1,500,000", "2,000,000", *map(str, range(0, 101, 20))]),
        ([(1, 7.0), (2, 8.0)], ["7", "8", "1", "2"]),
        ([(1, 1e-7), (2, 3e-7)], ["1e-07", "1.5e-07", "2e-07", "2.5e-07", "3e-07", "1", "2"]),
    ],
)
def test_ticks_are_round_and_those_of_runs_are_runs(points, expected):
    assert ticks(points) == expected


def test_verdict_is_one_sentence_before_everything_else(tmp_path):
    html = page(REPORT, tmp_path)
    said = (
        "Pushed version 7: Recall@10 0.0850, worse than the 0.1390 of the popularity of item; "
        "missed 1 of 2 bounds: Recall@10 (at least popularity's 0.1390)."
    )
    assert verdict(REPORT) == said
    assert "Recall@10 (at least" in html.partition("<h2>")[0]
    assert "Served from <code>/srv/7</code>" in html.partition("<h2>")[0]
    headings = re.findall("<h2>(.*?)</h2>", html)
    assert headings[:4] == ["What decided", "Training", "A request to this version", "Other figures"]


def test_verdict_of_a_refusal_has_its_reason_below(tmp_path):
    report = changed(push={"pushed": False, "reason": "20% of table 'a' are zeros."}, retrieval=None, evaluation=())
    said = "Refused for the reason below: AUC 0.9123, better than the 0.8000 of the popularity of item."
    bound = {"metric": "rows of the eval split", "value": 200, "bound": "at least 100", "outcome": "met"}
    assert verdict(report) == verdict(dataclasses.replace(report, evaluation=[bound])) == said
    assert "Nothing was pushed: 20% of table &#39;a&#39;" in page(report, tmp_path).partition("<h2>")[0]


def test_retrieval_has_its_metrics_where_ranking_has_auc():
    quality = [{"scorer": name, "metrics": {"AUC": None}} for name in ("this model", "popularity of item")]
    names, scores = comparison(changed(quality=quality, metric_names=["AUC"]))
    assert names == ["Recall@10"]
    assert scores["popularity of item"]["Recall@10"] == 0.139


@pytest.mark.parametrize("kinds", [("positive", "regression"), ("regression", "positive"), ("regression", "binary")])
def test_rankings_are_those_of_the_positive_label(kinds):
    labels = dict(zip(("click", "buy"), ({"kind": kind} for kind in kinds), strict=True))
    quality = [{"scorer": f"{name}: this model", "metrics": {"AUC": 0.5}} for name in labels]
    _, scores = comparison(changed(quality=quality, configuration={"labels": labels}))
    ranked = "buy" if kinds[1] == "positive" else "click"
    assert scores[f"{ranked}: this model"]["Recall@10"] == 0.085
    assert list(scores) == ["click: this model", "buy: this model", f"{ranked}: popularity of item"]


@pytest.mark.parametrize(
    ("part", "losses", "words", "without_effect"),
    [
        ("eval", (0.5, 0.3, 0.4), "rose from 0.3000 at step 1 to 0.4000 at step 2: the model overfits", ""),
        ("eval", (0.5, 0.3, 0.301), None, ""),
        ("validation", (0.3, 0.4), "early stopping chose the step", ""),
        ("validation", (0.3, 0.4), "use `training.early_stopping`", "Early stopping had no effect."),
    ],
)
def test_sentence_says_that_the_loss_rose(tmp_path, part, losses, words, without_effect):
    from pipelines.report.run_figures import _chosen_by_early_stopping

    chosen = _chosen_by_early_stopping({"facts": {"validation_rows": 9, "early_stopping": without_effect}})
    report = changed(curves={"loss": {part: list(enumerate(losses))}}, chosen_by_early_stopping=chosen)
    assert (words or "") in overfitting(report)
    html = page(report, tmp_path)
    assert ("the model overfits" in html) == (words is not None)
    stopped = part == "validation" and not without_effect
    assert ("use <code>training.early_stopping</code>" in html) == (words is not None and not stopped)


def test_screen_says_how_the_model_was_judged():
    shown = " ".join(screen(REPORT).split())
    assert "Recall@10 0.0850 missed at least popularity's 0.1390" in shown
    assert "ExampleCount 1,234 no bound" in shown
    assert "retrieval: all 99 positive rows" in shown
    assert "changed by --set: seed" in shown


def test_repeats_show_the_figure_with_nothing_left_out(tmp_path):
    bound = "at least popularity's 0.0094"
    row = {"metric": "Recall@10", "value": 0.038, "bound": bound, "outcome": "met", "nothing_left_out": 0.0588}
    retrieval = {**REPORT.retrieval, "nothing_left_out": {"Recall@10": 0.0588}}
    retrieval["popularity_nothing_left_out"] = {"Recall@10": 0.0123}
    report = changed(evaluation=[row, *REPORT.evaluation[1:]], retrieval=retrieval)
    shown, html = " ".join(screen(report, width=80).split()), page(report, tmp_path)
    saved = json.loads((tmp_path / "report.json").read_text())
    assert "Recall@10 0.0380 met at least popularity's 0.0094" in shown
    assert "Recall@10, nothing left out 0.0588 (popularity 0.0123)" in shown
    assert html.count("nothing left out") == 4  # in both tables of figures, and of model and popularity
    assert html.count("0.0588") == 2
    assert "0.0123" in html
    assert saved["evaluation"][0]["nothing_left_out"] == saved["retrieval"]["nothing_left_out"]["Recall@10"] == 0.0588


def test_note_counts_the_true_candidates_that_were_left_out():
    from pipelines.report.evaluation_results import retrieval_note

    retrieval = {
        "user": "user", "queries": 9, "positive_rows": 9, "is_sample": False, "candidates": 40, "feature": "item",
        "unknown": 0, "exclude_seen": True, "seen_truths": 2024,
    }  # fmt: skip
    note = retrieval_note({"retrieval": retrieval})
    assert "which are left out; 2,024 of these are true (repeats) and count as misses" in note


HISTORY = {"evals": [], "facts": {}}


def test_baseline_that_is_better_than_the_model_is_said():
    from pipelines.report.baselines import Score
    from pipelines.report.run_figures import better_baselines

    def score(scorer, auc, loss=0.4):
        return Score(scorer=scorer, metrics={"AUC": auc, "log loss": loss})

    others = [score("mean of the label", 0.5), score("logistic regression, one-hot", 0.9471)]
    (said,) = better_baselines([score("this model", 0.7968), *others], HISTORY)
    assert said.startswith("This model is worse than the logistic regression, one-hot: its AUC is 0.7968, ")
    assert better_baselines([score("this model", 0.95), *others], HISTORY) == []
    assert better_baselines([score("this model", None), score("mean of the label", None)], HISTORY) == []
    assert better_baselines([score("this model", 0.70001), score("mean of the label", 0.70004)], HISTORY) == []
    (said,) = better_baselines([score("this model", 0.95, 0.3047), score("regression", 0.94, 0.2969)], HISTORY)
    assert "its log loss is 0.3047, that of the baseline 0.2969." in said
    assert "AUC" not in said


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((0.6, 0.3, 0.4), "rose from 0.3000 at step 20 to 0.4000 at step 30: longer training does not help"),
        ((0.6, 0.4, 0.3), "still falling at the last step: train longer"),
        ((0.6, 0.3, 0.3), "no longer changed: longer training does not help"),
        ((0.6,), "computed 1 times: evaluate more often"),
    ],
)
def test_advice_for_a_worse_model_follows_its_curve(losses, words):
    from pipelines.report.run_figures import _advice

    history = {**HISTORY, "evals": [{"step": 10 * at, "loss": loss} for at, loss in enumerate(losses, start=1)]}
    assert words in _advice(history)
    assert ("early_stopping" in _advice(history)) == ("rose" in words)
    assert "early_stopping" not in _advice({**history, "facts": {"validation_rows": 9}})
    facts = {"validation_rows": 9, "early_stopping": "Early stopping had no effect."}
    assert _advice({**history, "facts": facts}) == _advice(history)


@pytest.mark.parametrize(("retrieves", "end"), [(True, ": Recall@k judges."), (False, " be computed.")])
def test_note_names_a_judge_only_if_the_model_retrieves(retrieves, end):
    from types import SimpleNamespace

    from pipelines.report.baselines import Score
    from pipelines.report.run_figures import _quality_note

    config = SimpleNamespace(training=SimpleNamespace(negatives=None))
    assert _quality_note(config, [Score(scorer="", metrics={"AUC": None})], retrieves=retrieves).endswith(end)


def test_rate_of_training_is_said_once():
    from pipelines.report.run_figures import _training_note

    facts = {"train_rows": 2211, "rows_per_second": 75922.04}
    train = [{"step": 9, "rows_per_second": 279.0}, {"step": 18, "rows_per_second": 75922.04}]
    assert _training_note({"seconds": 12.3, "facts": facts, "train": train}) == (
        "12.3 s of training; 75,922 rows/s (median); train rows 2,211"
    )


def test_screen_of_80_columns_breaks_no_word_and_names_omissions():
    long = {**REPORT.tables[0], "name": "customer_identifier_of_the_shop", "vocabulary": "item", "rows": 123456789}
    report = changed(tables=[{**long, "table_bytes": 10**12, "optimizer": "AdagradMomentum"}])
    lines = screen(report, width=80).splitlines()
    (row,) = [line for line in lines if "customer_identifier_of_the_shop" in line]
    assert "123,456,789" in row
    assert "1,000,000,000,352" in row
    assert all(len(line) <= 80 for line in lines if line in row)
    assert "not shown at this width: optimizer" in lines


STAGES = [
    {"stage": "start-up", "cpu_seconds": 8.0, "wall_seconds": 9.0, "peak_bytes": 9 * 10**8, "read_bytes": 10**6},
    {"stage": "ExampleGen", "cpu_seconds": 2.25, "wall_seconds": 1.5, "peak_bytes": 10**9, "read_bytes": 5 * 10**5},
]


@pytest.mark.parametrize("read", ["1.5", "-"])
def test_profile_is_a_table_with_its_sums(tmp_path, read):
    figures = [{**stage, "written_bytes": 0} if read != "-" else {**stage, "read_bytes": None} for stage in STAGES]
    profile = [{"written_bytes": None, **stage} for stage in figures]
    report = changed(profile=profile)
    lines = [line.split() for line in screen(report, width=80).splitlines()]
    written = "-" if read == "-" else "0.0"
    assert ["ExampleGen", "2.2", "1.5", "1,000.0", "-" if read == "-" else "0.5", written] in lines
    assert ["whole", "run", "10.2", "10.5", "1,000.0", read, written] in lines
    html = page(report, tmp_path)
    assert "Time and memory" in html
    assert '<td>whole run</td><td class="n">10.2</td>' in html
    assert json.loads((tmp_path / "report.json").read_text())["profile"][1]["stage"] == "ExampleGen"


def test_screen_shows_paths_as_they_are():
    query = "model = load('/data/[v1]/" + "x" * 60 + "')"
    report = changed(push={"destination": "/data/[v1]/serving/7"}, query=query)
    shown = screen(report, width=40, place="/data/[v1]/report.html")
    assert "/data/[v1]/serving/7" in shown
    assert query in shown


@pytest.mark.tfx
def test_tokens_with_a_line_break_are_a_line_of_the_data():
    import numpy as np
    import pyarrow as pa

    from embedding_core.vocabulary import vocabulary_from_counts
    from pipelines.report.run_figures import _line_breaks

    tokens, counts = pa.array([b"a", b"b\nc"], pa.large_binary()), np.array([2, 3])
    vocabularies = [
        vocabulary_from_counts("note", tokens, counts),
        vocabulary_from_counts("item", tokens[:1], counts[:1]),
    ]
    expected = {"tokens of note with a line break or NUL, which are looked up as unknown": "3"}
    assert _line_breaks(vocabularies) == expected


@pytest.mark.tfx
def test_ignored_files_are_a_line_of_the_data():
    from types import SimpleNamespace

    from pipelines.report.run_figures import _data

    shown = _data(SimpleNamespace(facts={"ingest": {"files_ignored": ["/data/a.csv", "/data/b.csv"]}}))
    assert shown == {"files that match and are ignored, such as": "a.csv, b.csv"}


@pytest.mark.tfx
def test_cached_run_shows_the_baselines_of_its_versions_report(tmp_path):
    from pipelines.report.run_figures import known_quality
    from pipelines.report.run_report import NodeRun

    cached = [NodeRun(node=name, index=1, count=2, state="cached") for name in ("ExampleGen", "EmbeddingPusher")]
    report = changed(
        quality_note="The baselines were made in this run, from the same features.",
        configuration={"evaluation": {"baselines": ["mean"]}},
    )
    save_report(report, str(tmp_path / "7"))
    known = known_quality(str(tmp_path), cached, "7", ["mean"])
    assert known["quality"] == json.loads(json.dumps(REPORT.quality))
    assert known["eval_rows"] == REPORT.eval_rows
    assert known["quality_note"] == "The baselines were made in the run of version 7, from the same features."
    assert (
        known_quality(str(tmp_path), [cached[0], dataclasses.replace(cached[1], state="executed")], "7", ["mean"])
        is None
    )
    assert known_quality(str(tmp_path), cached, "7", ["mean", "trees"]) is None
    assert known_quality(str(tmp_path), cached, "8", ["mean"]) is None
    assert known_quality(str(tmp_path), cached, "", ["mean"]) is None
    (tmp_path / "7" / "report.json").write_text("{")
    assert known_quality(str(tmp_path), cached, "7", ["mean"]) is None
