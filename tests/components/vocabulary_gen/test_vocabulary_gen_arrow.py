"""Record batches of other payloads: their tf.Examples, and what cannot be counted."""

from __future__ import annotations

import pyarrow as pa
import pytest
import tensorflow as tf

from components.vocabulary_gen.examples_counter import arrow_examples
from embedding_core.errors import DataError

pytestmark = pytest.mark.tfx
INTEGERS = pa.array([[1, 2], None, [], [3, None]], pa.list_(pa.int64()))


def encoded(values):
    """Return the values of each row, and the dtype of the column; None for a row without a feature."""
    records, dtypes = arrow_examples(pa.record_batch([values], ["c"]), ["c", "absent"])
    rows = []
    for record in records:
        feature = tf.train.Example.FromString(record).features.feature
        kind = feature["c"].WhichOneof("kind") if "c" in feature else None
        rows.append(list(getattr(feature["c"], kind).value) if kind else None)
    return rows, dtypes.get("c")


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_nulls_and_empty_lists_are_no_values(kind):
    assert encoded(INTEGERS.cast(kind(pa.int64()))) == ([[1, 2], None, None, [3]], "int64")


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        (pa.array(["a", None, ""]), [[b"a"], None, [b""]], "string"),
        (pa.array([b"\xff", None], pa.large_binary()), [[b"\xff"], None], "string"),
        (pa.array([1, None], pa.uint8()), [[1], None], "int64"),
        (pa.array([True, False]), [[1], [0]], "int64"),
        (pa.array([0.5, None], pa.float64()), [[0.5], None], "float32"),
        (INTEGERS[1:], [None, None, [3]], "int64"),
    ],
)
def test_plain_columns_have_at_most_one_value(values, expected, dtype):
    assert encoded(values) == (expected, dtype)


@pytest.mark.parametrize("values", [pa.nulls(3), pa.array([None], pa.list_(pa.binary())), pa.array([], pa.int64())])
def test_columns_without_values_have_no_dtype(values):
    assert encoded(values) == ([None] * len(values), None)


def test_values_that_are_no_tokens_are_refused():
    with pytest.raises(DataError, match="holds timestamp"):
        encoded(pa.array([0], pa.timestamp("s")))
