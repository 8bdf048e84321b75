"""The index of a TensorFlow checkpoint: where in its data files each tensor lies.

TensorFlow's readers hand out a tensor that was saved whole only whole, which for a table takes as much
memory again. With the index a tensor is read from its data file in slices. The file is a LevelDB table
(https://github.com/google/leveldb/blob/main/doc/table_format.md) without compression, of a
`BundleHeaderProto` under the empty key and one `BundleEntryProto` per tensor
(tensorflow/core/protobuf/tensor_bundle.proto); all checksums are masked CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import tensorflow as tf

from embedding_core.errors import CheckpointError

__all__ = ["BundleEntry", "Part", "crc32c", "fields", "numbers", "read_index", "unmask"]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_END_OF_NAME = b"\0\1"


class Part(NamedTuple):
    """Consecutive rows of a tensor, or all of it.

    Attributes:
      shard: number of the data file. offset, size: the bytes in there.
      crc32c: checksum of the bytes, unmasked.
    """

    shard: int
    offset: int
    size: int
    crc32c: int


class BundleEntry(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
      dtype: its type. shape: its shape.
      parts: what it was saved in, in the order of the rows; empty where that is not in whole rows.
    """

    dtype: tf.DType
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def crc32c(data: bytes, before: int = 0) -> int:
    """CRC-32C of the data, going on from that of what came before."""
    return int(google_crc32c.extend(before, data))


def unmask(masked: int) -> int:
    """The checksum that TensorFlow and LevelDB store rotated and offset."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def read_index(prefix: str) -> tuple[int, dict[str, BundleEntry]]:
    """Read `<prefix>.index`.

    Returns:
      The number of data files, and every tensor by its key.

    Raises:
      CheckpointError: the file is missing, damaged, or compressed.
    """
    path = f"{prefix}.index"
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            data = file.read()
        shards, tensors = 1, {}
        slices: dict[str, list[bytes]] = {}
        for key, value in _records(data):
            if not key:
                shards = int(fields(value).get(1, [1])[0])
            elif key.startswith(b"\0"):  # a slice: the name, and in the order of their first rows, where it lies
                slices.setdefault(key[1 : key.index(_END_OF_NAME)].decode(), []).append(value)
            else:
                tensors[key.decode()] = value
        entries = {key: _entry(value, slices.get(key, [])) for key, value in tensors.items()}
    except tf.errors.NotFoundError as error:
        raise CheckpointError(f"{path!r} does not exist: give the prefix of a checkpoint, without '.index'.") from error
    except (ValueError, IndexError, KeyError, TypeError, struct.error, tf.errors.OpError) as error:
        raise CheckpointError(
            f"{path!r} is no readable checkpoint index ({error}): take another checkpoint."
        ) from error
    return shards, entries


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its last bytes are not those of an index")
    _, at = _varint(footer, 0)  # offset and size of the meta-index, which is empty
    _, at = _varint(footer, at)
    for _, handle in _block(data, *_handle(footer, at)):
        yield from _block(data, *_handle(handle, 0))


def _handle(data: bytes, at: int) -> tuple[int, int]:
    offset, at = _varint(data, at)
    return offset, _varint(data, at)[0]


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    checked = data[offset : offset + size + 1]
    if unmask(struct.unpack("<I", data[offset + size + 1 : offset + size + _TRAILER_BYTES])[0]) != crc32c(checked):
        raise ValueError("a block has another checksum")
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


def fields(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a serialized protocol buffer: per number its values, messages as bytes."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _varint(data, at)
        elif tag & 7 == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<I", data, at)[0], at + 4
        else:
            raise ValueError(f"a field of type {tag & 7}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def numbers(values: list[int | bytes]) -> list[int]:
    """The numbers of a repeated field of them, packed or not."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(number)
    return found


def _entry(data: bytes, slices: list[bytes]) -> BundleEntry:
    own = fields(data)
    shape = fields(_bytes(own, 2))
    sizes = tuple(_int(fields(dim), 1) for dim in shape.get(2, []) if isinstance(dim, bytes))
    parts = [_part(own)]
    if 7 in own:
        whole_rows = sum(_rows(each, sizes) for each in own[7]) == sizes[0] and len(slices) == len(own[7])
        parts = [_part(fields(each)) for each in slices] if whole_rows else []
    return BundleEntry(dtype=tf.dtypes.as_dtype(_int(own, 1)), shape=sizes, parts=tuple(parts))


def _part(own: dict[int, list[int | bytes]]) -> Part:
    return Part(shard=_int(own, 3), offset=_int(own, 4), size=_int(own, 5), crc32c=unmask(_int(own, 6)))


def _rows(slice_: int | bytes, shape: tuple[int, ...]) -> int:
    """The rows of a slice (`TensorSliceProto`) that holds all columns of its rows; 0 of one that does not."""
    told = fields(slice_).get(1, []) if isinstance(slice_, bytes) else []
    extents = [fields(extent) for extent in told if isinstance(extent, bytes)]
    lengths = [_int(extent, 2) if 2 in extent else size for extent, size in zip(extents, shape, strict=True)]
    return lengths[0] if tuple(lengths[1:]) == shape[1:] else 0


def _int(own: dict[int, list[int | bytes]], number: int) -> int:
    value = own.get(number, [0])[0]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value


def _bytes(own: dict[int, list[int | bytes]], number: int) -> bytes:
    value = own.get(number, [b""])[0]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no message")
    return value
