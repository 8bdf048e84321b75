"""Reads the index of a TensorFlow checkpoint, which says where in the data files the bytes of each tensor are.

TensorFlow's readers always load the whole of a tensor that was saved in one piece, which doubles the
memory of a table. With the index, a tensor can be read from its data file in slices. The index file is an uncompressed
LevelDB table (https://github.com/google/leveldb/blob/main/doc/table_format.md) of a `BundleHeaderProto` under the empty
key and one `BundleEntryProto` per tensor and per saved slice of a tensor. All checksums are masked CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from embedding_core.errors import CheckpointError
from embedding_core.storage import masked, open_file

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_END_OF_NAME = b"\0\1"


class _Part(NamedTuple):
    """Consecutive rows of a tensor, or all of it.

    Attributes:
      shard: number of the data file.
      offset: first byte in that file.
      size: number of bytes.
      crc32c: checksum of the bytes, masked.
    """

    shard: int
    offset: int
    size: int
    crc32c: int


class BundleEntry(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
      dtype: type of its numbers.
      shape: its shape.
      parts: the parts in which it was saved, in the order of the rows; empty if a part does not hold whole rows.
    """

    dtype: tf.DType
    shape: tuple[int, ...]
    parts: tuple[_Part, ...]


def read_index(prefix: str) -> tuple[int, dict[str, BundleEntry]]:
    """Read `<prefix>.index`.

    Returns:
      The number of data files, and every tensor by its key.

    Raises:
      CheckpointError: the file is missing, damaged, or compressed.
    """
    path = f"{prefix}.index"
    try:
        with open_file(path) as file:
            return _parsed(file.read())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path!r} does not exist: give the prefix of a checkpoint, without '.index'.") from error
    except (ValueError, IndexError, TypeError, struct.error, DecodeError, OSError) as error:
        raise CheckpointError(
            f"{path!r} is not a readable checkpoint index ({error}): take another checkpoint."
        ) from error


def _parsed(data: bytes) -> tuple[int, dict[str, BundleEntry]]:
    shards = 1
    tensors: dict[str, BundleEntryProto] = {}
    slices: dict[str, list[BundleEntryProto]] = {}
    for key, value in _records(data):
        if not key:
            shards = int(BundleHeaderProto.FromString(value).num_shards)
        elif key.startswith(b"\0"):  # a slice; the slices of a tensor are sorted by their first row
            name = key[1 : key.index(_END_OF_NAME)].decode()
            slices.setdefault(name, []).append(BundleEntryProto.FromString(value))
        else:
            tensors[key.decode()] = BundleEntryProto.FromString(value)
    return shards, {key: _entry(message, slices.get(key, [])) for key, message in tensors.items()}


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its last bytes are not those of an index")
    _, at = _varint(footer, 0)  # skips offset and size of the meta-index, which is empty
    _, at = _varint(footer, at)
    for _, handle in _block(data, *_handle(footer, at)):
        yield from _block(data, *_handle(handle, 0))


def _handle(data: bytes, at: int) -> tuple[int, int]:
    offset, at = _varint(data, at)
    return offset, _varint(data, at)[0]


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    checked = data[offset : offset + size + 1]
    recorded = struct.unpack("<I", data[offset + size + 1 : offset + size + _TRAILER_BYTES])[0]
    if recorded != masked(google_crc32c.value(checked)):
        raise ValueError("the checksum of a block differs from the recorded one")
    if checked[-1] != 0:
        raise ValueError("a block is compressed")
    restarts = struct.unpack("<I", checked[-5:-1])[0]
    end = size - 4 - 4 * restarts
    at, key = 0, b""
    while at < end:
        shared, at = _varint(checked, at)
        fresh, at = _varint(checked, at)
        length, at = _varint(checked, at)
        key = key[:shared] + checked[at : at + fresh]
        at += fresh
        yield key, checked[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _entry(message: BundleEntryProto, slices: Sequence[BundleEntryProto]) -> BundleEntry:
    shape = tuple(int(dimension.size) for dimension in message.shape.dim)
    parts = [message]
    if message.slices:
        whole_rows = sum(_rows(each, shape) for each in message.slices) == shape[0]
        parts = list(slices) if whole_rows and len(slices) == len(message.slices) else []
    return BundleEntry(dtype=tf.dtypes.as_dtype(message.dtype), shape=shape, parts=tuple(map(_part, parts)))


def _part(message: BundleEntryProto) -> _Part:
    return _Part(message.shard_id, message.offset, message.size, message.crc32c)


def _rows(part: TensorSliceProto, shape: tuple[int, ...]) -> int:
    """Return the number of rows of a slice if it holds all their columns, else 0."""
    lengths = [
        extent.length if extent.HasField("length") else size for extent, size in zip(part.extent, shape, strict=True)
    ]
    return int(lengths[0]) if tuple(lengths[1:]) == shape[1:] else 0
