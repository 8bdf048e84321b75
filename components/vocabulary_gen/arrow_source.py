"""Counts Arrow record batches, as TFXIO reads them from any payload; the tokens are those of the fast path."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from components.vocabulary_gen.counting import CountBatch, batch_counts, values_counter
from components.vocabulary_gen.gathering import Gathered
from components.vocabulary_gen.plan import CountingPlan
from components.vocabulary_gen.sources import Features, check_width, with_dtypes
from embedding_core.config import TokenDtype
from embedding_core.errors import DataError, EmbeddingError
from embedding_core.tokens import Values

__all__ = ["ArrowCounter", "rows_from_arrow"]

_DTYPES: dict[tf.DType, TokenDtype] = {tf.string: "string", tf.int64: "int64", tf.float32: "float32"}


def rows_from_arrow(column: str, array: pa.Array) -> tf.RaggedTensor | None:
    """The values of each row of an Arrow column; nulls are no values.

    Args:
      column: its name, for messages.
      array: [B] of lists or of plain values.

    Returns:
      string, int64 or float32 [B, None]; None where there is no value at all.

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


class ArrowCounter:
    """Counts record batches; graph functions are traced once for all batches with the same dtypes."""

    def __init__(self, plan: CountingPlan, source: str) -> None:
        self._plan = plan
        self._source = source
        self._counters: dict[Features, CountBatch] = {}

    def count(self, batch: pa.RecordBatch, transformed: Mapping[str, Values], gathered: Gathered) -> None:
        """Count one batch; what makes it useless is a problem among the facts, not an exception.

        Args:
          batch: a column for each raw column.
          transformed: Transform's output for the batch; empty where no feature needs it.
          gathered: what to add the counts to.
        """
        try:
            self._count(batch, transformed, gathered)
        except EmbeddingError as error:
            gathered.set_problem(str(error))

    def _count(self, batch: pa.RecordBatch, transformed: Mapping[str, Values], gathered: Gathered) -> None:
        raw = {f.column.name for f in self._plan.features if not f.column.after_transform} & set(batch.schema.names)
        found = {name: rows_from_arrow(name, batch.column(batch.schema.get_field_index(name))) for name in sorted(raw)}
        rows = {name: values for name, values in found.items() if values is not None}
        features = with_dtypes(self._plan, {name: _DTYPES[values.dtype] for name, values in rows.items()})
        empty = tf.RaggedTensor.from_row_lengths(tf.constant([], tf.string), tf.zeros([batch.num_rows], tf.int64))
        values = []
        for feature in features:
            column = feature.column
            if column.after_transform or column.name in rows:
                gathered.add_dtype(feature.name, column.dtype, self._source)
            values.append(transformed[column.name] if column.after_transform else rows.get(column.name, empty))
        if features not in self._counters:
            self._counters[features] = values_counter(features)
        counts = list(batch_counts(features, self._counters[features](values)))
        for feature, counted in counts:
            check_width(feature, counted, self._source)
        gathered.add_batch(batch.num_rows, counts)
