"""Writes rows as shards of examples: gzipped TFRecord files in an order drawn from the seed."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from components.example_gen.splits import SPLITS

_SHARD_ROWS = 100_000
_COMPRESSION = 3  # gzip level: on click logs, half the CPU time of zlib's default, 6, and files a fifth larger


class Shards:
    """Writes rows into files of at most 100,000 rows, and shuffles the rows of each file by the seed."""

    def __init__(self, folder: str, group: int, seed: int, names: dict[str, list[str]]) -> None:
        """Prepare to write.

        Args:
          folder: folder of the shards; no other attempt at this group uses the same shard names.
          group: number of the group; part of the shards' names and of the seed that shuffles their rows.
          seed: seed of the order of rows.
          names: per split, the names of the files written; extended here.
        """
        self._folder = folder
        self._group = group
        self._seed = seed & 0xFFFFFFFF
        self._names = names
        self._attempt = uuid.uuid4().hex
        self._rows: dict[str, list[bytes]] = {split: [] for split in SPLITS}

    def add(self, split: str, rows: Sequence[bytes]) -> None:
        """Add serialized examples to a split."""
        waiting = self._rows[split]
        waiting.extend(rows)
        while len(waiting) >= _SHARD_ROWS:
            self._write(split, waiting[:_SHARD_ROWS])
            del waiting[:_SHARD_ROWS]

    def flush(self) -> None:
        """Write the rows that are left."""
        for split, waiting in self._rows.items():
            if waiting:
                self._write(split, waiting)

    def _write(self, split: str, rows: Sequence[bytes]) -> None:
        # Data is often sorted (by time, by label). Without shuffling here, only training's shuffle buffer would mix it.
        piece = len(self._names[split])
        order: Any = np.random.RandomState([self._seed, self._group, SPLITS.index(split), piece])
        name = f"{split}-{self._group:05d}-{piece:05d}-{self._attempt}.gz"
        import tensorflow as tf  # a check of the data counts rows and does not write them

        options = tf.io.TFRecordOptions("GZIP", compression_level=_COMPRESSION)
        with tf.io.TFRecordWriter(posixpath.join(self._folder, name), options) as writer:
            for row in order.permutation(len(rows)).tolist():
                writer.write(rows[row])
        self._names[split].append(name)
