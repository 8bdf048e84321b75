"""Counts tokens in Arrow record batches, which TFXIO reads from any payload. `file_counter` counts the same tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from components.vocabulary_gen.assembling import base_tables
from components.vocabulary_gen.counting import CountBatch, batch_counts, values_counter
from components.vocabulary_gen.counting_plan import CountingPlan
from components.vocabulary_gen.file_counter import Features, check_width, with_dtypes
from components.vocabulary_gen.saved_transform import SavedTransform
from components.vocabulary_gen.source_counts import SourceCounts
from embedding_core.columns import Values
from embedding_core.config import TokenDtype
from embedding_core.errors import DataError, EmbeddingError

_DTYPES: dict[tf.DType, TokenDtype] = {tf.string: "string", tf.int64: "int64", tf.float32: "float32"}


def rows_from_arrow(column: str, array: pa.Array) -> tf.RaggedTensor | None:
    """Return the values of each row of an Arrow column; nulls are left out.

    Args:
      column: its name, for messages.
      array: [B] of lists or of plain values.

    Returns:
      string, int64 or float32 [B, None]; None without values.

    Raises:
      DataError: values that cannot be tokens, such as structures or timestamps.
    """
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        row, flat = pc.list_parent_indices(array), pc.list_flatten(array)
    else:
        row, flat = pa.array(np.arange(len(array))), array
    row = row.filter(flat.is_valid()).to_numpy(zero_copy_only=False)
    flat = flat.drop_null()
    if not len(flat):
        return None
    lengths = np.bincount(row, minlength=len(array)).astype(np.int64)
    return tf.RaggedTensor.from_row_lengths(_flat_values(column, flat), lengths, validate=False)


def _flat_values(column: str, flat: pa.Array) -> tf.Tensor:
    kind = flat.type
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return tf.constant(flat.cast(pa.large_binary()).to_numpy(zero_copy_only=False), tf.string)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return tf.constant(flat.cast(pa.int64()).to_numpy())
    if pa.types.is_floating(kind):
        return tf.constant(flat.cast(pa.float32()).to_numpy())
    raise DataError(f"column {column!r} holds {kind}: tokens are strings, integers or floats; convert the column.")


def transform_input(column: str, rows: tf.RaggedTensor | None, size: int, feature: Any) -> Values:
    """Return the values of a column in the form in which `tf.io.parse_example` would give them to Transform.

    Args:
      column: its name, for messages.
      rows: [B, None], or None without values.
      size: B.
      feature: how Transform reads the column.

    Raises:
      DataError: the values do not have the dtype that Transform reads, a row does not have the number of values that it
        reads, or `feature` is of an unsupported kind.
    """
    if rows is None:
        rows = tf.RaggedTensor.from_row_lengths(tf.constant([], feature.dtype), tf.zeros([size], tf.int64))
    if rows.dtype != feature.dtype:
        raise DataError(
            f"column {column!r} is {rows.dtype.name}, but Transform reads {feature.dtype.name}: change one."
        )
    if isinstance(feature, tf.io.VarLenFeature):
        return rows.to_sparse()
    if isinstance(feature, tf.io.RaggedFeature) and not feature.partitions:
        return rows
    if not isinstance(feature, tf.io.FixedLenFeature):
        raise DataError(
            f"column {column!r} is read by Transform as {feature}: of other payloads than tf.Example only "
            "columns of fixed length or plain lists can be counted after Transform."
        )
    width = math.prod(feature.shape)
    if feature.default_value is not None:
        empty = tf.equal(rows.row_lengths(), 0)
        value = np.broadcast_to(feature.default_value, feature.shape).reshape(-1)
        filling = tf.tile(tf.constant(value, feature.dtype), [tf.reduce_sum(tf.cast(empty, tf.int32))])
        defaults = tf.RaggedTensor.from_row_lengths(filling, tf.where(empty, np.int64(width), np.int64(0)))
        rows = tf.concat([rows, defaults], axis=1)
    wrong = np.flatnonzero(rows.row_lengths().numpy() != width)
    if wrong.size:
        raise DataError(
            f"column {column!r} has {int(rows.row_lengths()[wrong[0]])} values in a row, but Transform reads {width}: "
            "correct the data, or its schema."
        )
    return tf.reshape(rows.values, [size, *feature.shape])


class ArrowCounter:
    """Counts record batches; graph functions are traced once for all batches with the same dtypes.

    Does not set rows aside: the reader of the payload has already parsed them.
    """

    def __init__(self, plan: CountingPlan, source: str) -> None:
        self._plan = plan
        self._source = source
        self._counters: dict[Features, CountBatch] = {}
        self._base = base_tables(plan)
        self._transform = SavedTransform(plan.transform_graph) if plan.transform_graph else None

    def count(self, batch: pa.RecordBatch, gathered: SourceCounts) -> None:
        """Count one batch; record an error of the batch as a problem, instead of raising it.

        Args:
          batch: a column for each raw column.
          gathered: what to add the counts to.
        """
        try:
            self._count(batch, gathered)
        except EmbeddingError as error:
            gathered.set_problem(f"{self._source!r}: {error}")

    def _count(self, batch: pa.RecordBatch, gathered: SourceCounts) -> None:
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        raw = {feature.column.name for feature in self._plan.features if not feature.column.after_transform}
        values_of = {name: rows_from_arrow(name, columns[name]) for name in sorted(raw & set(columns))}
        rows = {name: values for name, values in values_of.items() if values is not None}
        transformed = self._transformed(columns, batch.num_rows)
        features = with_dtypes(self._plan, {name: _DTYPES[values.dtype] for name, values in rows.items()})
        empty = tf.RaggedTensor.from_row_lengths(tf.constant([], tf.string), tf.zeros([batch.num_rows], tf.int64))
        values = []
        for feature in features:
            column = feature.column
            if column.after_transform or column.name in rows:
                gathered.add_dtype(feature.name, column.dtype, self._source)
            values.append(transformed[column.name] if column.after_transform else rows.get(column.name, empty))
        self._add(features, values, batch.num_rows, gathered)

    def _transformed(self, columns: Mapping[str, pa.Array], size: int) -> Mapping[str, Values]:
        if self._transform is None:
            return {}
        inputs = {}
        for name, feature in self._transform.spec.items():
            rows = rows_from_arrow(name, columns[name]) if name in columns else None
            inputs[name] = transform_input(name, rows, size, feature)
        return self._transform.of_columns(inputs)

    def _add(self, features: Features, values: list[Values], size: int, gathered: SourceCounts) -> None:
        if features not in self._counters:
            self._counters[features] = values_counter(features, self._base)
        counts = list(batch_counts(features, self._counters[features](values)))
        for feature, counted in counts:
            check_width(feature, counted, self._source)
        gathered.add_batch(size, counts)
