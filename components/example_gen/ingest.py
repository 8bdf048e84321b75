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
from components.example_gen.arrays import floats, kind_of, tokens
from components.example_gen.column_sums import summary_of
from components.example_gen.encoding import examples
from components.example_gen.filters import filter_rows
from components.example_gen.labels import count_labels, label_values, several_values, weight_reasons, without_any
from components.example_gen.readers import read_batches
from components.example_gen.rows import SHOWN, Batch, values_per_row
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS, assign_splits
from components.example_gen.tally import Labels, Tally
from components.example_gen.values import hiding_texts
from components.example_gen.whole_numbers import count_whole_numbers, with_whole_numbers
from components.progress import report

_SHARD_ROWS = 100_000
_COMPRESSION = 3  # gzip level: on click logs, half the CPU time of zlib's default, 6, and files a fifth larger


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
    shards = _Shards(folder, group, settings.seed, tally.shards)
    for path in files:
        before = tally.read
        for batch in read_batches(path, data_format, settings, tally.bad):
            _take_in(with_whole_numbers(batch, settings, tally.bad), settings, tally, shards)
            report("ExampleGen", tally.read, detail=posixpath.basename(path))
        tally.files += 1
        if tally.read == before:
            tally.files_without_rows = [*tally.files_without_rows, path][:SHOWN]
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
    unwritten = _Shards("", 0, 0, tally.shards)
    for batch in batches:
        _take_in(with_whole_numbers(batch, settings, tally.bad), settings, tally, unwritten)


def _take_in(batch: Batch, settings: Settings, tally: Tally, shards: _Shards) -> None:
    with hiding_texts(settings.private):
        _sort_in(batch, settings, tally, shards)


def _sort_in(batch: Batch, settings: Settings, tally: Tally, shards: _Shards) -> None:
    tally.seen = sorted({*tally.seen, *(name for name, column in batch.columns.items() if _occurs(batch, column))})
    batch = filter_rows(batch, settings.conditions, tally.filtered, tally.bad)
    batch, sides = assign_splits(batch, settings, tally.bad)
    tally.outside += int((sides < 0).sum())
    batch, sides = batch.keep(sides >= 0), sides[sides >= 0]
    columns, reasons = _convert(batch, settings)
    good = np.ones(len(batch), dtype=bool)
    good[list(reasons)] = False
    for name, label in settings.labels.items():
        count_labels(label, batch, columns[label.data_column], good, tally.labels.setdefault(name, Labels()))
    batch, sides = batch.set_aside(tally.bad, reasons), sides[good]
    columns = {name: column.filter(pa.array(good)) for name, column in columns.items()}
    if not len(batch):
        return
    _count(batch, columns, sides, settings, tally)
    whole = settings.passthrough and batch.record
    rows = [batch.record(row) for row in batch.index.tolist()] if whole and batch.record else examples(columns)
    for position, split in enumerate(SPLITS):
        of_split = np.flatnonzero(sides == position).tolist()
        tally.kept[split] += len(of_split)
        shards.add(split, [rows[row] for row in of_split])


def _occurs(batch: Batch, column: pa.Array) -> bool:
    return batch.is_text or column.null_count < len(column)


def _convert(batch: Batch, settings: Settings) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the kept columns, as they go into the examples, and why each bad row is bad."""
    columns: dict[str, pa.Array] = {}
    reasons: dict[int, str] = {}
    for name in settings.single_valued:
        reasons = {**several_values(name, batch.columns[name]), **reasons}
    others = [name for name in batch.columns if name not in settings.columns] if settings.passthrough else []
    labels = {label.data_column: label for label in settings.labels.values()}
    for name in (*settings.columns, *others):
        if name in labels:
            columns[name], bad = label_values(labels[name], batch, may_lack=len(labels) > 1)
            reasons = {**bad, **reasons}
        elif settings.columns.get(name) == "float":
            columns[name], bad = floats(name, batch)
            reasons = {**{row: f"column {name!r}: {reason}" for row, reason in bad.items()}, **reasons}
        else:
            columns[name] = tokens(name, batch)
    if len(labels) > 1:
        reasons = {**without_any([columns[name] for name in labels if name in columns], list(labels)), **reasons}
    if settings.weight is not None:
        reasons = {**weight_reasons(settings.weight, columns[settings.weight]), **reasons}
    return columns, dict(sorted(reasons.items()))


def _count(
    batch: Batch, columns: Mapping[str, pa.Array], sides: npt.NDArray[np.int8], settings: Settings, tally: Tally
) -> None:
    for name, column in columns.items():
        has = values_per_row(column) > 0
        for position, split in enumerate(SPLITS):
            summary = tally.summaries[split].setdefault(name, ColumnSummary())
            summary.add(summary_of(column, sides == position, known_to_differ=summary.only == ""))
        if settings.columns.get(name) == "token":
            tally.add_numbered(name, *count_whole_numbers(column))
        if has.any():
            place = batch.place(int(batch.index[int(np.argmax(has))]))
            tally.kinds.setdefault(name, {}).setdefault(kind_of(column), place)


class _Shards:
    """Writes rows into files of at most 100,000 rows, and shuffles each in an order drawn from the seed."""

    def __init__(self, folder: str, group: int, seed: int, names: dict[str, list[str]]) -> None:
        self._folder = folder
        self._group = group
        self._seed = seed & 0xFFFFFFFF
        self._names = names
        self._attempt = uuid.uuid4().hex
        self._rows: dict[str, list[bytes]] = {split: [] for split in SPLITS}

    def add(self, split: str, rows: Sequence[bytes]) -> None:
        waiting = self._rows[split]
        waiting.extend(rows)
        while len(waiting) >= _SHARD_ROWS:
            self._write(split, waiting[:_SHARD_ROWS])
            del waiting[:_SHARD_ROWS]

    def flush(self) -> None:
        for split, waiting in self._rows.items():
            if waiting:
                self._write(split, waiting)

    def _write(self, split: str, rows: Sequence[bytes]) -> None:
        # Data is often sorted (by time, by label). Without this, only training's shuffle buffer would mix it.
        piece = len(self._names[split])
        order: Any = np.random.RandomState([self._seed, self._group, SPLITS.index(split), piece])
        name = f"{split}-{self._group:05d}-{piece:05d}-{self._attempt}.gz"
        import tensorflow as tf  # a check of the data counts rows and does not write them

        options = tf.io.TFRecordOptions("GZIP", compression_level=_COMPRESSION)
        with tf.io.TFRecordWriter(posixpath.join(self._folder, name), options) as writer:
            for row in order.permutation(len(rows)).tolist():
                writer.write(rows[row])
        self._names[split].append(name)
