"""Saves the state of a training run as one `tf.train.Checkpoint`, and restores its tables in slices.

TensorFlow saves a table without copying it, but holds every table twice while it restores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import tensorflow as tf

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, rows_per_slice
from embedding_core.checkpoint.stored_keys import training_key
from embedding_core.engines import tables as engine_tables
from embedding_core.errors import CheckpointError

_ITERATIONS = "learning_rate/iterations"  # of a schedule: the only variable of an engine that is not a table


class Tables(NamedTuple):
    """The tables and slots that a run trains.

    Attributes:
      variables: float32 [rows, dim], by `<table>` and `<table>/<slot>`; empty if they are in a TPU's memory.
      holder: the trackable that has them under these names, and copies them from a TPU's memory and back.
      blocks: the rows on parameter servers, in blocks of consecutive rows, by the same names; empty without servers.
    """

    variables: Mapping[str, tf.Variable]
    holder: object
    blocks: Mapping[str, Sequence[tf.Variable]] = MappingProxyType({})

    def nonfinite_rows(self) -> dict[str, int]:
        """Count the rows of each table or slot that hold a NaN or an infinity; those without any are left out."""
        blocks = {key: [variable] for key, variable in self.variables.items()} | dict(self.blocks)
        found = {key: sum(map(_nonfinite_of, parts)) for key, parts in blocks.items()}
        return {key: count for key, count in found.items() if count}


def _nonfinite_of(variable: tf.Variable) -> int:
    """Count the rows with a NaN or an infinity, on the device that holds them."""
    count = 0
    for rows in _slices(variable):
        with tf.device(rows.device):
            finite = tf.reduce_all(tf.math.is_finite(rows), 1)
            count += int(tf.math.count_nonzero(~finite))
    return count


def _slices(variable: tf.Variable) -> Iterator[tf.Tensor]:
    """Yield the rows in slices. It uses `gather`, as reading a variable would copy all of it."""
    rows, count = variable.shape[0], rows_per_slice(tuple(variable.shape))
    for start in range(0, rows, count):
        yield tf.gather(variable, tf.range(start, min(start + count, rows), dtype=tf.int64))


class TrainingState:
    """Tables and everything else that a run saves, keyed as by ``tf.train.Checkpoint(embedding=..., **rest)``."""

    def __init__(self, tables: Tables, rest: Mapping[str, object], slice_bytes: int = SLICE_BYTES) -> None:
        """Save `tables` under `embedding`, and the trackables `rest` under their names.

        Tables in a TPU's memory are saved and restored by TensorFlow itself, which copies them whole to their hosts.
        """
        self._tables = tables
        self._rest = dict(rest)
        self._slice_bytes = slice_bytes

    def write(self, prefix: str) -> None:
        """Write a checkpoint at `prefix` that plain TensorFlow can restore, too."""
        whole = tf.train.Checkpoint(embedding=self._tables.holder, **self._rest)
        whole.save_counter.assign_add(1)  # creates the counter, which `restore` expects and `write` leaves out
        whole.write(prefix)

    def _unsliced(self) -> object:
        """Return what TensorFlow restores under `embedding`: all that is not read in slices here."""
        if not self._tables.variables:
            return self._tables.holder
        holder = engine_tables.Tables()
        if hasattr(self._tables.holder, _ITERATIONS):
            setattr(holder, _ITERATIONS, getattr(self._tables.holder, _ITERATIONS))
        return holder

    def restore(self, prefix: str) -> None:
        """Restore what `write` wrote.

        Raises:
          CheckpointError: the checkpoint is damaged, or of other tables or another model.
        """
        reader, variables = BundleReader(prefix), self._tables.variables
        _check(reader, variables)
        try:
            status = tf.train.Checkpoint(embedding=self._unsliced(), **self._rest).restore(prefix)
            status.expect_partial().assert_existing_objects_matched()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
            raise CheckpointError(f"{prefix!r} cannot be restored: {error}") from error
        for key, variable in variables.items():
            for start, rows in reader.slices(training_key(key), self._slice_bytes):
                indices = tf.range(start, start + len(rows), dtype=tf.int64)
                variable.scatter_update(tf.IndexedSlices(tf.constant(rows), indices))


def _check(reader: BundleReader, variables: Mapping[str, tf.Variable]) -> None:
    problems = []
    for key, variable in variables.items():
        entry = reader.entries.get(training_key(key))
        if entry is None:
            problems.append(f"{key!r} is not in it")
        elif entry.shape != tuple(variable.shape):
            problems.append(f"{key!r} has shape {list(entry.shape)} in it instead of {variable.shape.as_list()}")
    if problems:
        raise CheckpointError(f"{reader.prefix!r} is not of these tables: {'; '.join(problems)}.")
