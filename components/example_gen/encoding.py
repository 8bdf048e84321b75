"""Encodes columns as serialized tf.Examples, with the same bytes for the same row on every run.

The protobuf libraries write the features of an example in an order that changes from run to run (a hash map's), so the
wire format is written here: features in the order of their names. A missing value has no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import is_list

# Tags: field << 3 | 2 (length-delimited), of Feature's oneof and of messages with one or two fields.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_FIRST, _SECOND = b"\x0a", b"\x12"


def examples(columns: Mapping[str, pa.Array]) -> list[bytes]:
    """Encode columns of large_binary or string, int64, float32, or lists of these as serialized tf.Examples.

    Args:
      columns: at least one, all of one length; null and empty lists are left out.
    """
    entries = [_entries(name, columns[name]) for name in sorted(columns)]
    return [_field(_FIRST, b"".join(row)) for row in zip(*entries, strict=True)]


def _entries(name: str, column: pa.Array) -> Sequence[bytes]:
    """Encode the map entry of one feature in each row; b"" if the value is missing."""
    encode = _encoder(name, column.type.value_type if is_list(column.type) else column.type)
    if is_list(column.type):
        return [encode(values) if values else b"" for values in column.to_pylist()]
    encoded = column.dictionary_encode()
    distinct = np.empty(len(encoded.dictionary) + 1, dtype=object)
    distinct[:] = [*(encode([value]) for value in encoded.dictionary.to_pylist()), b""]
    indices = pc.fill_null(encoded.indices, len(distinct) - 1).to_numpy(zero_copy_only=False)
    entries: list[bytes] = distinct[indices].tolist()
    return entries


def _encoder(name: str, kind: pa.DataType) -> Callable[[Sequence[Any]], bytes]:
    key = _field(_FIRST, name.encode())
    if pa.types.is_integer(kind):
        return lambda values: _entry(key, _INT64_LIST, _field(_FIRST, b"".join(map(_varint, values))))
    if pa.types.is_floating(kind):
        return lambda values: _entry(key, _FLOAT_LIST, _field(_FIRST, np.array(values, "<f4").tobytes()))
    if pa.types.is_string(kind):
        return lambda values: _entry(key, _BYTES_LIST, b"".join(_field(_FIRST, value.encode()) for value in values))
    return lambda values: _entry(key, _BYTES_LIST, b"".join(_field(_FIRST, value) for value in values))


def _entry(key: bytes, kind: bytes, values: bytes) -> bytes:
    return _field(_FIRST, key + _field(_SECOND, _field(kind, values)))


def _field(tag: bytes, payload: bytes) -> bytes:
    return tag + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes((value,))
    rest = value & 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)
