from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.columns import parse_spec, tokens_of
from embedding_core.config import ColumnConfig
from embedding_core.errors import DataError
from embedding_core.vocabulary import save_vocabulary, vocabulary_from_counts
from tests.support.tf_examples import example

TEXT, SPLIT = ColumnConfig(name="c"), ColumnConfig(name="c", separator="|")
INTEGER, FLOAT = ColumnConfig(name="c", dtype="int64"), ColumnConfig(name="c", dtype="float32")


def parsed(column, *rows):
    values = tf.io.parse_example([example(row) for row in rows], parse_spec([column]))
    return tokens_of(column, values["c"]).to_list()


def test_missing_values_empty_lists_and_strings_are_no_token():
    assert parsed(TEXT, {}, {"c": None}, {"c": [b""]}, {"c": [b"a"]}) == [[], [], [], [b"a"]]
    assert parsed(INTEGER, {}, {"c": None}, {"c": [0]}) == [[], [], [b"0"]]
    assert parsed(FLOAT, {}, {"c": None}, {"c": [float("nan")]}, {"c": [0.1]}) == [[], [], [], [b"0.1"]]


def test_lists_and_separators_keep_the_order():
    assert parsed(SPLIT, {"c": [b"b|a||b", b"", b"|c"]}, {"c": []}) == [[b"b", b"a", b"b", b"c"], []]


def test_bytes_and_spaces_stay_as_they_are():
    assert parsed(TEXT, {"c": [b"\xff\xfe"]}, {"c": [b" a "]}, {"c": [b"1.0"]}) == [[b"\xff\xfe"], [b" a "], [b"1.0"]]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1, b"0.1"), (1234567, b"1234567"), (-0.0, b"0"), (1 / 3, b"0.33333334"), (16777216, b"16777216")],
)
def test_floats_have_their_shortest_text(number, text):
    assert tokens_of(FLOAT, tf.constant([number], tf.float32)).to_list() == [[text]]


def test_float_text_reads_back_as_the_same_float():
    numbers = np.frombuffer(np.random.default_rng(0).bytes(400_000), np.float32)
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) >= np.finfo(np.float32).tiny)]
    texts = tokens_of(FLOAT, tf.constant(numbers)).flat_values.numpy()
    assert (np.array([np.float32(text) for text in texts]) == numbers).all()


@pytest.mark.parametrize("width", [None, 1])
def test_dense_sparse_and_ragged_give_the_same_tokens(width):
    dense = tf.constant(["a|b", "", "c"]) if width is None else tf.constant([["a|b"], [""], ["c"]])
    rows = tf.reshape(dense, [3, 1])
    kinds = [dense, tf.sparse.from_dense(rows), tf.RaggedTensor.from_tensor(rows)]
    assert [tokens_of(SPLIT, kind).to_list() for kind in kinds] == [[[b"a", b"b"], [], [b"c"]]] * 3


@pytest.mark.parametrize("shape", [[0], [0, 1], [3, 0]])
def test_batches_without_values_keep_their_size(shape):
    function = tf.function(lambda values: tokens_of(SPLIT, values))
    assert function(tf.zeros(shape, tf.string)).to_list() == [[]] * shape[0]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.binary(max_size=4), max_size=3), min_size=1, max_size=6))
def test_each_value_becomes_its_tokens_on_its_own(rows):
    column = ColumnConfig(name="c", separator="|", multivalent=True)
    together = tokens_of(column, tf.ragged.constant(rows, dtype=tf.string, ragged_rank=1)).to_list()
    assert together == [[piece for value in row for piece in value.split(b"|") if piece] for row in rows]


def test_another_dtype_than_the_columns_is_refused():
    with pytest.raises(DataError, match=r"'c' is int64 in the data, but string"):
        tokens_of(TEXT, tf.constant([1], tf.int64))


def test_float_columns_are_never_read_with_a_variable_length():
    assert isinstance(parse_spec([FLOAT])["c"], tf.io.FixedLenFeature)
    with pytest.raises(DataError, match="lists of floats"):
        parse_spec([ColumnConfig(name="c", dtype="float32", multivalent=True)])


def test_one_column_with_two_dtypes_is_refused():
    with pytest.raises(DataError, match="'c' is read as"):
        parse_spec([TEXT, INTEGER])


def test_transformed_columns_are_not_parsed():
    assert parse_spec([ColumnConfig(name="c", after_transform=True)]) == {}


def test_tensorflow_reads_every_row_of_a_saved_vocabulary(tmp_path):
    import pyarrow as pa

    odd = [b" lead", b"trail ", b" ", b"\t", b"\xef\xbb\xbfmark", b"\xff", "\u2028".encode(), b"\x0b", b"a,b", b"#"]
    counts = np.arange(len(odd), 0, -1)
    vocabulary = vocabulary_from_counts("odd", pa.array(odd, pa.large_binary()), counts)
    save_vocabulary(vocabulary, tmp_path)
    lines = tf.lookup.TextFileInitializer(
        str(tmp_path / "odd.txt"),
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    assert tf.lookup.StaticHashTable(lines, -1).lookup(tf.constant(odd)).numpy().tolist() == list(range(len(odd)))
