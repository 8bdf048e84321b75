"""Defines batches of rows on their way through ExampleGen, summarizes their columns, and encodes them as tf.Examples.

The same row has the same bytes on every run.

The protobuf libraries write the features of an example in the order of a hash map, which changes from run to run.
This module therefore writes the wire format itself, column by column, with features in the order of their names. A
missing value has no feature.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.column_summary import ColumnSummary
from components.example_gen.values import Value, number
from embedding_core.errors import DataError
from embedding_core.storage import bounds
from embedding_core.varints import varints

Mask = npt.NDArray[np.bool_]
T = TypeVar("T")

_PLACE = re.compile(r"\A.*?(?::\d+|, (?:row|record) \d+): ", re.DOTALL)
SHOWN = 5


@dataclasses.dataclass
class BadRows:
    """The rows that could not be used: how many, and the reasons of the first few.

    Attributes:
      count: number of rows set aside (of lines, if a malformed CSV row spans several).
      first: place and reason of each of the first few.
    """

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    @property
    def shown(self) -> str:
        """The first rows, of those with one reason the first alone, as the end of a message."""
        by_reason: dict[str, str] = {}
        for row in self.first:
            by_reason.setdefault(_PLACE.sub("", row), row)
        rows = list(by_reason.values())
        return f" The first: {rows[0]}" if len(rows) == 1 else "\n  ".join([" The first:", *rows] if rows else [""])

    def add(self, place: str, reason: str, rows: int = 1) -> None:
        """Set rows aside."""
        self.count += rows
        if len(self.first) < SHOWN:
            self.first.append(f"{place}: {reason}")


@dataclasses.dataclass
class FirstRows:
    """The first rows of a file, which a check reads; it stops after `bounds.SAMPLE_BYTES` in any case.

    Attributes:
      rows: number of rows to read, without the bad ones.
      ended: whether the file ended before any bound; set by the reader.
    """

    rows: int
    ended: bool = False

    @property
    def most(self) -> int:
        """The number of rows to read with the bad ones."""
        return max(self.rows, bounds.SAMPLE_ROWS + 1)


@dataclasses.dataclass
class Batch:
    """Some rows of one file, as columns.

    Attributes:
      columns: one array per column that was read, all of one length; scalars or lists; null is missing.
      index: position of each row among those that were read; `place`, `content` and `record` take such positions.
      place: file and line (or row, or record) of a row, as an error names it.
      content: returns bytes that encode all values of each row, whatever the order of columns and rows.
      is_text: whether every value is text, as in CSV.
      decimal: decimal separator of numbers that are text.
      record: returns the row as it was read, if it was a serialized tf.Example; else None.
    """

    columns: Mapping[str, pa.Array]
    index: npt.NDArray[np.int64]
    place: Callable[[int], str]
    content: Callable[[npt.NDArray[np.int64]], list[bytes]]
    is_text: bool = False
    decimal: str = "."
    record: Callable[[int], bytes] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def keep(self, mask: Mask) -> Batch:
        """Keep the rows whose mask is true."""
        if mask.all():
            return self
        chosen = pa.array(mask)
        columns = {name: column.filter(chosen) for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns, index=self.index[mask])

    def with_column(self, name: str, column: pa.Array) -> Batch:
        """Return a copy of the batch in which the column of this name is replaced."""
        return dataclasses.replace(self, columns={**self.columns, name: column})

    def set_aside(self, bad: BadRows, reasons: Mapping[int, str]) -> Batch:
        """Return the batch without the rows at the given positions; add these to `bad` with their reasons."""
        mask = np.ones(len(self), dtype=bool)
        for position, reason in reasons.items():
            mask[position] = False
            bad.add(self.place(int(self.index[position])), reason)
        return self.keep(mask)

    def column(self, name: str) -> pa.Array:
        """Return a column as a scalar array; a list column must have at most one value a row.

        Raises:
          DataError: a row holds several values.
        """
        column = self.columns[name]
        if not is_list(column.type):
            return column
        lengths = values_per_row(column)
        if (lengths > 1).any():
            row = int(np.argmax(lengths > 1))
            raise DataError(
                f"column {name!r} holds {lengths[row]} values in {self.place(int(self.index[row]))}: rows can be "
                "filtered and split only by a column of one value a row."
            )
        positions = np.where(lengths == 1, np.cumsum(lengths) - 1, -1)
        return column.flatten().take(pa.array(positions, mask=positions < 0))


def flat_values(column: pa.Array) -> pa.Array:
    """Return the values of a list column one by one; a scalar column as it is."""
    return column.flatten() if is_list(column.type) else column


def values_per_row(column: pa.Array) -> npt.NDArray[np.int64]:
    """Count the values of each row: the length of a list, 1 for a scalar, and 0 for a null."""
    counts = pc.fill_null(pc.list_value_length(column), 0) if is_list(column.type) else column.is_valid()
    numbers: npt.NDArray[np.int64] = counts.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def value_type(column: pa.Array) -> pa.DataType:
    """Return the type of the values, also of those in lists."""
    return column.type.value_type if is_list(column.type) else column.type


def of_rows(column: pa.Array, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return the reasons by row, given those by position among the values of a column, which may have lists."""
    if not is_list(column.type):
        return dict(reasons)
    rows = np.searchsorted(column.offsets.to_numpy(), list(reasons), side="right") - 1
    return dict(zip(rows.tolist(), reasons.values(), strict=True))


def map_values(column: pa.Array, function: Callable[[Value], T], missing: T) -> tuple[npt.NDArray[Any], dict[int, str]]:
    """Apply a function to every value of a scalar column, once per distinct value.

    Args:
      column: the values; bytes are passed as text (UTF-8, other bytes as surrogates), float32 as `widened` makes it.
      function: may raise ValueError, for a value that makes its row bad.
      missing: the result for a null.

    Returns:
      The results `[rows]`, of the dtype of `missing`, and the reasons for bad rows by position. The result of a bad row
      is `missing`.
    """
    encoded = column.dictionary_encode()
    results: list[T] = []
    reasons: dict[int, str] = {}
    for position, value in enumerate(_values(encoded.dictionary)):
        try:
            results.append(function(value))
        except ValueError as error:
            results.append(missing)
            reasons[position] = str(error)
    results.append(missing)
    indices = pc.fill_null(encoded.indices, len(results) - 1).to_numpy(zero_copy_only=False)
    table = np.empty(len(results), dtype=np.array([missing]).dtype)
    table[:] = results
    if not reasons:
        return table[indices], {}
    bad = np.isin(indices, list(reasons))
    return table[indices], {int(row): reasons[int(indices[row])] for row in np.flatnonzero(bad)}


def _values(dictionary: pa.Array) -> Iterator[Value]:
    values: Sequence[Any] = widened(dictionary).to_pylist()
    for value in values:
        yield value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def widened(values: pa.Array) -> pa.Array:
    """Convert float32 to float64 so that a fraction keeps its decimal text: 0.1 stays 0.1; return other types as given.

    The float64 that equals the float32 0.1 is 0.10000000149: it would be above 0.1, and equal to no 0.1 of a file or of
    the configuration.
    """
    if not pa.types.is_float32(values.type):
        return values
    exact = values.cast(pa.float64())
    return pc.if_else(pc.equal(exact, pc.floor(exact)), exact, values.cast(pa.string()).cast(pa.float64()))


# Converts Arrow columns to what a tf.Example can hold: bytes, int64, float32, or lists of these.

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
      UnsupportedTypeError: the type cannot be converted (a struct, a list of lists), a value does not fit int64, or a
        time is not within the years 1 to 9999.
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
        return _checked_times(column.cast(pa.date32()), datetime.date.min, datetime.date.max)
    if types.is_timestamp(kind):
        times = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.timestamp("us"))
        return _checked_times(times, datetime.datetime.min, datetime.datetime.max)
    raise UnsupportedTypeError(str(kind))


def _checked_times(times: pa.Array, first: datetime.date, last: datetime.date) -> pa.Array:
    low, high = pa.scalar(first, times.type), pa.scalar(last, times.type)
    if not pc.all(pc.and_(pc.less_equal(low, times), pc.less_equal(times, high))).as_py():
        raise UnsupportedTypeError(
            f"{times.type}, with a time that is not within the years 1 to 9999, such as PostgreSQL's infinity (write "
            "such a value as null)"
        )
    return times


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
    kind = value_type(column)
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
        return rewrapped(column, time_texts(values))
    if pa.types.is_float64(values.type) or (pa.types.is_float32(values.type) and not kept_as_is):
        return rewrapped(column, _narrow(name, batch, column, values))
    return column


def plain(column: pa.Array) -> pa.Array:
    """Convert the column without loss to what an example can hold: times and float64 become text."""
    values = flat_values(column)
    if pa.types.is_temporal(values.type):
        return rewrapped(column, time_texts(values))
    return rewrapped(column, values.cast(pa.string())) if pa.types.is_float64(values.type) else column


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
    (row,) = of_rows(column, {position: ""})
    # The value is not shown: the column may be private.
    raise DataError(
        f"{batch.place(int(batch.index[row]))}: a value of token column {name!r} needs a float64, and a tf.Example "
        f"holds float32, of which TensorFlow reads those below {_FLOAT_MIN:.2g} as 0: store such tokens as text or as "
        "int64."
    )


def rewrapped(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return values that replace those of a column: in lists as before, if the column has lists."""
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
    return rewrapped(column, wide.cast(pa.float32(), safe=False)), of_rows(column, reasons)


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


# Summarizes the columns of a batch of rows. No TFX, no TensorFlow.


def summary_of(column: pa.Array, chosen: Mask, *, known_to_differ: bool) -> ColumnSummary:
    """Summarize the chosen rows of a column.

    Args:
      column: texts or numbers, or lists of these.
      chosen: mask of the rows.
      known_to_differ: whether values of previous batches differ; if so, the values of this batch are not compared.
    """
    rows = column.filter(pa.array(chosen))
    counts = values_per_row(rows)
    counts = counts[counts > 0]
    if not len(counts):
        return ColumnSummary(kind=kind_of(column))
    values = flat_values(rows).drop_null()
    summary = ColumnSummary(
        kind=kind_of(column),
        rows=len(counts),
        values=int(counts.sum()),
        fewest=int(counts.min()),
        most=int(counts.max()),
        only="",
    )
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
        summary.smallest, summary.largest = float(numbers.min()), float(numbers.max())
        summary.total = float(numbers.sum())
    if not known_to_differ and pc.all(pc.equal(values, values[0])).as_py():
        summary.only = _digest(values[0].as_py())
    return summary


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


_Lengths: TypeAlias = npt.NDArray[np.int64]

# Tags, field << 3 | 2 (length-delimited): of Feature's oneof, and of the first and second field of any message.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_FIRST, _SECOND = b"\x0a", b"\x12"
_MANY = 1 << 16  # from this length on, sorting the lengths is faster than a table of all possible lengths


def examples(columns: Mapping[str, pa.Array]) -> list[bytes]:
    """Encode columns of large_binary or string, int64, float32, or lists of these as serialized tf.Examples.

    Args:
      columns: at least one, all of one length; null and empty lists are left out.
    """
    parts = [part for name in sorted(columns) for part in _entries(name, columns[name])]
    payloads = _joined(parts)
    rows: list[bytes] = _joined([_prefixes(_lengths(payloads), b""), payloads]).to_pylist()
    return rows


def _joined(parts: list[pa.Array]) -> pa.Array:
    """Concatenate binary arrays row by row; a null counts as empty."""
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*parts, separator, null_handling="replace", null_replacement="")


def _lengths(values: pa.Array) -> _Lengths:
    lengths: _Lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return lengths


def _entries(name: str, column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Encode the map entry of one feature: the bytes before the values of each row, and the values."""
    key = _field(_FIRST, name.encode())
    kind = value_type(column)
    if not is_list(column.type) and not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        texts = column.cast(pa.large_binary())
        return _prefixes(_lengths(texts), key, _BYTES_LIST, _FIRST, missing=values_per_row(column) == 0), texts
    if pa.types.is_integer(kind):
        tag, encoded = _INT64_LIST, _varints(flat_values(column))
    elif pa.types.is_floating(kind):
        tag, encoded = _FLOAT_LIST, _floats(flat_values(column))
    else:
        tag, encoded = _BYTES_LIST, _texts(flat_values(column))
    payloads = _by_row(column, encoded)
    repeated = b"" if tag == _BYTES_LIST else _FIRST  # numbers are packed: one field for all of them
    return _prefixes(_lengths(payloads), key, tag, repeated, missing=values_per_row(column) == 0), payloads


def _by_row(column: pa.Array, encoded: pa.Array) -> pa.Array:
    """Concatenate the encoded values of each row of a list column; a scalar column has one value a row."""
    if not is_list(column.type):
        return encoded
    ends = np.concatenate([[0], np.cumsum(values_per_row(column))])
    offsets, data = _offsets(encoded), encoded.buffers()[2]
    return _binary(offsets[ends], data)


def _offsets(values: pa.Array) -> _Lengths:
    return np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]


def _binary(offsets: _Lengths, data: pa.Buffer) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _texts(values: pa.Array) -> pa.Array:
    """Encode each text as a field; a null becomes empty."""
    texts = values.cast(pa.large_binary())
    missing = texts.is_null().to_numpy(zero_copy_only=False)
    return _joined([_prefixes(_lengths(texts), None, missing=missing), texts])


def _floats(values: pa.Array) -> pa.Array:
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    present = pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype("<f4")[is_valid]
    ends = np.cumsum(4 * is_valid, dtype=np.int64)
    return _binary(np.concatenate([[0], ends]), pa.py_buffer(np.ascontiguousarray(present)))


def _varints(values: pa.Array) -> pa.Array:
    """Encode each integer as a varint; a null becomes empty."""
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    numbers = pc.drop_null(values.cast(pa.int64())).to_numpy(zero_copy_only=False).view(np.uint64)
    groups, sizes = varints(numbers)
    lengths = np.zeros(len(values), np.int64)
    lengths[is_valid] = sizes
    return _binary(np.concatenate([[0], np.cumsum(lengths)]), pa.py_buffer(groups))


def _prefixes(
    lengths: _Lengths,
    key: bytes | None,
    tag: bytes = b"",
    repeated: bytes = b"",
    *,
    missing: Mask | None = None,
) -> pa.Array:
    """Return the bytes that precede the values of each row, given the values' length; null for a missing value."""
    distinct, indices = _unique(lengths)
    encoded = [_prefix(length, key, tag, repeated) for length in distinct.tolist()]
    return pa.array(encoded, pa.large_binary()).take(pa.array(indices, mask=missing))


def _unique(lengths: _Lengths) -> tuple[_Lengths, _Lengths]:
    """Return the distinct lengths in order, and the position of each row's length among them."""
    if not len(lengths) or lengths.max() >= _MANY:
        distinct, indices = np.unique(lengths, return_inverse=True)
        return distinct, indices
    is_present = np.bincount(lengths) > 0
    return np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[lengths]


def _prefix(length: int, key: bytes | None, tag: bytes, repeated: bytes) -> bytes:
    if not key:
        return _FIRST + _varint(length)
    values = repeated + _varint(length) if repeated else b""
    feature = tag + _varint(len(values) + length) + values
    entry = key + _SECOND + _varint(len(feature) + length) + feature
    return _FIRST + _varint(len(entry) + length) + entry


def _field(tag: bytes, payload: bytes) -> bytes:
    return tag + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
