"""Reads one group of files and writes their rows as shards of examples: the work of one worker."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.column_summary import ColumnSummary
from components.example_gen.encoding import examples
from components.example_gen.prepared_rows import Rows, prepared, read_rows
from components.example_gen.rows import Batch, summary_of
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS
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
        _take_in(rows, settings, tally, shards)
    shards.flush()
    return tally


def count_rows(batches: Iterable[Batch], settings: Settings, tally: Tally) -> None:
    """Count rows as `ingest` does, but write nothing; the batches must have fewer rows than a shard.

    Args:
      batches: the rows of one file.
      settings: rows and columns to read.
      tally: collects the counts.

    Raises:
      DataError: the data is not what the settings require.
    """
    unwritten = Shards("", 0, 0, tally.shards)
    for rows in prepared(batches, settings, tally):
        _take_in(rows, settings, tally, unwritten)


def _take_in(rows: Rows, settings: Settings, tally: Tally, shards: Shards) -> None:
    record = rows.batch.record if settings.passthrough else None
    records = [record(row) for row in rows.batch.index.tolist()] if record else None
    write_rows(rows.columns, rows.sides, tally, shards, records)


def write_rows(
    columns: Mapping[str, pa.Array],
    sides: npt.NDArray[np.int8],
    tally: Tally,
    shards: Shards,
    records: Sequence[bytes] | None = None,
) -> None:
    """Count rows and write them to the shards of their splits.

    Args:
      columns: the columns of the examples.
      sides: the split of each row, as a position in `SPLITS`.
      tally: collects the counts.
      shards: writes the rows.
      records: the serialized examples; None encodes the columns.
    """
    if not len(sides):
        return
    for name, column in columns.items():
        for position, split in enumerate(SPLITS):
            summary = tally.summaries[split].setdefault(name, ColumnSummary())
            summary.add(summary_of(column, sides == position, known_to_differ=summary.only == ""))
    rows = examples(columns) if records is None else records
    for position, split in enumerate(SPLITS):
        of_split = np.flatnonzero(sides == position).tolist()
        tally.kept[split] += len(of_split)
        shards.add(split, [rows[row] for row in of_split])
