"""Encodes Arrow record batches, which TFXIO reads from any payload, as tf.Examples: these are counted in one way."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

from embedding_core.config import TokenDtype
from embedding_core.errors import DataError


def arrow_examples(batch: pa.RecordBatch, names: Iterable[str]) -> tuple[list[bytes], dict[str, TokenDtype]]:
    """Encode some columns of a batch as serialized tf.Examples; nulls and empty lists have no feature.

    Args:
      batch: columns of lists or of plain values.
      names: names of the columns; the batch need not have them.

    Returns:
      The examples, one a row; and the dtype of each column that has a value.

    Raises:
      DataError: a column has values that cannot be tokens, such as structures or timestamps.
    """
    columns: dict[str, pa.Array] = {}
    dtypes: dict[str, TokenDtype] = {}
    for name in sorted({*names} & {*batch.schema.names}):
        array = batch.column(batch.schema.get_field_index(name))
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            row, values = pc.list_parent_indices(array), pc.list_flatten(array)
        else:
            row, values = pa.array(np.arange(len(array))), array
        lengths = np.bincount(row.filter(values.is_valid()).to_numpy(), minlength=len(array))
        values = values.drop_null()
        if len(values):
            dtypes[name], kind = _dtype_of(name, values.type)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            starts = pa.array(offsets, pa.int64(), mask=np.append(lengths == 0, False))
            columns[name] = pa.LargeListArray.from_arrays(starts, values.cast(kind))
    if not columns:
        return [b""] * batch.num_rows, {}
    encoder = RecordBatchToExamplesEncoder()
    return encoder.encode(pa.record_batch(list(columns.values()), list(columns))), dtypes


def _dtype_of(column: str, kind: pa.DataType) -> tuple[TokenDtype, pa.DataType]:
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind):
        return "string", pa.large_binary()
    if types.is_integer(kind) or types.is_boolean(kind):
        return "int64", pa.int64()
    if types.is_floating(kind):
        return "float32", pa.float32()
    raise DataError(f"column {column!r} holds {kind}: tokens are strings, integers or floats; convert the column.")
