"""Tests `compare`, which prints the differences between the kept reports of two versions."""

import dataclasses
import json
import shutil

import pytest

from pipelines.report.html_report import save_report
from tests.pipelines.commands.exit_code import exit_code
from tests.pipelines.report.test_html_report import REPORT

PUSHER = [{"node": "EmbeddingPusher", "state": "executed", "seconds": 1.0, "execution": 2, "made_in": 1.0}]
VALUES = {"AUC": 0.91234, "BinaryCrossEntropy": 0.2, "Recall@10": 0.085}
EVALUATION = [{"metric": name, "value": value, "bound": "", "outcome": "no bound"} for name, value in VALUES.items()]


def saved(folder, push=None, **more):
    """Save and keep a report of version 7, with changes."""
    push = dataclasses.replace(REPORT.push, **(push or {}))
    save_report(dataclasses.replace(REPORT, push=push, **more), str(folder / "report"), str(folder / "reports"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Keep three reports; drawing one takes a second."""
    folder = tmp_path_factory.mktemp("kept")
    settings = {"model": {"arguments": {"hidden_units": [128]}}, "seed": 7}
    quality = [{"scorer": "this model", "metrics": {"AUC": 0.95, "log loss": 0.3}}]
    saved(folder, nodes=PUSHER, evaluation=EVALUATION)
    evaluation = [{**row, "value": value} for row, value in zip(EVALUATION, (0.95, 0.25, 0.085), strict=True)]
    saved(
        folder, {"version": "8"}, nodes=PUSHER, quality=quality, configuration=settings, evaluation=evaluation,
        curves={**REPORT.curves, "loss": {"train": [(1, 0.6), (2, 0.4)]}},
    )  # fmt: skip
    saved(folder, {"pushed": False, "reason": "too few rows"})
    return folder


@pytest.fixture
def work_dir(kept, tmp_path):
    return shutil.copytree(kept, tmp_path / "work_dir")


def compared(capsys, *arguments):
    code = exit_code("compare", *arguments)
    return code, *capsys.readouterr()


def test_what_changed_is_printed_by_how_much_and_if_it_is_better(work_dir, capsys):
    code, out, _ = compared(capsys, work_dir, 7, 8)
    words = [line.split() for line in out.splitlines()]
    assert code == 0
    assert words[:4] == [
        ["metric", "7", "8", "change"],
        ["Recall@10", "0.085", "0.085", "+0", "same"],
        ["AUC", "0.91234", "0.95", "+0.03766", "better"],
        ["BinaryCrossEntropy", "0.2", "0.25", "+0.05", "worse"],
    ]
    assert "model.arguments.hidden_units: [64, 32] -> [128]" in out
    assert "1 settings and 5 figures differ: `--all` prints them" in out
    assert "seed" not in out
    assert "warning" not in out


def test_metrics_with_a_bound_are_first_and_then_rankings(tmp_path, capsys):
    names = ("AUC", "Precision", "Recall", "BinaryCrossEntropy", "NDCG@10")
    rows = [{"metric": name, "value": 0.5, "bound": "", "outcome": "no bound"} for name in names]
    rows[3] |= {"bound": "at most 1", "outcome": "met"}
    for version in ("7", "8"):
        saved(tmp_path, {"version": version}, nodes=PUSHER, evaluation=rows)
    lines = compared(capsys, tmp_path, 7, 8)[1].splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["BinaryCrossEntropy", "NDCG@10", "AUC", "Precision"]


def test_many_changes_are_ten_lines_of_at_most_100_letters(tmp_path, capsys):
    for version in ("7", "8"):
        settings = {f"key{place}": version * 200 for place in range(30)}
        saved(tmp_path, {"version": version}, nodes=PUSHER, configuration=settings, evaluation=EVALUATION)
    lines = compared(capsys, tmp_path, 7, 8)[1].splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) == 100


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"eval_digest": "a"}, False),
        ({"eval_digest": "b"}, True),
        ({"eval_digest": "a", "configuration": {"data": 2}}, False),
        ({"configuration": {"data": 2}}, True),
        ({"eval_rows": 99}, True),
    ],
)
def test_other_eval_rows_are_a_warning(tmp_path, capsys, changes, warned):
    saved(tmp_path, nodes=PUSHER, eval_digest="a" if "eval_digest" in changes else "")
    saved(tmp_path, {"version": "8"}, nodes=PUSHER, **changes)
    assert ("warning: the eval rows differ (1234 and " in compared(capsys, tmp_path, 7, 8)[1]) == warned


def test_page_has_the_curves_of_both(work_dir, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert compared(capsys, work_dir, 7, 8, "--html", page)[1] == f"wrote {page}\n"
    html = page.read_text()
    shown = ["train 7", "train 8", "this model 8", "Recall@K", "+0.03766", ">better</td>", "[64, 32]"]
    assert [words for words in shown if words not in html] == []
    assert "clicks &amp; &lt;b&gt;buys" in html


def test_figures_by_token_are_counted_and_only_all_prints_them(tmp_path, capsys):
    rows = [{"feature": f"f{place}", "vocabulary": "v", "new_rows": 0.1, "new_tokens": 0.2} for place in range(30)]
    for version, drift in (("7", []), ("8", rows)):
        saved(tmp_path, {"version": version}, nodes=PUSHER, drift=drift)
    _, out, _ = compared(capsys, tmp_path, 7, 8)
    assert "drift" not in out
    assert "0 settings and 121 figures differ: `--all` prints them" in out
    assert compared(capsys, tmp_path, 7, 8, "--all")[1].count(".new_rows ") == 30
    assert "drift.f0.new_rows" in compared(capsys, tmp_path, 7, 8, "--json")[1]


@pytest.mark.parametrize("ignored", [("--html", "page.html", "--json"), ("--set", "seed=2")])
def test_option_without_effect_is_refused(work_dir, capsys, ignored):
    code, _, err = compared(capsys, work_dir, 7, 8, *ignored)
    assert (code, "leave" in err) == (1, True)


def test_json_holds_both_values(work_dir, capsys):
    _, out, _ = compared(capsys, work_dir, 7, 8, "--json")
    assert json.loads(out)["settings"] == {"model.arguments.hidden_units": [[64, 32], [128]]}


def test_version_with_itself_has_no_differences(work_dir, capsys):
    assert compared(capsys, work_dir, 7, 7)[1].endswith("\nnothing differs\n")
    assert compared(capsys, work_dir, 7, 7, "--all")[1] == "settings: no differences\nfigures: no differences\n"


def test_refused_run_is_compared_by_its_name(work_dir, capsys):
    _, out, _ = compared(capsys, work_dir, 7, "refused-20260102T030405")
    assert "too few rows" in out


def test_version_without_report_is_one_error_that_names_others(work_dir, capsys):
    code, _, err = compared(capsys, work_dir, 7, 9)
    assert code == 1
    assert "version '9' has no report" in err
    assert "choose from" in err or "did you mean" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"push": {}, "configuration": {}}', '{"push": 1}', "[" * 100_000])
def test_damaged_report_is_one_error(work_dir, capsys, text):
    (work_dir / "reports" / "8" / "report.json").write_text(text)
    code, _, err = compared(capsys, work_dir, 7, 8)
    assert (code, len(err.splitlines())) == (1, 1)


def test_entries_of_a_list_with_one_name_are_all_compared(tmp_path, capsys):
    for version, low in (("7", 1), ("8", 2)):
        filters = [{"column": "price", "min": low}, {"column": "price", "min": 9}]
        saved(tmp_path, {"version": version}, nodes=PUSHER, configuration={"row_filters": filters})
    assert "row_filters.price.min: 1 -> 2" in compared(capsys, tmp_path, 7, 8)[1]
