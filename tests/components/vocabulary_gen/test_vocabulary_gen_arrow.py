from __future__ import annotations

import pyarrow as pa
import pytest
import tensorflow as tf

from components.vocabulary_gen.arrow_counter import rows_from_arrow, transform_input
from embedding_core.errors import DataError

pytestmark = pytest.mark.tfx
INTEGERS = pa.array([[1, 2], None, [], [3, None]], pa.list_(pa.int64()))


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_nulls_and_empty_lists_are_no_values(kind):
    rows = rows_from_arrow("c", INTEGERS.cast(kind(pa.int64())))
    assert rows.to_list() == [[1, 2], [], [], [3]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["a", None, ""]), [[b"a"], [], [b""]]),
        (pa.array([b"\xff", None], pa.large_binary()), [[b"\xff"], []]),
        (pa.array([1, None], pa.uint8()), [[1], []]),
        (pa.array([True, False]), [[1], [0]]),
        (pa.array([0.5, None], pa.float64()), [[0.5], []]),
        (INTEGERS[1:], [[], [], [3]]),
    ],
)
def test_plain_columns_have_at_most_one_value(values, expected):
    assert rows_from_arrow("c", values).to_list() == expected


@pytest.mark.parametrize("values", [pa.nulls(3), pa.array([None], pa.list_(pa.binary())), pa.array([], pa.int64())])
def test_columns_without_values_have_no_rows(values):
    assert rows_from_arrow("c", values) is None


def test_values_that_are_no_tokens_are_refused():
    with pytest.raises(DataError, match="holds timestamp"):
        rows_from_arrow("c", pa.array([0], pa.timestamp("s")))


def test_transform_gets_its_columns_as_from_tf_examples():
    rows = tf.ragged.constant([[1], [], [3]], dtype=tf.int64, row_splits_dtype=tf.int64)
    dense = transform_input("c", rows, 3, tf.io.FixedLenFeature([1], tf.int64, default_value=[7]))
    assert dense.numpy().tolist() == [[1], [7], [3]]
    scalar = transform_input("c", rows[:1], 1, tf.io.FixedLenFeature([], tf.int64))
    assert scalar.numpy().tolist() == [1]
    sparse = transform_input("c", rows, 3, tf.io.VarLenFeature(tf.int64))
    assert sparse.indices.numpy().tolist() == [[0, 0], [2, 0]]
    assert transform_input("c", None, 2, tf.io.VarLenFeature(tf.string)).dense_shape.numpy()[0] == 2
    with pytest.raises(DataError, match="0 values in a row, but Transform reads 1"):
        transform_input("c", rows, 3, tf.io.FixedLenFeature([], tf.int64))
