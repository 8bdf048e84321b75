"""Tests what counts as a difference, and which rows are compared in addition to the real ones."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.proof.parity import EVALUATED, ParityReport, compare, edge_cases, read_rows
from tests.support.tf_examples import example, write_rows


def test_texts_differ_by_infinity_or_not_at_all():
    texts = np.array([[b"a", b"b"], [b"c", b"d"]], object)
    same = compare({"classes": texts}, {"classes": texts.copy()}, tolerance=1e-3, signature="s")
    assert (same.passed, same.max_abs, same.rows) == (True, 0.0, 2)
    for other in (texts[:, ::-1], texts[:1], None, np.ones((2, 2))):
        actual = {} if other is None else {"classes": other}
        assert not compare({"classes": texts}, actual, tolerance=1e-3, signature="s").passed


def report(expected, actual, tolerance=1e-5):
    return compare({"logit": np.array(expected)}, {"logit": np.array(actual)}, tolerance=tolerance, signature="s")


def test_compare_passes_within_the_tolerance():
    found = report([[1.0], [0.0]], [[1.0 + 9e-6], [0.0]])
    assert found.passed
    assert found.reason == ""
    assert found.max_abs == pytest.approx(9e-6)
    assert found.rows == 2


def test_difference_has_mean_of_all_entries_and_tolerance():
    found = report([[1.0], [0.0], [0.0], [0.0]], [[1.5], [0.0], [0.0], [-0.5]], tolerance=0.6).to_dict()
    assert found["differences"]["s/logit"] == {
        "rows": 4,
        "max_abs": 0.5,
        "mean_abs": 0.25,
        "non_finite": 0,
        "within": True,
        "tolerance": 0.6,
    }


def test_compare_is_relative_for_large_values():
    assert report([[1000.0]], [[1000.005]]).passed
    assert not report([[1000.0]], [[1000.02]]).passed


@pytest.mark.parametrize(
    ("expected", "actual"),
    [([[1.0]], [[1.1]]), ([[1.0]], [[np.nan]]), ([[np.nan]], [[np.nan]]), ([[1.0]], [1.0]), ([[np.inf]], [[np.inf]])],
)
def test_compare_does_not_pass(expected, actual):
    found = report(expected, actual)
    assert not found.passed
    assert "s/logit" in found.reason
    assert found.to_dict()["reason"] == found.reason


def test_reason_names_what_the_output_was_compared_with():
    ones, zeros = {"logit": np.ones((2, 1))}, {"logit": np.zeros((2, 1))}
    assert "from the evaluated model" in compare(ones, zeros, tolerance=1e-3, signature=EVALUATED).reason
    assert "from training" in compare(ones, zeros, tolerance=1e-3, signature="raw").reason
    assert "is not finite, as in training" in report([[np.inf]], [[np.inf]]).reason


def test_compare_names_the_rules_that_are_broken():
    expected, actual = np.zeros([3, 2]), np.array([[0, 0], [0, 0.5], [0, 0.25]])
    rules = ["real rows", "word: unknown", "word: unknown"]
    found = compare({"a": expected}, {"a": actual}, tolerance=1e-3, signature="s", rules=rules)
    assert found.broken == {"word: unknown": 0.5}
    assert "word: unknown" in found.reason
    assert found.merged(found).to_dict()["broken"] == {"word: unknown": 0.5}


def test_compare_misses_nothing():
    assert not compare({"a": np.ones(2)}, {}, tolerance=1.0, signature="s").passed
    assert not report(np.zeros([0, 1]), np.zeros([0, 1])).passed
    assert not ParityReport(tolerance=1.0, differences=()).passed


def test_reports_merge_to_the_worst():
    merged = report([1.0], [1.0]).merged(report([1.0], [2.0]))
    assert not merged.passed
    assert merged.max_abs == 1.0
    assert len(merged.differences) == 2


def feature(name, **column):
    return FeatureConfig(name=name, table="t", column=ColumnConfig(name=name, **column), max_sequence_length=0)


CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary="t", vocabulary_size=3, dim=2, oov_rows=1),),
    features=(
        feature("word"),
        feature("list", multivalent=True),
        feature("pieces", separator="|"),
        feature("number", dtype="int64"),
        feature("float", dtype="float32"),
        feature("spared"),
        feature("made", after_transform=True),
    ),
)


def changes(rows):
    """Yield (column, values) of each change that an edge case made to its original row."""
    base = tf.train.Example.FromString(ROW).features.feature
    for case in rows:
        features = tf.train.Example.FromString(case.row).features.feature
        for name in set(base) | set(features):
            if name not in features:
                yield name, []
            elif name not in base or features[name] != base[name]:
                kind = features[name].WhichOneof("kind")
                yield name, list(getattr(features[name], kind).value)


ROW = example({"word": b"a", "list": b"b", "pieces": b"a|b", "spared": b"s", "other": b"o"})


def test_edge_cases_cover_each_column():
    assert edge_cases([], CONFIG) == []
    found = list(changes(edge_cases([ROW], CONFIG, ["spared"])))
    assert {name for name, _ in found} == {"word", "list", "pieces", "number", "float"}
    words = [values for name, values in found if name == "word"]
    assert [] in words
    assert [b""] in words
    assert any(len(value) > 60000 for values in words for value in values)
    assert any(b"\xff" in value for values in words for value in values)
    assert any(values[:1] * 2 == values for name, values in found if name == "list")
    assert [-1] in [values for name, values in found if name == "number"]


@pytest.mark.parametrize(("invalid_id", "outside"), [("error", False), ("drop", True), ("row", True)])
def test_edge_cases_of_raw_ids_follow_their_policy(invalid_id, outside):
    column = ColumnConfig(name="id", dtype="int64", multivalent=True)
    config = EmbeddingConfig(
        tables=(TableConfig(name="t", vocabulary_size=3, dim=2),),
        features=(FeatureConfig(name="id", table="t", column=column, invalid_id=invalid_id),),
    )
    cases = edge_cases([ROW], config)
    assert {case.feature for case in cases} == {"id"}
    ids = [number for _, values in changes(cases) for number in values]
    assert {0, 2} <= set(ids)
    assert any(not 0 <= number < 3 for number in ids) == outside


def test_read_rows_stops_at_the_limit(tmp_path):
    for number in range(2):
        write_rows(tmp_path / f"{number}.gz", [b"%d-a" % number, b"%d-b" % number], "GZIP")
    files = [str(tmp_path / "1.gz"), str(tmp_path / "0.gz")]
    assert read_rows(files, 3) == [b"0-a", b"0-b", b"1-a"]
    assert len(read_rows(files, 100)) == 4


SCORER = """
import os, signal, sys
from embedding_core.proof.scoring import end_with_parent
end_with_parent()
pipe = open(sys.argv[1], "w")
print(os.getpid(), file=pipe, flush=True)
signal.pause()
"""
PROVER = (
    "import sys; from embedding_core.proof.parity import _run; "
    "_run([sys.executable, '-c', *sys.argv[1:]], 'model', 100_000)"
)


def test_scoring_process_ends_when_the_proving_one_is_killed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    prover = subprocess.Popen([sys.executable, "-c", PROVER, SCORER, str(tmp_path / "pipe")])
    with open(tmp_path / "pipe") as pipe:
        scorer = int(pipe.readline())
        prover.kill()
        prover.wait()
        try:
            assert pipe.read() == ""  # the pipe ends with the process that holds its other end
        except BaseException:  # pytest's limit of time
            os.kill(scorer, signal.SIGKILL)
            raise
