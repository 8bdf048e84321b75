"""Looks up rows through a TPU's queues: enqueues ids, dequeues activations, and sends their gradients.

The queues are first in, first out, can be shared by several tf.functions, and are not part of checkpoints. When a TPU
would wait forever, they fail with tf.errors.InvalidArgumentError, whose message says what to do. When a step fails, the
pending batches are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines.batches import WIRE_TYPES, TableBatch, TableIds, flattened, joined
from embedding_core.engines.engine import Engine, Gradients, Lookup
from embedding_core.engines.feeding import output_rows
from embedding_core.engines.tables import unmirrored
from embedding_core.errors import DataError, EngineError
from embedding_core.feature_specs import FeatureSpec, Ids, Weights
from embedding_core.lookup import kind_of
from embedding_core.structures import Nested
from embedding_core.translate import Model, TableSpec

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


class QueuedEngine(Engine):
    """What the simulated engine and a V1 TPU have in common."""

    on_tpu = True

    def __init__(self, model: Model, queues: Any = None):
        """Look up through an object that has the methods of `tf.tpu.experimental.embedding.TPUEmbedding`.

        Args:
          model: tables and features.
          queues: has `enqueue`, `dequeue` and `apply_gradients`; None if the engine itself has them.
        """
        self.model = model
        self._api: Any = self if queues is None else queues
        self._lookups = 0

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """Enqueue a batch; each call has a name, which tells the engine which lookups get gradients.

        Raises:
          EngineError (RuntimeError): called outside of strategy.run, or inside control flow within it.
        """
        if tf.distribute.in_cross_replica_context():  # otherwise a batch would be enqueued and never dequeued
            raise EngineError(
                "The layer was created under a TPU's strategy and is called outside of strategy.run, and only "
                "the cores can look up: call it in the function given to strategy.run, or by model.fit, evaluate or "
                "predict."
            )
        self._lookups += 1
        name, structure = str(self._lookups), self.model.structure

        def update(gradients: Gradients) -> None:
            self._api.apply_gradients(tf.nest.pack_sequence_as(structure, list(gradients)), name)

        self._enqueue_named(*packed_like(structure, values, weights), name)
        return Lookup(lambda: tf.nest.flatten(self._api.dequeue(name)), update)

    def _enqueue_named(self, features: Nested, weights: Nested, name: str) -> None:
        try:
            self._api.enqueue(features, weights, True, name, None)
        except RuntimeError as error:
            if "control flow" not in str(error):
                raise
            names = [feature.path for feature in self.model.features]
            raise EngineError(
                f"The lookup of {names} is inside tf.cond, a loop or a nested tf.function within strategy.run: "
                "the cores cannot meet there. Call the layer before, at the top level of the function given to "
                "strategy.run, and pass its activations in."
            ) from error


def packed_like(structure: Nested, values: Sequence[Ids], weights: Sequence[Weights]) -> tuple[Nested, Nested]:
    """Pack flat ids and weights into the configuration's structure; the weights are None if each of them is None."""
    features = tf.nest.pack_sequence_as(structure, list(values))
    if all(weight is None for weight in weights):
        return features, None
    return features, tf.nest.pack_sequence_as(structure, list(weights))


# Packs the activations, or the gradients, of each core into one vector, so that one tensor is sent per core.


def vectors_of_cores(activations: Sequence[tf.Tensor], cores: int) -> list[tf.Tensor]:
    """Pack the activations of all tables, each [rows of all cores, dim], into one vector per core."""
    rows = [tf.reshape(values, [cores, -1]) for values in activations]
    return list(tf.unstack(rows[0] if len(rows) == 1 else tf.concat(rows, 1), num=cores))


def unpacked(vector: tf.Tensor, model: Model, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Unpack the vector of one core into the activations of each feature, in the order of the features.

    Args:
      vector: vector of one core.
      model: tables and features.
      shapes: the output shape of each feature, fully defined.
    """
    sizes = [rows * table.dim for table in model.tables for rows in output_rows(model, table.name, shapes)]
    constant = functools.cache(tf.constant)  # most features share a shape, and every core repeats this
    activations = {
        place: tf.reshape(piece, constant((*shapes[place].as_list(), model.features[place].dim)))
        for place, piece in zip(_order(model), tf.split(vector, sizes), strict=True)
    }
    return [activations[place] for place in range(len(activations))]


def packed_gradients(
    gradients: Sequence[tf.Tensor | None], model: Model, shapes: Sequence[tf.TensorShape]
) -> tf.Tensor:
    """Pack the gradients of one core into one vector, table by table.

    Args:
      gradients: gradients of the activations, in the order of the features; None counts as zeros.
      model: tables and features.
      shapes: the output shape of each feature, fully defined.

    Raises:
      DataError (ValueError): a gradient is not a dense tensor, or does not have the shape of its activations.
    """
    checked = [checked_gradient(*item) for item in zip(gradients, model.features, shapes, strict=True)]
    flat = tf.constant([-1])
    return tf.concat([tf.reshape(checked[place], flat) for place in _order(model)], 0)


def _order(model: Model) -> list[int]:
    """Return the positions of the features in `model.features`, table by table."""
    return [place for table in model.tables for place in model.features_of(table.name)]


def checked_gradient(gradient: tf.Tensor | None, feature: FeatureSpec, shape: tf.TensorShape) -> tf.Tensor:
    """Check the gradient of one feature on one core; return zeros in the shape of its activations if it is None.

    Raises:
      DataError (ValueError): it is not a dense tensor, or does not have the shape of its activations.
    """
    expected = [*shape.as_list(), feature.dim]
    if gradient is None:
        tf.get_logger().warning(
            "No gradient passed for feature %s, sending zero gradient. This may not be correct behavior for certain "
            "optimizers like Adam.",
            feature.path,
        )
        return tf.zeros(expected)
    if kind_of(gradient) != "dense":
        raise DataError(f"found non-tensor type: {type(gradient)} at path {feature.path}.")
    if gradient.shape != expected:
        raise DataError(f"Found gradient of shape {gradient.shape} at path {feature.path}. Expected shape {expected}.")
    return gradient
