"""Queues pending batches: ids that wait for a core's lookup, and looked-up ids that wait for their gradients.

The queues are first in, first out, can be shared by several tf.functions, and are not part of checkpoints. When a TPU
would wait forever, they fail with tf.errors.InvalidArgumentError, whose message says what to do. When a step fails, the
pending batches are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines.batches import WIRE_TYPES, TableBatch, TableIds, flattened, joined
from embedding_core.engines.tables import unmirrored
from embedding_core.translate import TableSpec

_CAPACITY = 256  # batches that may wait for one core


def _new_queue(capacity: int, types: Sequence[tf.DType]) -> tf.queue.FIFOQueue:
    with tf.init_scope():
        return unmirrored(lambda: tf.queue.FIFOQueue(capacity, list(types)))


class CoreQueues:
    """One queue of batches per core."""

    def __init__(self, cores: int):
        self._queues = [_new_queue(_CAPACITY, [*WIRE_TYPES, tf.int32, tf.bool]) for _ in range(cores)]

    def put(self, batches: dict[int, list[TableIds]], training: tf.Tensor) -> list[tf.Operation]:
        """Enqueue a batch, one TableIds per table, for each core given; return the enqueue operations."""
        message = f"{_CAPACITY} batches wait for a core: dequeue as often as you enqueue."
        fullest = tf.reduce_max(tf.stack([self._queues[core].size() for core in batches]))
        flag = tf.cast(training, tf.bool)
        flat = {core: flattened(parts) for core, parts in batches.items()}
        checked = [part for parts in flat.values() for part in parts]  # if one input fails, no core is fed
        with tf.control_dependencies(checked), _after(tf.debugging.Assert(fullest < _CAPACITY, [message])):
            return [self._queues[core].enqueue([*parts, flag]) for core, parts in flat.items()]

    def drop(self) -> None:
        """Drop the batches of all cores."""
        for queue in self._queues:

            def body(dropped: tf.Tensor, queue: tf.queue.FIFOQueue = queue) -> tuple[tf.Tensor]:
                with _after(queue.dequeue()[0]):
                    return (dropped + 1,)

            tf.while_loop(lambda _, queue=queue: queue.size() > 0, body, (tf.constant(0),), parallel_iterations=1)

    def take(
        self, cores: Sequence[int], tables: Sequence[TableSpec], rows: Sequence[Sequence[int]]
    ) -> tuple[list[TableBatch], tf.Tensor]:
        """Dequeue the oldest batch of each core; return them joined, and whether they are for training.

        Args:
          cores: consecutive cores.
          tables: the tables.
          rows: the number of output rows of each feature of each table, on one core.
        """
        message = (
            "dequeue without a batch: a core's queue is empty, and a TPU would wait forever; enqueue a batch on "
            "every core before each dequeue. A step that failed, enqueue included, dropped all batches that waited."
        )
        emptiest = tf.reduce_min(tf.stack([self._queues[core].size() for core in cores]))
        with _after(tf.debugging.Assert(emptiest > 0, [message])):
            taken = [self._queues[core].dequeue() for core in cores]
        shape = [len(WIRE_TYPES), len(tables)]
        shaped = [[*parts, tf.ensure_shape(lengths, shape)] for *parts, lengths, _ in taken]
        return joined(shaped, tables, rows, first_core=cores[0]), _one_flag(
            [tf.ensure_shape(flag, []) for *_, flag in taken]
        )


def _one_flag(flags: Sequence[tf.Tensor]) -> tf.Tensor:
    stacked = tf.stack(list(flags))
    message = "Cores dequeued training batches and others in one step: enqueue the same kind on every core."
    same = tf.equal(tf.reduce_all(stacked), tf.reduce_any(stacked))
    with _after(tf.debugging.Assert(same, [message])):
        return tf.reduce_all(stacked)


class WaitingBatch:
    """Holds the training batch that was looked up last, until its gradients arrive.

    If the batch has a name, the next batch of that name replaces it, because `QueuedEngine` names every lookup and not
    every lookup gets gradients. If it has no name, a dequeue before its gradients arrive is an error.
    """

    def __init__(self, tables: int, name: str | None, failures: tf.Variable):
        self._queue = _new_queue(1, (tf.int64, tf.int64, tf.float32, tf.float32, tf.int32) * tables)
        self._name = name
        self._failures = failures
        with tf.init_scope():
            self._since = unmirrored(lambda: tf.Variable(-1, trainable=False, dtype=tf.int64))

    def replace(self, batches: Sequence[TableBatch], training: tf.Tensor) -> tf.Tensor:
        """Drop the held batch, and hold this one if it is for training; return an int32 scalar to wait for."""
        with _after(self._cleared()):
            return tf.cond(training, lambda: self._put(batches), lambda: tf.constant(0))

    def _put(self, batches: Sequence[TableBatch]) -> tf.Tensor:
        put = self._queue.enqueue([part for batch in batches for part in batch])
        with _after(put), _after(self._since.assign(self._failures)):
            return tf.constant(1)

    def _waits(self) -> tf.Tensor:
        """Return whether a batch is held that was stored after the last failed step."""
        return tf.logical_and(self._queue.size() > 0, tf.equal(self._since, self._failures))

    def _cleared(self) -> tf.Tensor:
        asserted = None
        if self._name is None:
            message = (
                "dequeue while a previous training batch waits for its gradients, and a TPU would wait forever: call "
                "apply_gradients once for each dequeued training batch, or enqueue with training=False."
            )
            asserted = tf.debugging.Assert(tf.logical_not(self._waits()), [message])
        with _after(asserted):
            return tf.cond(self._queue.size() > 0, self._forget, lambda: tf.constant(0))

    def _forget(self) -> tf.Tensor:
        with _after(self._queue.dequeue()[0]):
            return tf.constant(1)

    def take(self) -> list[TableBatch]:
        """Remove and return the batch, to apply its gradients."""
        message = (
            "apply_gradients without a training batch: dequeue a batch that was enqueued with training=True first, "
            "once for each apply_gradients. A step that failed dropped its batch."
        )
        with _after(tf.debugging.Assert(self._waits(), [message])):
            parts = self._queue.dequeue()
        width = len(TableBatch._fields)
        return [_shaped(TableBatch(*parts[start : start + width])) for start in range(0, len(parts), width)]


def _shaped(batch: TableBatch) -> TableBatch:
    *lists, form = batch
    return TableBatch(*(*(tf.ensure_shape(part, [None]) for part in lists), tf.ensure_shape(form, [])))


def _after(operation: tf.Operation | None) -> Any:
    """Return a context whose operations run after the given one, which in eager mode has already run."""
    return tf.control_dependencies([] if operation is None or tf.executing_eagerly() else [operation])
