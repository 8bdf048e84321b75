"""Reads rows in an order that seed and step determine, so that a resumed run continues in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.record_files import open_records, record_compression
from embedding_core.tracing import as_written
from embedding_core.training.validation_split import Keep
from embedding_core.training_config import TrainingConfig

_ALTERNATING = 4  # files; determines the order of rows, so it must not depend on the machine
_FILTERED = 256  # records that are filtered in one call


def require_files(files: Sequence[str], split: str) -> None:
    """Refuse a split without files.

    Raises:
      DataError: there are none.
    """
    if not files:
        raise DataError(f"the {split} split has no files: check the input and how it is split.")


def count_rows(files: Sequence[str], split: str, keep: Keep | None = None) -> int:
    """Count the records of TFRecord files that `keep` keeps.

    Raises:
      DataError: there are no files or no records, or a file is damaged.
    """
    require_files(files, split)
    return require_rows(_count(files, split, keep), files, split)


def rows_of_files(files: Sequence[str], split: str, keep: Keep | None = None) -> list[int]:
    """Count the records of each file; arguments and errors are those of `count_rows`."""
    require_files(files, split)
    rows = [_count([name], split, keep) for name in files]
    require_rows(sum(rows), files, split)
    return rows


def _records(files: list[str] | tf.Tensor, compression: str, keep: Keep | None) -> tf.data.Dataset:
    """Read the kept records of several files in turn; a filter does not change how the files alternate.

    One thread reads them all: passing each record from one thread to another takes three times as long as reading it.
    """
    read = as_written(lambda name: records_of(name, compression, keep))
    return tf.data.Dataset.from_tensor_slices(files).interleave(read, _ALTERNATING, 1)


def records_of(file: tf.Tensor, compression: str, keep: Keep | None) -> tf.data.Dataset:
    """Read the kept records of a file; filter in batches, as a call of `keep` takes longer than reading a record."""
    records = open_records(file, compression)
    if keep is None:
        return records
    filtered = as_written(lambda batch: tf.boolean_mask(batch, keep(batch)))
    return records.batch(_FILTERED).map(filtered).unbatch()


def batches_by_file(files: Sequence[str], batch_size: int, keep: Keep | None = None) -> tf.data.Dataset:
    """Read files one after the other, as a dataset of (number of the file, string [B]); batches do not span files."""
    compression = record_compression(files)

    @as_written
    def read(number: tf.Tensor, name: tf.Tensor) -> tf.data.Dataset:
        batches = records_of(name, compression, keep).batch(batch_size)
        return batches.map(as_written(lambda batch: (number, batch)))

    return tf.data.Dataset.from_tensor_slices(list(files)).enumerate().flat_map(read)


def _count(files: Sequence[str], split: str, keep: Keep | None) -> int:
    try:
        return int(rows_in(_records(list(files), record_compression(files), keep)))
    except tf.errors.OpError as error:
        raise DataError(f"cannot read the {split} split, {list(files)}: {error.message}") from error


def rows_in(records: tf.data.Dataset) -> tf.Tensor:
    """Count the records of a dataset, int64 scalar."""
    add = as_written(lambda count, rows: count + tf.size(rows, tf.int64))
    return records.batch(1024).reduce(tf.constant(0, tf.int64), add)


def require_rows(rows: int, files: Sequence[str], split: str) -> int:
    """Return the number of rows of a split.

    Raises:
      DataError: it is 0.
    """
    if not rows:
        raise DataError(f"the {split} split is empty ({len(files)} files without records): check the input and split.")
    return rows


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Count the batches of one pass over `rows`; the last one may be smaller."""
    return -(-rows // batch_size)


def shuffled_batches(
    files: Sequence[str],
    config: TrainingConfig,
    *,
    rows: int,
    start: int,
    batch_size: int | None = None,
    steps: int = 0,
    keep: Keep | None = None,
) -> tf.data.Dataset:
    """Make endless batches of serialized examples, in a different order in each epoch.

    Args:
      files: TFRecord files.
      config: settings with batch size, shuffle buffer and seed.
      rows: number of kept rows in the files.
      start: step of the first batch; previous batches of its epoch are read but not parsed, previous epochs not read.
      batch_size: replaces the configuration's.
      steps: minimum number of batches per epoch; empty batches are appended to reach it.
      keep: filter of serialized rows; None for all.

    Returns:
      A dataset of (step, string [B]).
    """
    compression = record_compression(files)
    names = tf.constant(sorted(files))
    size = batch_size or config.batch_size
    filled = steps_per_epoch(rows, size)

    @as_written
    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        tf.random.set_seed(None)  # in this graph only: if the global seed is 0, `shuffle` rejects a tensor as its seed
        seed = tf.stack([tf.constant(config.seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(names, seed=seed)
        records = _records(order, compression, keep)
        draw = tf.random.stateless_uniform([], seed, minval=None, maxval=None, dtype=tf.int64)
        shuffled = records.shuffle(max(1, min(rows, config.shuffle_buffer)), seed=draw, reshuffle_each_iteration=False)
        return _followed_by_empty(shuffled.batch(size), steps - filled)

    first, skipped = divmod(start, max(filled, steps))
    epochs = tf.data.Dataset.range(first, tf.int64.max)
    return epochs.flat_map(epoch).skip(skipped).enumerate(start)


def _followed_by_empty(batches: tf.data.Dataset, missing: int) -> tf.data.Dataset:
    if missing <= 0:
        return batches
    return batches.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string)).repeat(missing))


def batches_once(
    files: Sequence[str], batch_size: int, *, steps: int = 0, rows: int = 0, keep: Keep | None = None
) -> tf.data.Dataset:
    """Read the files once in order, as a dataset of (number of the batch, string [B]).

    Args:
      files: TFRecord files.
      batch_size: number of rows of a batch.
      steps: minimum number of batches; empty batches are appended to reach it.
      rows: number of rows in the files, if `steps` is given.
      keep: filter of serialized rows; None for all.
    """
    records = _records(sorted(files), record_compression(files), keep)
    return _followed_by_empty(records.batch(batch_size), steps - steps_per_epoch(rows, batch_size)).enumerate()


class Passes:
    """Passes over a dataset, one per iteration, that share one iterator: creating an iterator takes half a second."""

    def __init__(self, dataset: tf.data.Dataset, size: int) -> None:
        """Take a dataset of `size` elements."""
        self.dataset = dataset
        self._endless = dataset.repeat()
        self._size = size
        self._elements: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        elements, self._elements = self._elements or iter(self._endless), None  # an unfinished pass is not continued
        for _ in range(self._size):
            yield next(elements)
        self._elements = elements
