"""The batches that wait: ids for a core's lookup, and looked-up ids for their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines.batches import PART_TYPES, TableBatch
from embedding_core.engines.tables import unmirrored

__all__ = ["CAPACITY", "BatchQueue", "WaitingBatch", "joined_flags"]

CAPACITY = 256  # batches that may wait for one core


class BatchQueue:
    """First in, first out; an element is one TableBatch per table and whether it is for training.

    Safe across tf.functions; not part of checkpoints. Where a TPU would wait for ever it fails.
    """

    def __init__(self, tables: int, capacity: int = CAPACITY):
        with tf.init_scope():
            self._queue = unmirrored(lambda: tf.queue.FIFOQueue(capacity, [*PART_TYPES * tables, tf.bool]))
        self._capacity = capacity

    def size(self) -> Any:
        """Number of batches, int32 scalar."""
        return self._queue.size()

    def put(self, batches: Sequence[TableBatch], training: Any, message: str) -> Any:
        """Add a batch; an int32 scalar that depends on it. `message` tells what to do where the queue is full."""
        with _after(tf.debugging.Assert(self._queue.size() < self._capacity, [message])):
            done = self._queue.enqueue([part for batch in batches for part in batch] + [tf.cast(training, tf.bool)])
        with _after(done):
            return tf.constant(1)

    def take(self, message: str) -> tuple[list[TableBatch], Any]:
        """The oldest batch, and whether it is for training. `message` tells what to do where there is none."""
        with _after(tf.debugging.Assert(self._queue.size() > 0, [message])):
            components = self._queue.dequeue()
        shaped = [tf.ensure_shape(part, [None]) for part in components[:-1]]
        width = len(PART_TYPES)
        batches = [TableBatch(*shaped[start : start + width]) for start in range(0, len(shaped), width)]
        return batches, tf.ensure_shape(components[-1], [])


class WaitingBatch:
    """The training batch that was looked up last and waits for its gradients.

    A batch with a name may be forgotten: the name tells which lookups get gradients. One without a
    name may not.
    """

    def __init__(self, tables: int, name: str | None):
        self._queue = BatchQueue(tables, 1)
        self._name = name

    def replace(self, batches: Sequence[TableBatch], training: Any) -> Any:
        """Keep a batch if it is for training; an int32 scalar that depends on it."""
        with _after(self._cleared()):
            return tf.cond(
                training,
                lambda: self._queue.put(batches, True, "two batches wait for gradients"),
                lambda: tf.constant(0),
            )

    def _cleared(self) -> Any:
        left = self._queue.size()
        if self._name is None:
            message = (
                "dequeue while an earlier training batch waits for its gradients, and a TPU would wait for ever: call "
                "apply_gradients once for each dequeued training batch, or enqueue with training=False."
            )
            return tf.debugging.Assert(tf.equal(left, 0), [message])
        return tf.cond(left > 0, self._forget, lambda: tf.constant(0))

    def _forget(self) -> Any:
        _, training = self._queue.take("no batch waits")
        with _after(training):
            return tf.constant(1)

    def take(self) -> list[TableBatch]:
        """The batch, for its gradients."""
        message = (
            "apply_gradients without a training batch: dequeue a batch that was enqueued with training=True first, "
            "once for each apply_gradients."
        )
        return self._queue.take(message)[0]


def joined_flags(flags: Sequence[Any]) -> Any:
    """Whether the batches of all cores are for training.

    Raises:
      tf.errors.InvalidArgumentError: some are and some are not.
    """
    stacked = tf.stack(list(flags))
    message = "Cores dequeued training batches and others in one step: enqueue the same kind on every core."
    same = tf.equal(tf.reduce_all(stacked), tf.reduce_any(stacked))
    with _after(tf.debugging.Assert(same, [message])):
        return tf.reduce_all(stacked)


def _after(operation: Any) -> Any:
    """The context in which operations run after that one; eagerly it has run already."""
    return tf.control_dependencies([] if operation is None or tf.executing_eagerly() else [operation])
