"""Encodes columns as serialized tf.Examples, with the same bytes for the same row on every run.

The protobuf libraries write the features of an example in the order of a hash map, which changes from run to run.
This module therefore writes the wire format itself, column by column, with features in the order of their names. A
missing value has no feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import Mask, flat_values, is_list, value_type, values_per_row
from embedding_core.varints import varints

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
