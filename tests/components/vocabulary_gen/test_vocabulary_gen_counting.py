"""The counting graph against plain Python, batch by batch."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from components.vocabulary_gen.counting import batch_counts, count_values
from components.vocabulary_gen.counting_plan import CountedFeature
from embedding_core.columns import TokenTable, tokens_of
from embedding_core.config import ColumnConfig

COLUMNS = [
    ColumnConfig(name="text", multivalent=True),
    ColumnConfig(name="number", dtype="int64", multivalent=True),
    ColumnConfig(name="split", separator="|", multivalent=True),
    ColumnConfig(name="other", multivalent=True),
    ColumnConfig(name="float", dtype="float32"),
]
FEATURES = [CountedFeature(name=c.name, column=c, multivalent=None, vocabulary=c.name) for c in COLUMNS]
WORDS = st.lists(st.sampled_from([b"", b"a", b"b", b"a|b", b"|"]), max_size=3)
ROW = st.tuples(
    WORDS, st.lists(st.integers(-2, 2), max_size=3), WORDS, WORDS, st.sampled_from([0.0, -0.0, 0.1, float("nan")])
)


def values_counter(features, base=None):
    return tf.function(lambda values: count_values(features, values, base), reduce_retracing=True, autograph=False)


@pytest.fixture(scope="module")
def count():
    return values_counter(FEATURES)


def values_of(rows):
    kinds = (tf.string, tf.int64, tf.string, tf.string)
    columns = list(zip(*rows, strict=True))
    ragged = [
        tf.RaggedTensor.from_row_lengths(
            tf.constant([value for row in column for value in row], kind), tf.constant(list(map(len, column)), tf.int64)
        )
        for column, kind in zip(columns[:4], kinds, strict=True)
    ]
    return [*ragged, tf.constant(columns[4], tf.float32)]


@settings(deadline=None, max_examples=20)
@given(rows=st.lists(ROW, min_size=1, max_size=12))
def test_counts_are_those_of_the_tokens_row_by_row(count, rows):
    values = values_of(rows)
    for feature, found in batch_counts(FEATURES, count(values)):
        tokens = tokens_of(feature.column, values[FEATURES.index(feature)]).to_list()
        counted = collections.Counter()
        for token, number in zip(found.tokens.to_pylist(), found.counts.tolist(), strict=True):
            counted[token] += number
        assert counted == collections.Counter(token for row in tokens for token in row)
        lengths = collections.Counter(map(len, tokens))
        assert {n: rows for n, rows in enumerate(found.histogram.tolist()) if rows} == dict(lengths)


@pytest.fixture(scope="module")
def count_with_base(tmp_path_factory):
    """Return a counter whose base vocabularies hold "a" and "-1"; the last column has no base vocabulary."""
    path = tmp_path_factory.mktemp("base") / "base.txt"
    path.write_bytes(b"a\n-1\n")
    return values_counter(FEATURES, {column.name: TokenTable(path, 2, 0) for column in COLUMNS[:-1]})


@settings(deadline=None, max_examples=20)
@given(rows=st.lists(ROW, min_size=1, max_size=12))
def test_new_rows_and_tokens_are_those_that_the_base_lacks(count_with_base, rows):
    values = values_of(rows)
    for feature, found in batch_counts(FEATURES, count_with_base(values)):
        tokens = tokens_of(feature.column, values[FEATURES.index(feature)]).to_list()
        new = [[token for token in row if token not in (b"a", b"-1")] for row in tokens]
        expected = (0, 0) if feature.name == "float" else (sum(map(bool, new)), sum(map(len, new)))
        assert (found.new_rows, found.new_tokens) == expected


def test_the_widest_row_counts_values_not_tokens(count):
    values = values_of([([b"a", b""], [], [b"a|b|c"], [], 0.1), ([], [1], [], [], 0.1)])
    widest = {feature.name: found.widest for feature, found in batch_counts(FEATURES, count(values))}
    assert widest == {"text": 2, "number": 1, "split": 1, "other": 0, "float": 1}


def test_features_of_one_kind_stay_apart():
    features = [dataclasses.replace(FEATURES[0], name=name) for name in ("one", "two")]
    values = [tf.constant(["a", "b", "a"]), tf.constant(["b", "b", ""])]
    counted = batch_counts(features, values_counter(features)(values))
    found = {f.name: dict(zip(c.tokens.to_pylist(), c.counts.tolist(), strict=True)) for f, c in counted}
    assert found == {"one": {b"a": 2, b"b": 1}, "two": {b"b": 2}}
