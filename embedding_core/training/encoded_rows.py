"""Encodes the rows of a split once, as ids and numbers, and keeps them for later passes and trainings.

An encoded file holds the rows of one file of tf.Examples in the same order, so a pass over either file gives the same
batches. A record consists of little-endian 32-bit words:

* the number of ids of each feature;
* the dense features, the labels and the weight as float32;
* the ids in the order of the features, all as int32, or all as int64 (two words) if any feature has no vocabulary.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from embedding_core.errors import CheckpointError
from embedding_core.storage import (
    SealedFolder,
    file_digest,
    is_remote,
    locked_folder,
    make_folders,
    names_in,
    remove_folder,
    remove_leftovers,
    scratch_folder,
)
from embedding_core.tracing import as_written
from embedding_core.training.finished_run import fingerprint
from embedding_core.training.row_stream import Keep, batches_by_file
from embedding_core.training.training_inputs import Batch, Inputs

_BATCH = 1024  # rows that are parsed at once: enough for speed, few enough for memory if rows have long lists
_PARSED_AHEAD = 2
_WORD = 4
_LONGEST = 2**31 - 1

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class RowFormat:
    """Encodes batches as records, and decodes records."""

    def __init__(self, inputs: Inputs) -> None:
        """Derive the layout of the records from the inputs."""
        self._features = [feature.name for feature in inputs.config.features]
        self._dense = inputs.dense
        known = all(inputs.config.table_of(name).vocabulary is not None for name in self._features)
        self._id = tf.int32 if known else tf.int64
        self._labels = len(inputs.tasks)
        self._head = len(self._features) + len(self._dense) + self._labels + 1

    def encode(self, batch: Batch) -> Iterator[bytes]:
        """Encode each row of an eager batch."""
        ids = [batch["ids"][name] for name in self._features]
        splits = np.stack([rows.row_splits.numpy() for rows in ids], axis=1)
        lengths = np.diff(splits, axis=0)
        numbers = np.concatenate([*(batch["dense"][name] for name in self._dense), batch["label"], batch["weight"]], 1)
        head = np.concatenate([lengths.astype("<i4"), numbers.astype("<f4").view("<i4")], axis=1)
        width = self._id.size // _WORD
        sizes = self._head + width * lengths.sum(axis=1)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        words = np.empty(sizes.sum(), "<i4")
        words[starts[:, None] + np.arange(self._head)] = head
        places = starts[:, None] + self._head + width * (np.cumsum(lengths, axis=1) - lengths - splits[:-1])
        for feature, rows in enumerate(ids):
            values = rows.values.numpy().astype(self._id.as_numpy_dtype).view("<i4").reshape(-1, width)
            first = np.repeat(places[:, feature], lengths[:, feature]) + width * np.arange(len(values))
            words[first[:, None] + np.arange(width)] = values
        data = memoryview(words.tobytes())
        for start, end in zip(_WORD * starts, _WORD * ends, strict=True):
            yield bytes(data[start:end])

    @as_written
    def decode(self, records: tf.Tensor) -> Batch:
        """Decode records, string [B], into a batch."""
        count = len(self._features)
        words = tf.io.decode_raw(records, tf.int32, fixed_length=_WORD * self._head)
        lengths = tf.cast(words[:, :count], tf.int64)
        numbers = tf.bitcast(words[:, count:], tf.float32)
        dense = tf.split(numbers[:, : len(self._dense)], len(self._dense), axis=1) if self._dense else []
        return Batch(
            ids=dict(zip(self._features, self._ids(records, lengths), strict=True)),
            dense=dict(zip(self._dense, dense, strict=True)),
            label=numbers[:, -1 - self._labels : -1],
            weight=numbers[:, -1:],
            rows=tf.size(records),
        )

    def _ids(self, records: tf.Tensor, lengths: tf.Tensor) -> list[tf.RaggedTensor]:
        """Decode the ids of each feature; `lengths` is int64 [B, features]."""
        tails = tf.strings.reduce_join(tf.strings.substr(records, _WORD * self._head, _LONGEST))
        by_row = tf.io.decode_raw(tails, self._id)
        ends = tf.reshape(tf.cumsum(tf.reshape(lengths, [-1])), tf.shape(lengths))
        of_feature = [tf.reshape(tf.transpose(bounds), [-1]) for bounds in (ends - lengths, ends)]
        by_feature = tf.cast(tf.gather(by_row, tf.ragged.range(*of_feature).values), tf.int64)
        splits = tf.pad(tf.cumsum(lengths), [[1, 0], [0, 0]])
        values = tf.split(by_feature, splits[-1], num=len(self._features))
        return [
            tf.RaggedTensor.from_row_splits(*parts, validate=False)
            for parts in zip(values, tf.unstack(splits, axis=1), strict=True)
        ]


def encode_files(
    files: Sequence[str],
    folder: str,
    parse: Callable[[tf.Tensor], Batch],
    form: RowFormat,
    *,
    keep: Keep | None = None,
    done: Callable[[int], None] = lambda rows: None,
) -> list[str]:
    """Encode the kept rows of TFRecord files of tf.Examples.

    Args:
      files: paths of the files.
      folder: existing folder for the encoded files.
      parse: graph function that parses the rows.
      form: encodes the parsed rows.
      keep: filter of serialized rows; None for all.
      done: called for each batch with the number of rows that are encoded; it may raise an error to stop the encoding.

    Returns:
      Paths of the encoded files, in the order of the sorted names of `files`.
    """
    encoded = [os.path.join(folder, f"{number:05d}") for number in range(len(files))]

    def parsed(numbered: tuple[tf.Tensor, tf.Tensor]) -> tuple[int, Batch]:
        with tf.device("CPU"):
            return int(numbered[0]), parse(numbered[1])

    for path in encoded:
        tf.io.TFRecordWriter(path).close()  # a file without kept rows gives no batch
    rows = 0
    batches = _ahead(parsed, batches_by_file(sorted(files), _BATCH, keep))
    for number, of_file in itertools.groupby(batches, lambda numbered: numbered[0]):
        with tf.io.TFRecordWriter(encoded[number]) as writer:
            for _, batch in of_file:
                done(rows)
                for record in form.encode(batch):
                    writer.write(record)
                    rows += 1
    done(rows)
    return encoded


def _ahead(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield the function's result for each item, while a thread computes the next ones."""
    with ThreadPoolExecutor(1) as thread:
        results: deque[Future[_Result]] = deque()
        for item in items:
            results.append(thread.submit(function, item))
            if len(results) > _PARSED_AHEAD:
                yield results.popleft().result()
        yield from (result.result() for result in results)


# Keeps encoded rows for later trainings on the same rows, vocabularies and transform; other settings may differ.

_SEALED = SealedFolder(
    constants={"format": "tfx-embeddings encoded rows", "version": 1},
    missing="its rows were not encoded to the end",
    remedy="they are encoded again",
)


class RowsFolder(NamedTuple):
    """A folder for the encoded rows of a training.

    Attributes:
      path: an existing folder, with a folder for each split.
      is_kept: whether later trainings may read it; if so, its splits are sealed and verified.
    """

    path: str
    is_kept: bool


def rows_key(inputs: Inputs, files: list[str], *others: Any) -> str:
    """Compute a digest of all that encoded rows depend on.

    Args:
      inputs: tables, features and vocabularies; dims and optimizers do not change the digest.
      files: TFRecord files of all splits.
      others: further JSON values, such as the digest of the transform and the share of rows that are held back.
    """
    features = []
    for feature in inputs.config.features:
        table = inputs.config.table_of(feature.name)
        column = inputs.column_of(feature).to_mapping()
        features.append([feature.name, column, table.vocabulary, table.vocabulary_size, table.oov_rows])
    read = {name: file_digest(name)["sha256"] for name in [*files, *inputs.vocabularies.values()]}
    parts = [
        features,
        [inputs.dense, [[task.key, task.kind] for task in inputs.tasks], inputs.weight],
        sorted(read.items()),
        *others,
    ]
    return fingerprint(*parts)


@contextlib.contextmanager
def rows_folder(path: str | None) -> Iterator[RowsFolder]:
    """Yield a folder for encoded rows: `path`, locked, or a temporary folder if another process uses `path`.

    Args:
      path: folder to keep, named by `rows_key`; it may hold the rows of a previous training. Folders beside it that no
        process uses are removed. If `path` is None or in an object store, the folder is temporary.
    """
    if path is None or is_remote(path):
        with scratch_folder("rows") as folder:
            yield RowsFolder(folder, False)
        return
    make_folders(path)
    with locked_folder(path, wait=False) as locked:
        if not locked:
            with scratch_folder("rows") as folder:
                yield RowsFolder(folder, False)
            return
        _remove_others(path)
        yield RowsFolder(path, True)


def _remove_others(path: str) -> None:
    parent = os.path.dirname(path)
    remove_leftovers(parent)
    for name in set(names_in(parent)) - {os.path.basename(path)}:
        other = os.path.join(parent, name)
        with locked_folder(other, wait=False) as is_unused:
            if is_unused:
                remove_folder(other)


def seal_split(folder: str) -> None:
    """Seal the folder of a split, after all its files are encoded."""
    _SEALED.write(folder, {})


def whole_split(folder: str) -> list[str] | None:
    """Return the encoded files of a split in order; None if it was not encoded to the end, or is damaged."""
    try:
        files = _SEALED.verify(folder)["files"]
    except CheckpointError:
        return None
    return [os.path.join(folder, name) for name in sorted(files)]
