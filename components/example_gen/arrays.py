"""Converts Arrow columns to what a tf.Example can hold: bytes, int64, float32, or lists of these."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import Batch, flat_values, is_list, map_values, values_per_row
from components.example_gen.values import number
from embedding_core.errors import DataError

MISSING_INT = -(2**63)  # as in `embedding_core.columns`, which loads TensorFlow
_FLOAT_MAX = float(np.finfo(np.float32).max)
_FLOAT_MIN = float(np.finfo(np.float32).tiny)


class UnsupportedTypeError(Exception):
    """A column has a type that an example cannot hold; the caller adds the column's name and file."""


def normal(column: pa.Array) -> pa.Array:
    """Convert the column to large_binary, int64, float32, float64, date32, timestamp[us] (UTC), or a list of these.

    Dictionaries are decoded. Booleans become 0 and 1, decimals become numbers, float16 becomes float32. NaN becomes
    null, and so does -2**63, which marks a missing value in an int64 tensor. Nulls within lists are dropped. A list
    column with at most one value in every row becomes a scalar column.

    Raises:
      UnsupportedTypeError: the type cannot be converted (a struct, a list of lists), or a value does not fit int64.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        return normal(column.dictionary_decode())
    return _list(column) if is_list(column.type) else _scalar(column)


def _list(column: pa.Array) -> pa.Array:
    kept = column.flatten()
    values = normal(kept)
    if is_list(kept.type):
        raise UnsupportedTypeError(str(column.type))
    lengths = values_per_row(column)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(valid)])[np.concatenate([[0], np.cumsum(lengths)])]
    if len(lengths) and np.diff(ends).max() > 1:
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values.drop_null())
    return values.drop_null().take(pa.array(ends[1:] - 1, mask=np.diff(ends) == 0))


def _scalar(column: pa.Array) -> pa.Array:
    kind = column.type
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return column.cast(pa.large_binary())
    if types.is_null(kind):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if types.is_boolean(kind) or types.is_integer(kind):
        return _whole(column)
    if types.is_decimal(kind):
        return _whole(column) if kind.scale == 0 else _cast(column, pa.float64())
    if types.is_floating(kind):
        wide = column.cast(pa.float32()) if types.is_float16(kind) else column
        return pc.if_else(pc.is_nan(wide), pa.scalar(None, wide.type), wide)
    if types.is_date(kind):
        return column.cast(pa.date32())
    if types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.timestamp("us"))
    raise UnsupportedTypeError(str(kind))


def _whole(column: pa.Array) -> pa.Array:
    whole = _cast(column, pa.int64())
    return pc.if_else(pc.equal(whole, MISSING_INT), pa.scalar(None, pa.int64()), whole)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise UnsupportedTypeError(
            f"{column.type}, with a value that {kind} cannot hold ({error}; write ids as text)"
        ) from error


def kind_of(column: pa.Array) -> str:
    """Return the kind of feature that the column becomes: "bytes", "int64" or "float"."""
    kind = column.type.value_type if is_list(column.type) else column.type
    if pa.types.is_integer(kind):
        return "int64"
    return "float" if pa.types.is_floating(kind) else "bytes"


def tokens(name: str, batch: Batch, *, kept_as_is: bool = False) -> pa.Array:
    """Convert the column to tokens: text and int64 stay as they are, times become ISO text, floats become float32.

    Args:
      name: name of the column.
      batch: the rows.
      kept_as_is: whether the column is only passed on: float32 then stays as it is.

    Raises:
      DataError: a value needs a float64, and a tf.Example holds float32; or it is so close to 0 that TensorFlow reads
        it as 0. Tokens would change or become equal.
    """
    column = batch.columns[name]
    values = flat_values(column)
    if pa.types.is_temporal(values.type):
        return _rewrap(column, time_texts(values))
    if pa.types.is_float64(values.type) or (pa.types.is_float32(values.type) and not kept_as_is):
        return _rewrap(column, _narrow(name, batch, column, values))
    return column


def plain(column: pa.Array) -> pa.Array:
    """Convert the column without loss to what an example can hold: times and float64 become text."""
    values = flat_values(column)
    if pa.types.is_temporal(values.type):
        return _rewrap(column, time_texts(values))
    return _rewrap(column, values.cast(pa.string())) if pa.types.is_float64(values.type) else column


def time_texts(values: pa.Array) -> pa.Array:
    """Convert dates and times to ISO text, as large_binary; a fraction of zeros is left out."""
    return pc.replace_substring_regex(values.cast(pa.string()), r"\.0+$", "").cast(pa.large_binary())


def _narrow(name: str, batch: Batch, column: pa.Array, values: pa.Array) -> pa.Array:
    narrow = values.cast(pa.float32(), safe=False)
    too_small = pc.and_(pc.not_equal(values, 0.0), pc.less(pc.abs(narrow), _FLOAT_MIN))
    changed = pc.not_equal(values.cast(pa.string()), narrow.cast(pa.string()))
    position = pc.index(pc.or_(changed, too_small), True).as_py()
    if position < 0:
        return narrow
    row = position
    if is_list(column.type):
        row = int(np.searchsorted(column.offsets.to_numpy(), position, side="right")) - 1
    # The value is not shown: the column may be private.
    raise DataError(
        f"{batch.place(int(batch.index[row]))}: a value of token column {name!r} needs a float64, and a tf.Example "
        f"holds float32, of which TensorFlow reads those below {_FLOAT_MIN:.2g} as 0: store such tokens as text or as "
        "int64."
    )


def _rewrap(column: pa.Array, values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(column.offsets, values) if is_list(column.type) else values


def floats(name: str, batch: Batch) -> tuple[pa.Array, dict[int, str]]:
    """Convert the column to float32.

    Text is parsed only if all values of the batch are text, as in CSV; "nan" counts as missing. Times become seconds
    since 1970.

    Returns:
      The column, and by position of the row the reason why its value is not a finite float32.

    Raises:
      DataError: the column holds text or bytes, and the batch is not all text.
    """
    column = batch.columns[name]
    values = flat_values(column)
    reasons: dict[int, str] = {}
    if batch.is_text:
        values, reasons = _parsed(values, batch.decimal)
    elif pa.types.is_temporal(values.type):
        values = pc.divide(values.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False), 1e6)
    elif kind_of(values) == "bytes" and values.null_count < len(values):
        row = batch.place(int(batch.index[0]))
        raise DataError(
            f"{row}: column {name!r} holds text, and the configuration reads it as float: store numbers there."
        )
    wide = values.cast(pa.float64(), safe=False) if kind_of(values) != "bytes" else pa.nulls(len(values), pa.float64())
    beyond = pc.fill_null(pc.greater(pc.abs(wide), _FLOAT_MAX), False).to_numpy(zero_copy_only=False)
    for position in np.flatnonzero(beyond).tolist():
        reasons[position] = f"{wide[position].as_py()!r} is not a finite float32"
    if is_list(column.type):
        rows = np.searchsorted(column.offsets.to_numpy(), list(reasons), side="right") - 1
        reasons = dict(zip(rows.tolist(), reasons.values(), strict=True))
    return _rewrap(column, wide.cast(pa.float32(), safe=False)), reasons


def _parsed(values: pa.Array, decimal: str) -> tuple[pa.Array, dict[int, str]]:
    reasons: dict[int, str] = {}
    try:
        if decimal != ".":
            raise pa.ArrowInvalid  # Arrow accepts only a decimal point
        numbers = values.cast(pa.float64())
    except pa.ArrowInvalid:
        array, reasons = map_values(values, lambda value: float(number(value, decimal)), float("nan"))
        numbers = pa.array(array)
    return pc.if_else(pc.is_nan(numbers), None, numbers), reasons
