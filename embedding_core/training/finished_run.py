"""Describes a finished run on disk, restores its model and tables, and saves the checkpoints of a training.

A run's folder holds `training.json` (described here), `checkpoints/` (the final state), `dense/` (the dense part, for
runs that start from it), `history.json` and `logs/` (for TensorBoard).

Checkpoints are saved to resume from, and for the best state of a run; resuming fails if all of them are damaged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader
from embedding_core.checkpoint.series import (
    CheckpointSeries,
    TrainingCheckpoint,
    TrainingState,
    read_training_checkpoint,
    write_training_checkpoint,
)
from embedding_core.checkpoint.stored_keys import rows_of_rooms
from embedding_core.config import EmbeddingConfig, NonfiniteRows
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, TrainingError
from embedding_core.model_inputs import build_model
from embedding_core.schema import Json
from embedding_core.tasks import POSITIVE, Task
from embedding_core.training.step import Trainable
from embedding_core.training_config import TrainingConfig

_FILE = "training.json"
_STACKED_ON = ("chips", "per_chip")  # keys of `stacked_on` in the file


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription:
    """The settings and data that a model was trained with, and its final step and checkpoint.

    Attributes:
      model: dotted name of the module with the function `build`.
      arguments: arguments of `build`.
      config: tables and features.
      training: settings of the training.
      dense: names of the dense features.
      tasks: what the model is trained for.
      weight: name of the sample weight among the transformed columns, or None.
      step: step of the final state.
      checkpoint: name of the final checkpoint, in `checkpoints/`.
      vocabularies: digest of each vocabulary of the tables, by name.
      stacked_on: chips of the real TPU whose checkpoint has the tables stacked, and SparseCores of each; None if it has
        plain tables.
    """

    model: str
    arguments: Json
    config: EmbeddingConfig
    training: TrainingConfig
    dense: tuple[str, ...]
    tasks: tuple[Task, ...]
    weight: str | None
    step: int
    checkpoint: str
    vocabularies: Mapping[str, str]
    stacked_on: tuple[int, int] | None = None

    def save(self, folder: str) -> None:
        """Write `training.json`."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["config"] = json.loads(self.config.to_json())
        data["training"] = self.training.to_mapping()
        data["tasks"] = [task.to_mapping() for task in self.tasks]
        data["stacked_on"] = None if self.stacked_on is None else dict(zip(_STACKED_ON, self.stacked_on, strict=True))
        with tf.io.gfile.GFile(os.path.join(folder, _FILE), "w") as file:
            file.write(json.dumps(data, indent=2))

    @classmethod
    def load(cls, folder: str) -> RunDescription:
        """Read `training.json` of a run's folder.

        Raises:
          CheckpointError: the file is missing or does not describe a run.
        """
        path = os.path.join(folder, _FILE)
        try:
            with tf.io.gfile.GFile(path) as file:
                data = json.loads(file.read())
            data["config"] = EmbeddingConfig.from_json(json.dumps(data["config"]))
            data["training"].pop("table_optimizer", None)  # of earlier releases; the tables of `config` have optimizers
            data["training"] = TrainingConfig.from_mapping(data["training"])
            data["dense"] = tuple(data["dense"])
            data["tasks"] = tuple(_tasks(data))
            stacked_on = data.get("stacked_on")
            data["stacked_on"] = tuple(stacked_on[key] for key in _STACKED_ON) if stacked_on else None
            return cls(**data)
        except (tf.errors.NotFoundError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path!r} does not describe a training run: {error}") from error


def slice_of_run(folder: str) -> tuple[int, int] | None:
    """Return `RunDescription.stacked_on` of a run's folder; None if another trainer wrote the folder.

    Raises:
      CheckpointError: `training.json` does not describe a run.
    """
    if not tf.io.gfile.exists(os.path.join(folder, _FILE)):
        return None
    return RunDescription.load(folder).stacked_on


def _tasks(data: Json) -> list[Task]:
    """Read the tasks; releases up to 0.1.0 wrote the name of the one label, or null for positives only."""
    if "tasks" in data:
        return [Task.from_mapping(task) for task in data["tasks"]]
    key = data.pop("label")
    return [POSITIVE if key is None else Task(key=key)]


@dataclasses.dataclass(frozen=True)
class RestoredRun:
    """A trained model: its description, an engine with its tables (without slots), and its dense part."""

    description: RunDescription
    engine: HostEngine
    model: tf_keras.Model


def restore_run(folder: str) -> RestoredRun:
    """Rebuild the model of a run's folder and restore its final state.

    Raises:
      CheckpointError: the description or the checkpoint is missing, damaged, or of another model.
    """
    run = RunDescription.load(folder)
    path = os.path.join(folder, "checkpoints", run.checkpoint)
    if read_training_checkpoint(os.path.dirname(path)).prefix != path:
        raise CheckpointError(f"{path!r} is missing: the folder holds the checkpoint of another run; restore it.")
    engine, model = restore_weights(
        path, run.model, run.config, run.dense, run.arguments, run.tasks, stacked_on=run.stacked_on
    )
    return RestoredRun(run, engine, model)


def restore_weights(
    prefix: str,
    model: str,
    config: EmbeddingConfig,
    dense: Sequence[str],
    arguments: Json,
    tasks: Sequence[Task],
    *,
    stacked_on: tuple[int, int] | None = None,
) -> tuple[HostEngine, tf_keras.Model]:
    """Restore the tables, without slots, and the dense part of a training checkpoint in this process.

    Args:
      prefix: path of the checkpoint, written under any strategy.
      model: dotted name of the module with the function `build`.
      config: tables and features.
      dense: names of the dense features.
      arguments: arguments of `build`.
      tasks: what the model is trained for.
      stacked_on: as in RunDescription.

    Raises:
      CheckpointError: the checkpoint is damaged, or of another model.
    """
    engine = HostEngine(config, with_slots=False)
    built = build_model(model, config, dense, arguments, tasks)
    parts = {"embedding": engine.tables, "model": built}
    rows_of = rows_of_rooms(BundleReader(prefix), config, None, stacked_on, SLICE_BYTES)
    if rows_of is not None:
        del parts["embedding"]
        for name, variable in engine.table_variables.items():
            for start, rows in rows_of(name):
                variable.scatter_update(tf.IndexedSlices(rows, tf.range(start, start + len(rows))))
    try:
        status = tf.train.Checkpoint(**parts).restore(prefix)
        status.expect_partial().assert_existing_objects_matched()
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        raise CheckpointError(f"cannot restore the model from {prefix!r}: {error}") from error
    return engine, built


HISTORY = "history.json"
_KEPT = 2  # states to resume from: if the newest is damaged, the previous one is used
_BEST = "best_step"
_log = logging.getLogger(__name__)


def fingerprint(*parts: Any) -> str:
    """Compute a digest of the JSON values that define a run, so that only the same run resumes it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class RunState:
    """A run's tables, dense part, step and early stopping, saved and restored together.

    Checkpoint keys: `embedding/<table>`, `embedding/<table>/<slot>`, `model/...`, `optimizer/...`, `step`,
    `best/value`, `best/step`, `best/waited`, `seen/rows`, `seen/positives`; if Keras' optimizers train the tables,
    `table_optimizers/<table>/...` in place of the slots.
    """

    def __init__(self, trainable: Trainable, folder: str, nonfinite: NonfiniteRows = "error") -> None:
        """Save below `folder`, which is created and belongs to this run alone.

        Args:
          trainable: state to save.
          folder: folder for the checkpoints.
          nonfinite: "error" to raise an error if rows hold a NaN or an infinity, "keep" to count and keep them.
        """
        self._trainable = trainable
        self._nonfinite = nonfinite
        self._folder = folder
        self.best_value = tf.Variable(math.nan, dtype=tf.float64, trainable=False)
        self.best_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen_rows = tf.Variable(0, dtype=tf.int64, trainable=False)
        # A scalar for one task, as releases up to 0.1.0 saved it.
        none = 0 if len(trainable.tasks) == 1 else [0] * len(trainable.tasks)
        self.seen_positives = tf.Variable(none, dtype=tf.int64, trainable=False)
        dense = _dense(trainable)
        best = tf.train.Checkpoint(value=self.best_value, step=self.best_step, waited=self.waited)
        seen = tf.train.Checkpoint(rows=self.seen_rows, positives=self.seen_positives)
        self._weights = TrainingState(trainable.tables, dense)
        self._all = TrainingState(trainable.tables, {**dense, "best": best, "seen": seen})
        self._states = CheckpointSeries(folder)
        self._bests = CheckpointSeries(os.path.join(folder, "best"))
        self._best_of: dict[int, int] = {}  # per kept state, the best step at the time it was saved

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self._trainable.step.numpy())

    def save(self, history: str) -> None:
        """Save everything to resume from, with the history of the run as JSON.

        A step is saved only once: replacing its state would leave a moment without a saved state.

        Raises:
          TrainingError: a row of a table is not finite, and `nonfinite` is "error". Previous checkpoints stay.
          CheckpointError: the state cannot be written.
        """
        step, best = self.step, int(self.best_step.numpy())
        if step in self._best_of:
            return
        _check_finite(self._trainable, self._nonfinite)
        self._states.save(step, self._all.write, files={HISTORY: history}, facts={_BEST: best})
        self._best_of[step] = best
        self._prune()

    def save_best(self) -> None:
        """Save the weights as the best ones; keep the previous best weights while a saved state refers to them."""
        self._bests.save(self.step, self._weights.write)
        self._bests.keep({self.step, *self._best_of.values()})

    def resume(self) -> TrainingCheckpoint | None:
        """Restore the newest valid checkpoint.

        Returns:
          The restored checkpoint; None if there is no checkpoint, so that training starts at step 0.

        Raises:
          CheckpointError: there are checkpoints, but none is valid.
        """
        restored = self._states.restore(lambda checkpoint: self._all.restore(checkpoint.prefix))
        for step in self._states.steps()[:_KEPT]:
            with contextlib.suppress(CheckpointError):  # an older state that is damaged: nothing needs it now
                self._best_of[step] = self._states.facts(step)[_BEST]
        self._prune()
        return restored

    def _prune(self) -> None:
        """Remove all but the newest states, and all best weights that none of these states refers to."""
        self._best_of = {step: self._best_of[step] for step in sorted(self._best_of)[-_KEPT:]}
        self._states.keep(self._best_of)
        self._bests.keep(self._best_of.values())

    def restore_best(self) -> None:
        """Restore the best weights, if an evaluation has chosen any.

        Raises:
          CheckpointError: the best checkpoint is missing or damaged.
        """
        best = int(self.best_step.numpy())
        if best and best != self.step:
            self._weights.restore(self._bests.verified(best).prefix)

    def discard(self) -> None:
        """Remove the checkpoints after the run is complete."""
        tf.io.gfile.rmtree(self._folder)


def write_weights(trainable: Trainable, folder: str, nonfinite: NonfiniteRows) -> str:
    """Write the weights to `folder`, without what only a resume needs; return the checkpoint's path.

    Raises:
      TrainingError: a row of a table is not finite, and `nonfinite` is "error".
    """
    _check_finite(trainable, nonfinite)
    weights = TrainingState(trainable.tables, _dense(trainable))
    return write_training_checkpoint(folder, int(trainable.step.numpy()), weights.write).prefix


def _dense(trainable: Trainable) -> dict[str, object]:
    """Return what is saved beside the tables, by its key."""
    dense = {"model": trainable.model, "optimizer": trainable.optimizer, "step": trainable.step}
    if trainable.table_optimizers:
        dense["table_optimizers"] = tf.train.Checkpoint(**trainable.table_optimizers)
    return dense


def _check_finite(trainable: Trainable, nonfinite: NonfiniteRows) -> None:
    bad, step = trainable.nonfinite_rows(), int(trainable.step.numpy())
    if bad and nonfinite == "keep":
        _log.warning("after step %d rows hold a NaN or an infinity (%s): kept", step, _rows_by_key(bad))
    elif bad:
        raise TrainingError(
            f"after step {step} rows hold a NaN or an infinity ({_rows_by_key(bad)}): lower the learning rate "
            "of their tables, set `clipvalue`, or keep them with `nonfinite_rows`: keep."
        )


def _rows_by_key(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key!r}: {count} rows" for key, count in sorted(counts.items()))
