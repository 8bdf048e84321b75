"""Reads and writes tables of a TensorFlow tensor bundle in slices of rows: memory is bounded by a slice."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from embedding_core.errors import CheckpointError
from embedding_core.storage import masked, open_file

# Reads the index of a TensorFlow checkpoint, which says where in the data files the bytes of each tensor are.
#
# TensorFlow's readers always load the whole of a tensor that was saved in one piece, which doubles the memory of a
# table. With the index, a tensor can be read from its data file in slices. The index file is an uncompressed LevelDB
# table (https://github.com/google/leveldb/blob/main/doc/table_format.md) of a `BundleHeaderProto` under the empty key
# and one `BundleEntryProto` per tensor and per saved slice of a tensor. All checksums are masked CRC-32C.

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


SLICE_BYTES = 16 * 2**20
Rows: TypeAlias = npt.NDArray[np.float32]


def rows_per_slice(shape: tuple[int, ...], slice_bytes: int = SLICE_BYTES) -> int:
    """Return how many float32 rows of a table of that shape make one slice; at least one."""
    return max(1, slice_bytes // (4 * int(np.prod(shape[1:], dtype=np.int64)) or 1))


def _spec(shape: tuple[int, ...], start: int, count: int) -> str:
    """Return the `shape_and_slice` of TensorFlow's SaveV2 and RestoreV2."""
    rest = "".join(f":0,{size}" for size in shape[1:])
    return f"{' '.join(map(str, shape))} {start},{count}{rest}"


class BundleReader:
    """Reads a checkpoint that TensorFlow or `BundleWriter` wrote.

    Attributes:
      prefix: path of the checkpoint without '.index'.
      entries: every tensor by its key.
    """

    def __init__(self, prefix: str) -> None:
        """Open the checkpoint.

        Raises:
          CheckpointError: its index is missing or damaged.
        """
        self.prefix = prefix
        self._shards, self.entries = read_index(prefix)

    def tensor(self, key: str) -> tf.Tensor:
        """Read a small tensor, whole.

        Raises:
          CheckpointError: the data are damaged or missing.
        """
        with self._errors(key):
            return tf.raw_ops.RestoreV2(
                prefix=self.prefix, tensor_names=[key], shape_and_slices=[""], dtypes=[self.entries[key].dtype]
            )[0]

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise CheckpointError(
                f"{key!r} of {self.prefix!r} cannot be read ({error.message}): take another checkpoint."
            ) from error

    def slices(self, key: str, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, Rows]]:
        """Read the rows of a float32 table, slice after slice: (number of its first row, rows).

        Checksums are verified. If a tensor was saved whole, its checksum is verified with its last slice, so do not
        publish anything before the iterator ends.

        Raises:
          CheckpointError: the data are damaged or missing.
        """
        entry = self.entries[key]
        read = self._from_files if entry.parts else self._restored
        with self._errors(key):
            yield from read(key, entry, rows_per_slice(entry.shape, slice_bytes))

    def _restored(self, key: str, entry: BundleEntry, count: int) -> Iterator[tuple[int, Rows]]:
        """Read with TensorFlow, which loads whole saved slices for each slice that is requested."""
        rows = entry.shape[0]
        for start in range(0, rows, count):
            spec = _spec(entry.shape, start, min(count, rows - start))
            tensors = tf.raw_ops.RestoreV2(
                prefix=self.prefix, tensor_names=[key], shape_and_slices=[spec], dtypes=[entry.dtype]
            )
            yield start, tensors[0].numpy()

    def _from_files(self, key: str, entry: BundleEntry, count: int) -> Iterator[tuple[int, Rows]]:
        row_bytes = 4 * int(np.prod(entry.shape[1:], dtype=np.int64))
        blocks, buffer = self._blocks(key, entry, count * row_bytes), b""
        for start in range(0, entry.shape[0], count):
            wanted = min(count, entry.shape[0] - start) * row_bytes
            while len(buffer) < wanted:
                block = next(blocks, b"")
                if not block:
                    raise CheckpointError(
                        f"{key!r} of {self.prefix!r} has fewer rows than its index says: take another checkpoint."
                    )
                buffer += block
            rows = np.frombuffer(buffer[:wanted], np.float32)
            buffer = buffer[wanted:]
            yield start, rows.reshape(-1, *entry.shape[1:])

    def _blocks(self, key: str, entry: BundleEntry, size: int) -> Iterator[bytes]:
        """Read the bytes of all parts; yield the last bytes of a part only if its checksum matches."""
        for part in entry.parts:
            path = f"{self.prefix}.data-{part.shard:05d}-of-{self._shards:05d}"
            checksum, left = 0, part.size
            with tf.io.gfile.GFile(path, "rb") as file:
                file.seek(part.offset)
                while left:
                    data = file.read(min(size, left))
                    if not data:
                        raise CheckpointError(f"{path!r} is too short for {key!r}: take another checkpoint.")
                    checksum, left = google_crc32c.extend(checksum, data), left - len(data)
                    if not left and masked(checksum) != part.crc32c:
                        raise CheckpointError(
                            f"{key!r} in {path!r} does not have the checksum in its index: take another checkpoint."
                        )
                    yield data


class BundleWriter:
    """Writes tables slice by slice; `close` makes them one checkpoint that plain TensorFlow reads whole.

    Small tables are written together. Nothing is at `prefix` before `close`.
    """

    def __init__(self, prefix: str, slice_bytes: int = SLICE_BYTES) -> None:
        """Start a checkpoint at `prefix`; parts are kept in a folder beside it until `close`."""
        self._prefix = prefix
        self._slice_bytes = slice_bytes
        self._parts: list[str] = []
        self._pending: dict[str, tuple[str, Rows]] = {}
        self._bytes = 0

    def add(self, key: str, shape: tuple[int, ...], start: int, rows: Rows) -> None:
        """Add rows `start`, `start + 1`, ... of the table under `key`; add every row once, in any order."""
        if key in self._pending or self._bytes + rows.nbytes > self._slice_bytes:
            self._flush()
        self._pending[key] = (_spec(shape, start, len(rows)), rows)
        self._bytes += rows.nbytes

    def close(self) -> None:
        """Write the pending rows, and make one checkpoint of the parts."""
        self._flush()
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._parts, destination_prefix=self._prefix, delete_old_dirs=True
        )

    def _flush(self) -> None:
        if not self._pending:
            return
        part = os.path.join(f"{self._prefix}.parts", f"part-{len(self._parts):05d}")
        specs: list[str] = [spec for spec, _ in self._pending.values()]
        tensors: list[tf.Tensor] = [tf.constant(rows) for _, rows in self._pending.values()]
        tf.raw_ops.SaveV2(prefix=part, tensor_names=list(self._pending), shape_and_slices=specs, tensors=tensors)
        self._parts.append(part)
        self._pending, self._bytes = {}, 0
