"""Converts raw columns to tokens, with the same TensorFlow operations in counting, training and serving.

The tokens of each type of value:

=====================================  ==================================================================
string                                 its bytes as in the data: any encoding, spaces kept
string with a `separator`              the pieces between separators
int64                                  decimal text: ``-7``
float32                                the shortest decimal text that reads back as the same float: ``0.1``,
                                       ``1234567``; ``-0.0`` and denormals are ``0``
missing, empty list, "" and NaN        no token (a zero vector later, not an unknown token)
int64 -2**63                           no token: `MISSING_INT` marks a missing value in dense tensors
a token that holds LF, CR or NUL       a token that no text vocabulary can hold: it is counted separately,
                                       has no row, and is looked up as an unknown token
=====================================  ==================================================================

The tokens of a value do not depend on other values; the counting of vocabularies relies on this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import tensorflow as tf

from embedding_core.columns.ids import kept
from embedding_core.config import ColumnConfig
from embedding_core.errors import DataError

MISSING_INT = -(2**63)
MISSING_FLOAT = float("nan")  # one object: NaN != NaN, but specifications that hold the same object are equal

Values: TypeAlias = "tf.Tensor | tf.SparseTensor | tf.RaggedTensor"

DTYPES = {"string": tf.string, "int64": tf.int64, "float32": tf.float32}
_LARGEST_FLOAT_DIGITS = 9
_SMALLEST_FLOAT_DIGITS = 6


def parse_spec(columns: Iterable[ColumnConfig]) -> dict[str, tf.io.RaggedFeature | tf.io.FixedLenFeature]:
    """Specify how to read raw columns from serialized tf.Examples; columns with `after_transform` are left out.

    String and int64 columns are read as ragged features, so a missing value, an empty list and a list of any
    length are all valid. A fixed-length int64 feature would need a default value, which could also occur in the
    data. Float columns are read with a fixed length (NaN for missing), because reading a malformed float list
    with a variable length can crash the process inside TensorFlow's parser.

    Returns:
      Column name -> feature specification for `tf.io.parse_example`.

    Raises:
      DataError: a float column is multivalent, or a column is given two dtypes.
    """
    spec: dict[str, tf.io.RaggedFeature | tf.io.FixedLenFeature] = {}
    for column in columns:
        if column.after_transform:
            continue
        feature = _feature(column)
        if spec.setdefault(column.name, feature) != feature:
            raise DataError(
                f"column {column.name!r} is read as {column.dtype} and as another type: "
                "give every feature that reads it the same `dtype`."
            )
    return spec


def _feature(column: ColumnConfig) -> tf.io.RaggedFeature | tf.io.FixedLenFeature:
    if column.dtype != "float32":
        return tf.io.RaggedFeature(DTYPES[column.dtype], row_splits_dtype=tf.int64)
    if column.many:
        raise DataError(
            f"column {column.name!r} holds lists of floats: as a categorical feature a float column must have at most "
            "one value per row; write the values as strings or integers."
        )
    return tf.io.FixedLenFeature([], tf.float32, default_value=MISSING_FLOAT)


def tokens_of(column: ColumnConfig, values: Values) -> tf.RaggedTensor:
    """Compute the tokens of each row of a column.

    Args:
      column: description of the column.
      values: [B], [B, n], or sparse or ragged [B, None]; string, int64 or float32 as `column.dtype` says.

    Returns:
      string [B, None]: the tokens of each row in the order of the data, none of them empty.

    Raises:
      DataError: the values have another dtype than the column (found while tracing).
    """
    texts = texts_of(column, values)
    return kept(texts, tf.not_equal(texts.values, ""))


def texts_of(column: ColumnConfig, values: Values) -> tf.RaggedTensor:
    """Compute the tokens as `tokens_of` does, but keep "" for each value that gives no token."""
    rows = rows_of(column, values)
    texts = rows.with_values(text_of(column, rows.values))
    if column.separator is None:
        return texts
    pieces = tf.strings.split(texts.values, column.separator)
    return texts.with_values(pieces).merge_dims(1, 2)


def rows_of(column: ColumnConfig, values: Values) -> tf.RaggedTensor:
    """Convert the values of a column to a ragged tensor with one row per example; inner dimensions are flattened.

    Args:
      column: description of the column.
      values: [B], [B, n], or sparse or ragged [B, None].

    Returns:
      [B, None] values, in the dtype given.

    Raises:
      DataError: the values have another dtype than the column (found while tracing).
    """
    if values.dtype != DTYPES[column.dtype]:
        raise DataError(
            f"column {column.name!r} is {values.dtype.name} in the data, but {column.dtype} in the configuration: "
            "change one of the two."
        )
    if isinstance(values, tf.RaggedTensor):
        return values.merge_dims(1, -1) if values.shape.rank != 2 else values
    if isinstance(values, tf.SparseTensor):
        return tf.RaggedTensor.from_sparse(values, row_splits_dtype=tf.int64)
    size = tf.shape(values, out_type=tf.int64)[0]
    width = tf.math.floordiv(tf.size(values, out_type=tf.int64), tf.maximum(size, 1))
    splits = tf.range(size + 1) * width
    return tf.RaggedTensor.from_row_splits(tf.reshape(values, [-1]), splits, validate=False)


def text_of(column: ColumnConfig, values: tf.Tensor) -> tf.Tensor:
    """Convert flat values to text of the same shape; NaN and `MISSING_INT` become ""."""
    if column.dtype == "int64":
        return tf.where(tf.equal(values, MISSING_INT), "", tf.strings.as_string(values))
    if column.dtype == "float32":
        return tf.where(tf.math.is_nan(values), "", _shortest_text(tf.where(values == 0.0, 0.0, values)))
    return values


def _shortest_text(values: tf.Tensor) -> tf.Tensor:
    """Format floats with the fewest significant digits, 6 to 9, from which the same float32 can be read."""
    text = tf.strings.as_string(values, precision=_LARGEST_FLOAT_DIGITS, shortest=True)
    for digits in range(_LARGEST_FLOAT_DIGITS - 1, _SMALLEST_FLOAT_DIGITS - 1, -1):
        shorter = tf.strings.as_string(values, precision=digits, shortest=True)
        text = tf.where(tf.strings.to_number(shorter) == values, shorter, text)
    return text
