"""Tests what `compare` knows the rows of the eval split by."""

import pytest

from pipelines.config import config_from_mapping
from pipelines.lineage.graph import Node
from pipelines.report.run_figures import eval_digest

VALUES = {"data": "rows.csv", "label": "bought", "features": {"categorical": ["item"]}}


@pytest.fixture
def digest(tmp_path):
    """Return a function that returns the digest of a run of some settings, pieces and files for evaluation."""
    (tmp_path / "rows.csv").write_text("item,bought\n")

    def of_run(pieces="a", judged="", rows=9, **settings):
        data = {"rows": "r", "pieces": [{"sha256": piece} for piece in pieces]}
        data |= {"eval": [{"sha256": piece} for piece in judged]} if judged else {}
        facts = {"data": data, "ingest": {"splits": {"train": 90, "eval": rows}}}
        node = Node(id=1, type="Examples", uri="/e", facts=facts, producer=None, inputs=())
        return eval_digest(config_from_mapping({**VALUES, **settings}, tmp_path), node)

    return of_run


def test_features_do_not_change_the_eval_rows(digest):
    assert digest(features={"categorical": ["item", "shop"], "dense": ["price"]}) == digest()
    assert digest("ab") == digest("ba")


@pytest.mark.parametrize(
    "changes",
    [
        {"pieces": "b"},
        {"rows": 8},
        {"label": {"column": "bought", "above": 3}},
        {"label": {"column": "bought", "kind": "regression"}},
        {"split": {"by": "hash", "key": "item"}},
        {"row_filters": [{"column": "item", "in": ["x"]}]},
        {"sample_weight": "price"},
        {"evaluation": {"metrics": ["GroupAUC"], "user": "shop"}},
    ],
)
def test_what_chooses_or_weighs_rows_changes_the_eval_rows(digest, changes):
    assert digest(**changes) != digest()


def test_function_of_a_computed_label_chooses_it(digest, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []
    for label, code in (("a", "def f(inputs): pass"), ("b", "def f(inputs): pass"), ("a", "def f(inputs): return 1")):
        (tmp_path / "my_labels.py").write_text(code)
        made.append(digest(label={"key": label}, preprocessing_fn="my_labels.f"))
    assert len(set(made)) == 3


def test_files_for_evaluation_alone_are_the_eval_rows(digest):
    assert digest("a", "t") == digest("ab", "t") != digest("a", "u")
