"""Saves checkpoints to resume from, and the best state of a run; resuming fails if all of them are damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedding_core.checkpoint.series import (
    CheckpointSeries,
    TrainingCheckpoint,
    TrainingState,
    write_training_checkpoint,
)
from embedding_core.config import NonfiniteRows
from embedding_core.errors import CheckpointError, TrainingError
from embedding_core.training.step import Trainable

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
        dense = {"model": trainable.model, "optimizer": trainable.optimizer, "step": trainable.step}
        if trainable.table_optimizers:
            dense["table_optimizers"] = tf.train.Checkpoint(**trainable.table_optimizers)
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
        self._check_finite()
        self._states.save(step, self._all.write, files={HISTORY: history}, facts={_BEST: best})
        self._best_of[step] = best
        self._prune()

    def save_best(self) -> None:
        """Save the weights as the best ones; keep the previous best weights while a saved state refers to them."""
        self._bests.save(self.step, self._weights.write)
        self._bests.keep({self.step, *self._best_of.values()})

    def write(self, folder: str) -> str:
        """Write the weights to `folder`, without what only a resume needs; return the checkpoint's path.

        Raises:
          TrainingError: a row of a table is not finite, and `nonfinite` is "error".
        """
        self._check_finite()
        return write_training_checkpoint(folder, self.step, self._weights.write).prefix

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

    def _check_finite(self) -> None:
        bad = self._trainable.tables.nonfinite_rows()
        if bad and self._nonfinite == "keep":
            _log.warning("after step %d rows hold a NaN or an infinity (%s): kept", self.step, _rows_by_key(bad))
        elif bad:
            raise TrainingError(
                f"after step {self.step} rows hold a NaN or an infinity ({_rows_by_key(bad)}): lower the learning rate "
                "of their tables, set `clipvalue`, or keep them with `nonfinite_rows`: keep."
            )


def _rows_by_key(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key!r}: {count} rows" for key, count in sorted(counts.items()))
