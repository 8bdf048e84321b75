"""Checkpoints to resume from, and the best state so far. Never a silent start from nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedding_core.errors import CheckpointError
from embedding_core.training.step import Trainable

__all__ = ["RunState", "fingerprint"]

_log = logging.getLogger(__name__)

_INDEX = re.compile(r"ckpt-(\d+)\.index\Z")


def fingerprint(*parts: Any) -> str:
    """A digest of JSON values: what a run is made of, so that only the same run resumes it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _checkpoints(folder: str) -> list[tuple[int, str]]:
    """Step and path of every checkpoint in a folder, newest first; found by its files, not by the state file."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    found = [(int(match[1]), os.path.join(folder, match[0])) for match in map(_INDEX.match, names) if match]
    return [(step, path.removesuffix(".index")) for step, path in sorted(found, reverse=True)]


def _remove_leftovers(folder: str) -> None:
    """Remove what a kill in the middle of a save left behind; nothing else would."""
    for name in tf.io.gfile.listdir(folder):
        if name.rstrip("/").endswith("_temp"):
            tf.io.gfile.rmtree(os.path.join(folder, name))


class RunState:
    """A run's tables, dense part, step and early stopping, saved and restored together.

    Checkpoint keys: `embedding/<table>`, `embedding/<table>/<slot>`, `model/...`, `optimizer/...`, `step`,
    `best/value`, `best/step`, `best/waited`, `seen/rows`, `seen/positives`.
    """

    def __init__(self, trainable: Trainable, tables: tf.Module, folder: str) -> None:
        """Save below `folder`, which is created."""
        self._trainable = trainable
        self._folder = folder
        self.best_value = tf.Variable(math.nan, dtype=tf.float64, trainable=False)
        self.best_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen_rows = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen_positives = tf.Variable(0, dtype=tf.int64, trainable=False)
        weights = {
            "embedding": tables,
            "model": trainable.model,
            "optimizer": trainable.optimizer,
            "step": trainable.step,
        }
        best = tf.train.Checkpoint(value=self.best_value, step=self.best_step, waited=self.waited)
        seen = tf.train.Checkpoint(rows=self.seen_rows, positives=self.seen_positives)
        self._weights = tf.train.Checkpoint(**weights)
        self._all = tf.train.Checkpoint(**weights, best=best, seen=seen)
        tf.io.gfile.makedirs(folder)
        tf.io.gfile.makedirs(self._best_folder)
        for each in (folder, self._best_folder):
            _remove_leftovers(each)
        self._manager = tf.train.CheckpointManager(self._all, folder, max_to_keep=2)
        self._best = tf.train.CheckpointManager(self._weights, self._best_folder, max_to_keep=1)

    @property
    def _best_folder(self) -> str:
        return os.path.join(self._folder, "best")

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self._trainable.step.numpy())

    def save(self) -> None:
        """Save everything, to resume from."""
        self._manager.save(checkpoint_number=self.step)

    def save_best(self) -> None:
        """Save the weights as the best so far."""
        self._best.save(checkpoint_number=self.step)

    def write(self, folder: str) -> str:
        """Write the weights, without what only a resume needs, to `folder`; the checkpoint's path."""
        return str(tf.train.CheckpointManager(self._weights, folder, max_to_keep=1).save(checkpoint_number=self.step))

    def resume(self) -> bool:
        """Restore the newest checkpoint that can be read.

        Returns:
          False where there is none at all, and training starts from nothing.

        Raises:
          CheckpointError: there are checkpoints, but none can be read.
        """
        found = _checkpoints(self._folder)
        if not found:
            return False
        _restore_first(self._all, [path for _, path in found])
        self._manager = tf.train.CheckpointManager(self._all, self._folder, max_to_keep=2)
        return True

    def restore_best(self) -> None:
        """Go back to the best weights; nothing happens where no evaluation found any.

        Raises:
          CheckpointError: the best checkpoint is not there, or cannot be read.
        """
        best = int(self.best_step.numpy())
        if not best or best == self.step:
            return
        paths = [path for step, path in _checkpoints(self._best_folder) if step == best]
        if not paths:
            raise CheckpointError(
                f"the best checkpoint, of step {best}, is not in {self._best_folder!r}: remove {self._folder!r} to "
                "train again."
            )
        _restore_first(self._weights, paths)

    def discard(self) -> None:
        """Remove the checkpoints, once nothing will be resumed any more."""
        tf.io.gfile.rmtree(self._folder)


def _restore_first(checkpoint: tf.train.Checkpoint, paths: Sequence[str]) -> None:
    """Restore the first of the checkpoints that can be read completely."""
    problems = []
    for path in paths:
        try:
            checkpoint.restore(path).assert_existing_objects_matched()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
            _log.warning("cannot restore %s, trying an earlier one: %s", path, error)
            problems.append(f"{path}: {error}")
        else:
            return
    raise CheckpointError(
        "no checkpoint of this run can be read, remove their folder to train from nothing: " + "; ".join(problems)
    )
