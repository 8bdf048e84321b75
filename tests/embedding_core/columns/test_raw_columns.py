"""Reading columns from serialized rows."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import pytest
import tensorflow as tf

from embedding_core.columns import MISSING, Columns
from embedding_core.config import ColumnConfig

COLUMNS = (
    ColumnConfig(name="word"),
    ColumnConfig(name="id", dtype="int64"),
    ColumnConfig(name="list", dtype="int64", multivalent=True),
)


def row(**columns):
    """Make a row of lists of texts and numbers, which may be empty."""
    example = tf.train.Example()
    for name, values in columns.items():
        feature = example.features.feature[name]
        kind = feature.bytes_list if name == "word" else feature.int64_list
        kind.SetInParent()
        kind.value.extend(values)
    return example.SerializeToString()


@pytest.mark.parametrize(
    ("rows", "words", "ids"),
    [
        ([row(word=[b"a"], id=[1])], [b"a"], [1]),
        ([row(word=[], id=[]), row(word=[b"a"], id=[1]), row()], [b"", b"a", b""], [None, 1, None]),
        ([row(word=[], id=[])], [b""], [None]),
        ([row(), row()], [b"", b""], [None, None]),
        ([], [], []),
    ],
)
def test_empty_list_is_as_a_missing_value(rows, words, ids):
    """TFX's CsvExampleGen writes an empty list for an empty cell."""
    read = tf.function(Columns(COLUMNS, {}).parse)(tf.constant(rows, tf.string, shape=[len(rows)])).categorical
    assert read["word"].numpy().tolist() == words
    assert read["id"].numpy().tolist() == [MISSING[tf.int64] if value is None else value for value in ids]
    assert read["list"].to_list() == [[] for _ in rows]


def test_long_list_in_a_row_takes_no_more_memory_than_itself():
    """Padded to the longest list, the rows would take 1.3 TB for each column."""
    rows = tf.constant([row(word=[b""] * 400_000, id=[1] * 400_000), *[b""] * 400_000])
    with pytest.raises(tf.errors.InvalidArgumentError, match="column word, id has several values"):
        tf.function(Columns(COLUMNS, {}).parse)(rows)


def test_column_that_is_dense_too_is_read_in_both_forms():
    dense = {"id": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64), "word": tf.io.VarLenFeature(tf.string)}
    read = tf.function(Columns(COLUMNS, dense).parse)(tf.constant([row(word=[b"a"], id=[3]), row(id=[])]))
    assert read.categorical["id"].numpy().tolist() == [3, MISSING[tf.int64]]
    assert read.dense["id"].to_list() == [[3], []]
    assert tf.sparse.to_dense(read.dense["word"]).numpy().tolist() == [[b"a"], [b""]]


def test_several_values_of_a_column_of_one_are_refused_by_name():
    rows = tf.constant([row(word=[b"a"], id=[1, 2], list=[1, 2]), row(word=[b"a", b"b"])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="column word, id has several values in a row"):
        tf.function(Columns(COLUMNS, {}).parse)(rows)
