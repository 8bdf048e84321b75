"""Checkpoints to resume from, and the best state so far. Never a silent start from nothing."""

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

from embedding_core.checkpoint.series import CheckpointSeries, TrainingCheckpoint, write_training_checkpoint
from embedding_core.checkpoint.state import TrainingState, nonfinite_rows
from embedding_core.config import NonfiniteRows
from embedding_core.errors import CheckpointError, TrainingError
from embedding_core.training.step import Trainable

HISTORY = "history.json"
_KEPT = 2  # states to resume from: where the newest is damaged, there is the one before
_BEST = "best_step"
_log = logging.getLogger(__name__)


def fingerprint(*parts: Any) -> str:
    """A digest of JSON values: what a run is made of, so that only the same run resumes it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class RunState:
    """A run's tables, dense part, step and early stopping, saved and restored together.

    Checkpoint keys: `embedding/<table>`, `embedding/<table>/<slot>`, `model/...`, `optimizer/...`, `step`,
    `best/value`, `best/step`, `best/waited`, `seen/rows`, `seen/positives`; in place of the slots
    `table_optimizers/<table>/...` where Keras' optimizers train the tables.
    """

    def __init__(self, trainable: Trainable, folder: str, nonfinite: NonfiniteRows = "error") -> None:
        """Save below `folder`, which is created and belongs to this run alone.

        Args:
          trainable: what to save.
          folder: where.
          nonfinite: whether rows that hold a NaN or an infinity are an "error", or are counted and kept.
        """
        self._trainable = trainable
        self._nonfinite = nonfinite
        self._folder = folder
        self.best_value = tf.Variable(math.nan, dtype=tf.float64, trainable=False)
        self.best_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen_rows = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen_positives = tf.Variable(0, dtype=tf.int64, trainable=False)
        dense = {"model": trainable.model, "optimizer": trainable.optimizer, "step": trainable.step}
        if trainable.table_optimizers:
            dense["table_optimizers"] = tf.train.Checkpoint(**trainable.table_optimizers)
        best = tf.train.Checkpoint(value=self.best_value, step=self.best_step, waited=self.waited)
        seen = tf.train.Checkpoint(rows=self.seen_rows, positives=self.seen_positives)
        self._weights = TrainingState(trainable.tables, dense)
        self._all = TrainingState(trainable.tables, {**dense, "best": best, "seen": seen})
        self._states = CheckpointSeries(folder)
        self._bests = CheckpointSeries(os.path.join(folder, "best"))
        self._best_of: dict[int, int] = {}  # per state kept, the best step so far when it was saved

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self._trainable.step.numpy())

    @property
    def is_saved(self) -> bool:
        """Whether this step's state is the newest one saved or restored."""
        return self.step in self._best_of

    def save(self, history: str) -> None:
        """Save everything, to resume from, with the history of the run as JSON; a step is saved once.

        To replace the state of a step would leave a moment in which it is not there.

        Raises:
          TrainingError: a row of a table is not finite, and that is an error. The checkpoints saved before stay.
          CheckpointError: it cannot be written.
        """
        if self.is_saved:
            return
        step, best = self.step, int(self.best_step.numpy())
        self._check_finite()
        self._states.save(step, self._all.write, files={HISTORY: history}, facts={_BEST: best})
        self._best_of[step] = best
        self._prune()

    def save_best(self) -> None:
        """Save the weights as the best so far; earlier ones stay as long as a state may go back to them."""
        self._bests.save(self.step, self._weights.write)
        self._bests.keep({self.step, *self._best_of.values()})

    def write(self, folder: str) -> str:
        """Write the weights, without what only a resume needs, to `folder`; the checkpoint's path."""
        return write_training_checkpoint(folder, self.step, self._weights.write).prefix

    def resume(self) -> TrainingCheckpoint | None:
        """Restore the newest checkpoint that verifies.

        Returns:
          What was restored; None where there is none at all, and training starts from nothing.

        Raises:
          CheckpointError: there are checkpoints, but none verifies.
        """
        found = self._states.restore(lambda checkpoint: self._all.restore(checkpoint.prefix))
        for step in self._states.steps()[:_KEPT]:
            with contextlib.suppress(CheckpointError):  # an older one, which nothing needs now
                self._best_of[step] = self._states.facts(step)[_BEST]
        self._prune()
        return found

    def _prune(self) -> None:
        """Forget all but the newest states, and every best that none of them goes back to."""
        self._best_of = {step: self._best_of[step] for step in sorted(self._best_of)[-_KEPT:]}
        self._states.keep(self._best_of)
        self._bests.keep(self._best_of.values())

    def restore_best(self) -> None:
        """Go back to the best weights; nothing happens where no evaluation found any.

        Raises:
          CheckpointError: the best checkpoint is not there, or is damaged.
        """
        best = int(self.best_step.numpy())
        if best and best != self.step:
            self._weights.restore(self._bests.verified(best).prefix)

    def discard(self) -> None:
        """Remove the checkpoints, once nothing will be resumed any more."""
        tf.io.gfile.rmtree(self._folder)

    def _check_finite(self) -> None:
        bad = nonfinite_rows(self._trainable.tables.variables)
        if bad and self._nonfinite == "keep":
            _log.warning("after step %d rows hold a NaN or an infinity (%s): kept", self.step, _told(bad))
        elif bad:
            raise TrainingError(
                f"after step {self.step} rows hold a NaN or an infinity ({_told(bad)}): lower the learning rate of "
                "their tables, set `clipvalue`, or keep them with `nonfinite_rows`: keep."
            )


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key!r}: {count} rows" for key, count in sorted(counts.items()))
