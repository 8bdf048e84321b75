"""Saves the state of a training run as sealed folders, and restores the newest undamaged one of a series.

A folder holds a plain `tf.train.Checkpoint` named `ckpt-<step>`, TensorFlow's state file `checkpoint` (for
`tf.train.latest_checkpoint`, which this project does not use) and `manifest.json`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import tensorflow as tf

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, rows_per_slice
from embedding_core.checkpoint.stored_keys import training_key
from embedding_core.engines import tables as engine_tables
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.storage import (
    SealedFolder,
    StrPath,
    make_folders,
    move,
    names_in,
    open_file,
    remove_folder,
    remove_leftovers,
    whole_folder,
)

_log = logging.getLogger(__name__)

_SEALED = SealedFolder(constants={"format": "training-checkpoint", "version": 1})
_INDEX = re.compile(r"ckpt-(\d+)\.index\Z")
_FOLDER = re.compile(r"step-(\d+)\Z")
_DAMAGED = ".damaged"


class TrainingCheckpoint(NamedTuple):
    """A training checkpoint whose files are as they were written.

    Attributes:
      folder: path of the checkpoint.
      step: training step of the state.
      facts: facts that the writer recorded; a JSON object.
    """

    folder: str
    step: int
    facts: Json

    @property
    def prefix(self) -> str:
        """Prefix of the TensorFlow checkpoint: its path without '.index'."""
        return os.path.join(self.folder, f"ckpt-{self.step}")


def write_training_checkpoint(
    folder: StrPath,
    step: int,
    write: Callable[[str], object],
    *,
    files: Mapping[str, str] | None = None,
    facts: Json | None = None,
) -> TrainingCheckpoint:
    """Write a training checkpoint to a temporary folder, then rename it; an existing checkpoint is replaced.

    Args:
      folder: the folder to make.
      step: training step of the state.
      write: writes a TensorFlow checkpoint at the prefix given.
      files: texts to write beside it, by file name.
      facts: JSON object to record in the manifest.

    Raises:
      CheckpointError: it cannot be written, for example because the disk is full; what was there is untouched.
    """
    folder = os.fspath(folder)
    saved = TrainingCheckpoint(folder, step, dict(facts or {}))
    name = os.path.basename(saved.prefix)
    state = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
    with whole_folder(folder, replace=True) as temporary:
        write(os.path.join(temporary, name))
        for file_name, text in {"checkpoint": state, **(files or {})}.items():
            with open_file(os.path.join(temporary, file_name), "w") as file:
                file.write(text)
        _SEALED.write(temporary, {"step": step, "facts": saved.facts})
    return saved


def read_training_checkpoint(folder: StrPath) -> TrainingCheckpoint:
    """Verify the training checkpoint in a folder: every file is compared with the manifest.

    Raises:
      CheckpointError: a file is missing or damaged.
    """
    folder = os.fspath(folder)
    body = _SEALED.verify(folder)
    return TrainingCheckpoint(folder, body["step"], body["facts"])


def latest_training_checkpoint(folder: StrPath) -> str:
    """Find the checkpoint `ckpt-<step>` with the highest step in a folder, by the names of its files.

    TensorFlow's state file, which also names the latest checkpoint, is not read, because a damaged one makes the
    folder look empty. If there is a manifest, which this project's trainer writes, it names the step, and all files
    are verified. The checksums of plain TensorFlow checkpoints are verified when their tensors are read.

    Returns:
      The prefix of the checkpoint.

    Raises:
      CheckpointError: there is none, or it is damaged.
    """
    if _SEALED.exists(folder):
        return read_training_checkpoint(folder).prefix
    steps = [int(match[1]) for match in map(_INDEX.match, names_in(folder)) if match]
    if not steps:
        raise CheckpointError(
            f"{os.fspath(folder)!r} has no checkpoint `ckpt-<step>`: training wrote none, or wrote it elsewhere."
        )
    return os.path.join(folder, f"ckpt-{max(steps)}")


class CheckpointSeries:
    """The training checkpoints of one run, each in a folder `step-<step>`. Only one process may use it at a time."""

    def __init__(self, folder: StrPath) -> None:
        """Use a folder, which is created if it is missing; what an interrupted save left in it is removed."""
        self.folder = os.fspath(folder)
        make_folders(self.folder)
        remove_leftovers(self.folder)

    def steps(self) -> list[int]:
        """List the steps that have a folder, newest first; the folders are not verified."""
        return sorted((int(match[1]) for match in map(_FOLDER.match, names_in(self.folder)) if match), reverse=True)

    def path(self, step: int) -> str:
        """Return the folder of a step."""
        return os.path.join(self.folder, f"step-{step}")

    def facts(self, step: int) -> Json:
        """Read the facts that the writer of a step's checkpoint recorded; its files are not verified.

        Raises:
          CheckpointError: its manifest is missing or damaged.
        """
        facts: Json = _SEALED.read(self.path(step))["facts"]
        return facts

    def save(
        self,
        step: int,
        write: Callable[[str], object],
        *,
        files: Mapping[str, str] | None = None,
        facts: Json | None = None,
    ) -> None:
        """Write the checkpoint of a step; arguments and errors are those of `write_training_checkpoint`."""
        write_training_checkpoint(self.path(step), step, write, files=files, facts=facts)

    def keep(self, steps: Collection[int]) -> None:
        """Delete the checkpoints of all other steps."""
        for step in self.steps():
            if step not in steps:
                remove_folder(self.path(step))

    def restore(self, restore: Callable[[TrainingCheckpoint], None]) -> TrainingCheckpoint | None:
        """Restore the newest checkpoint that passes verification, with a warning for every newer one.

        The newer ones are renamed to `step-<step>.damaged`, so that the run can save these steps again.

        Args:
          restore: restores the state; it is called with one verified checkpoint after the other, newest first, until
            a call succeeds.

        Returns:
          The checkpoint that was restored, or None if there is none at all.

        Raises:
          CheckpointError: there are checkpoints (or renamed ones), but none can be verified and restored.
        """
        problems = []
        for step in self.steps():
            try:
                checkpoint = self.verified(step)
                restore(checkpoint)
            except CheckpointError as error:
                problems.append((step, str(error)))
                continue
            for bad, problem in problems:
                _log.warning("the checkpoint of step %d is passed over for that of step %d: %s", bad, step, problem)
                self._set_aside(bad)
            return checkpoint
        damaged = [name for name in names_in(self.folder) if name.endswith(_DAMAGED)]
        if problems or damaged:
            reasons = "; ".join([problem for _, problem in problems] + damaged)
            raise CheckpointError(
                f"no checkpoint in {self.folder!r} can be restored ({reasons}): bring back its files, or remove the "
                "folder to train from nothing."
            )
        return None

    def verified(self, step: int) -> TrainingCheckpoint:
        """Verify the checkpoint of a step.

        Raises:
          CheckpointError: it is missing or damaged.
        """
        checkpoint = read_training_checkpoint(self.path(step))
        if checkpoint.step != step:
            raise CheckpointError(
                f"{checkpoint.folder!r} holds the checkpoint of step {checkpoint.step}: folders were swapped."
            )
        return checkpoint

    def _set_aside(self, step: int) -> None:
        remove_folder(self.path(step) + _DAMAGED)
        move(self.path(step), self.path(step) + _DAMAGED)


# Saves the state of a training run as one `tf.train.Checkpoint`, and restores its tables in slices.
#
# TensorFlow saves a table without copying it, but holds every table twice while it restores.

_ITERATIONS = "learning_rate/iterations"  # of a schedule: the only variable of an engine that is not a table


class Tables(NamedTuple):
    """The tables and slots that a run trains.

    Attributes:
      variables: float32 [rows, dim], by `<table>` and `<table>/<slot>`; empty if they are in a TPU's memory.
      holder: the trackable that has them under these names, and copies them from a TPU's memory and back.
      blocks: partitioned tables and slots, in blocks of consecutive rows, by the same names.
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
            raise CheckpointError(
                f"{prefix!r} cannot be restored ({error}): take another checkpoint, or the settings of its training."
            ) from error
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
        raise CheckpointError(
            f"{reader.prefix!r} is not of these tables: {'; '.join(problems)}. Use those that it was trained with."
        )
