"""Describes a finished run on disk, and restores its model and tables.

A run's folder holds `training.json` (described here), `checkpoints/` (the final state), `dense/` (the dense part, for
runs that start from it), `history.json` and `logs/` (for TensorBoard).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader
from embedding_core.checkpoint.series import read_training_checkpoint
from embedding_core.checkpoint.stored_keys import rows_of_rooms
from embedding_core.config import EmbeddingConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError
from embedding_core.model_inputs import build_model
from embedding_core.schema import Json
from embedding_core.tasks import POSITIVE, Task
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
