"""Reads one group of files and writes their rows as shards of examples: the work of one worker."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from components.example_gen.encoding import examples
from components.example_gen.prepared_rows import read_rows
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS, Sides
from components.example_gen.tally import Tally

# Writes rows as shards of examples: gzipped TFRecord files in an order drawn from the seed.

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

    def add(self, columns: Mapping[str, pa.Array], sides: Sides, records: Sequence[bytes] | None = None) -> None:
        """Add rows to their splits.

        Args:
          columns: the columns of the examples.
          sides: the split of each row, as a position in `SPLITS`.
          records: the serialized examples; None encodes the columns.
        """
        rows = examples(columns) if records is None else records
        for position, split in enumerate(SPLITS):
            waiting = self._rows[split]
            waiting.extend(rows[row] for row in np.flatnonzero(sides == position).tolist())
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


# Reads one group of files and writes their rows as shards of examples: the work of one worker.


def ingest(files: Sequence[str], group: int, data_format: str, settings: Settings, folder: str) -> Tally:
    """Read files, and write their rows as shards of examples into the folder.

    Args:
      files: the files of one group, in order.
      group: number of the group; part of the shards' names and of the seed that shuffles their rows.
      data_format: one of `components.example_gen.readers.DATA_FORMATS`.
      settings: rows and columns to read.
      folder: folder of the shards; no other attempt at this group uses the same shard names.

    Raises:
      DataError: the data is not what the settings require.
    """
    tally = Tally(filtered=[0] * len(settings.conditions))
    shards = Shards(folder, group, settings.seed, tally.shards)
    for rows in read_rows(files, data_format, settings, tally):
        tally.add_rows(rows.columns, rows.sides)
        record = rows.batch.record if settings.passthrough else None
        records = [record(row) for row in rows.batch.index.tolist()] if record else None
        shards.add(rows.columns, rows.sides, records)
    shards.flush()
    return tally
