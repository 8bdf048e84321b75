"""Reads and writes tables of a TensorFlow tensor bundle in slices of rows: memory is bounded by a slice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.checkpoint.bundle_index import BundleEntry, read_index
from embedding_core.errors import CheckpointError
from embedding_core.storage import masked

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
                    raise CheckpointError(f"{key!r} of {self.prefix!r} has fewer rows than its index says.")
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
