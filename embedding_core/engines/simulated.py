"""The TPU's embedding engine, played on the host of a simulated TPU.

Each core has a queue of batches. `dequeue` takes one batch from every core's queue, looks all of them
up together and hands each core its part; `apply_gradients` collects the gradients of all cores and
updates every touched row once. Both meet the other cores in a merge_call. The variables are the
device memory: one full variable per table and slot, of which a host's block is a range of rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines import shapes
from embedding_core.engines.base import Engine, Track
from embedding_core.engines.batches import PART_TYPES, TableBatch, activations_of, joined, packed, row_gradients_of
from embedding_core.engines.rates import step_rates
from embedding_core.engines.strategy import SimulatedTPUStrategy
from embedding_core.engines.tables import unmirrored
from embedding_core.engines.updates import apply_to_table
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.features import FeatureSpec, kind_of, normal_form, policed
from embedding_core.translate import Model, TableSpec

__all__ = ["SimulatedEngine"]

CAPACITY = 256  # batches that may wait for one core
HOST = "CPU:0"


class _Box:
    """Carries values through a merge_call untouched."""

    def __init__(self, value: Any):
        self.value = value


class SimulatedEngine(Engine):
    """See the module; the methods are those of `TPUEmbedding`."""

    def __init__(self, model: Model, track: Track, seed: int, strategy: SimulatedTPUStrategy, *, pipelined: bool):
        super().__init__(model, track, seed)
        if strategy.embedding_feature != "V1":
            raise EngineError(
                f"TPUEmbedding on a simulated TPU with embedding_feature={strategy.embedding_feature!r}: such cores have "
                "no embedding engine; use TPUEmbeddingV0, or simulated_tpu(embedding_feature='V1')."
            )
        self._strategy = strategy
        self._pipelined = pipelined
        self.output_shapes = shapes.configured_shapes(model.features)
        self._queues: list[Any] = []
        self._waiting: dict[str | None, Any] = {}

    # Building

    def build(self, per_replica_input_shapes: Any = None, per_replica_batch_size: Any = None) -> None:
        """Fix the output shapes, create variables and queues, and occupy the simulated TPU.

        Raises:
          EngineError (RuntimeError): another engine was built since the TPU was initialized.
          DataError (ValueError): shapes that contradict each other or are not fully defined.
        """
        if self.built:
            return
        if self._strategy.embedding_engine is not None:
            raise EngineError(
                "TPU is already initialized for embeddings. This may be caused by using multiple TPUEmbedding "
                "instances in a TPU scope which is unsupported; initialize the TPU again before building another one."
            )
        self._set_output_shapes(per_replica_input_shapes, per_replica_batch_size)
        with tf.init_scope():
            self._create()
            self._queues = unmirrored(lambda: [self._new_queue(CAPACITY) for _ in range(self._cores)])
        self._strategy.embedding_engine = self

    @property
    def _cores(self) -> int:
        cores: int = self._strategy.num_replicas_in_sync
        return cores

    def _new_queue(self, capacity: int) -> Any:
        with tf.device(HOST):
            return tf.queue.FIFOQueue(capacity, [*PART_TYPES * len(self.model.tables), tf.bool])

    def _set_output_shapes(self, input_shapes: Any, batch: Any) -> None:
        features = self.model.features
        given = batch if input_shapes is None else input_shapes
        incoming = None
        if isinstance(given, int):
            incoming = shapes.shapes_of_batch(given, features)
        elif given is not None:
            flat = tf.nest.flatten(given)
            tf.nest.assert_same_structure(flat, tf.nest.flatten(self.model.structure))
            incoming = shapes.output_shapes(flat, features)
        if incoming is not None:
            shapes.check_shapes(self.output_shapes, incoming, features)
            self.output_shapes = shapes.merged_shapes(self.output_shapes, incoming)
        shapes.check_defined(self.output_shapes, features)

    def _rows(self, table: TableSpec) -> list[int]:
        """The output rows of each feature of a table, on one core."""
        return [math.prod(self.output_shapes[place].as_list()) for place in self.model.features_of(table.name)]

    def embedding_tables(self) -> dict[Any, tf.Variable]:
        """The tables, while a serving function is traced; as on a TPU they cannot be read while training.

        Raises:
          EngineError (RuntimeError): called from eager code or from a training step.
        """
        if tf.inside_function() and not tf.distribute.has_strategy() and self.built:
            return self._by_config()
        raise EngineError(
            "Unable to retrieve embedding tables when using a TPU strategy. If you need access, save your model, "
            "create this object under a CPU strategy and restore."
        )

    # Enqueue

    def enqueue(self, features: Any, weights: Any, training: Any, name: str | None, device: str | None) -> None:
        """See `TPUEmbedding.enqueue`."""
        del name  # it pairs dequeue with apply_gradients; what waits in a core's queue is taken in order
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        inside = context is not None
        if inside:
            self._refuse_nested(context)
        tf.nest.assert_same_structure(self.model.structure, features)
        flat = tf.nest.flatten(features)
        flat_weights: list[Any] = [None] * len(flat)
        if weights is not None:
            tf.nest.assert_same_structure(self.model.structure, weights)
            flat_weights = tf.nest.flatten(weights)
        if inside:
            self._enqueue_on(self._core_of(context), flat, flat_weights, training, explicit=False)
        elif device is not None:
            self._enqueue_on(self._core_at(device), flat, flat_weights, training, explicit=True)
        else:
            for core in range(self._cores):
                self._enqueue_on(
                    core, self._local(flat, core), self._local(flat_weights, core), training, explicit=False
                )

    def _local(self, values: Sequence[Any], core: int) -> list[Any]:
        found = []
        for value in values:
            local = self._strategy.experimental_local_results(value)
            found.append(local[core] if len(local) > 1 else local[0])
        return found

    def _core_of(self, context: Any) -> int:
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    def _core_at(self, device: str) -> int:
        devices = list(self._strategy.extended.worker_devices)
        for core, known in enumerate(devices):
            if tf.DeviceSpec.from_string(known).make_merged_spec(tf.DeviceSpec.from_string(device)) == (
                tf.DeviceSpec.from_string(known)
            ):
                return core
        raise DataError(f"Non-TPU device {device} passed to enqueue. The simulated cores are {devices}.")

    def _refuse_nested(self, context: Any) -> None:
        try:
            context.merge_call(lambda strategy: None)
        except RuntimeError as error:
            raise EngineError(
                "Current graph does not match graph which contains TPUReplicateContext. This is most likely due to the "
                "fact that enqueueing embedding data is called inside control flow or a tf.function inside "
                "`strategy.run`. Call enqueue outside of strategy.run, or at the top level of the function given to it."
            ) from error

    def _enqueue_on(self, core: int, flat: list[Any], weights: list[Any], training: Any, *, explicit: bool) -> None:
        features = self.model.features
        for value, feature in zip(flat, features, strict=True):
            if not kind_of(value):
                raise DataError(
                    f"Input {feature.path} is of unknown type {type(value)}. Please only pass Tensor, SparseTensor or "
                    "RaggedTensor as input to enqueue."
                )
            self._refuse_device(value, feature)
        found = [shapes.input_shape(value, feature) for value, feature in zip(flat, features, strict=True)]
        if not self.built:
            self.build(found)
        shapes.check_shapes(self.output_shapes, shapes.output_shapes(found, features), features)
        for value, weight, feature in zip(flat, weights, features, strict=True):
            _check_weight(value, weight, feature)
        with tf.device(HOST):
            parts = self._packed(core, flat, weights, explicit=explicit)
            queue = self._queues[core]
            message = f"{CAPACITY} batches wait for core {core}: dequeue as often as you enqueue."
            with tf.control_dependencies([tf.debugging.Assert(queue.size() < CAPACITY, [message])]):
                queue.enqueue([part for batch in parts for part in batch] + [tf.cast(training, tf.bool)])

    def _refuse_device(self, value: Any, feature: FeatureSpec) -> None:
        cores = set(self._strategy.extended.worker_devices)
        for tensor in tf.nest.flatten(value, expand_composites=True):
            if tensor.device not in cores:
                continue
            kind = "" if tf.executing_eagerly() else tensor.op.type
            if kind and "Iterator" not in kind and kind not in ("Placeholder", "Identity"):
                raise DataError(
                    f"Received input tensor {feature.path} which is the output of op {tensor.op.name} (type {kind}) "
                    "which does not have the `_tpu_input_identity` attr. Please ensure that the inputs to this layer "
                    "are taken directly from the arguments of the function called by strategy.run."
                )
            raise DataError(
                f"Received input tensor {feature.path} which is on a TPU input device {tensor.device}. Input tensors "
                "for TPU embeddings must be placed on the CPU. Please distribute the dataset with "
                "tf.distribute.InputOptions(experimental_fetch_to_device=False)."
            )

    def _packed(self, core: int, flat: list[Any], weights: list[Any], *, explicit: bool) -> list[TableBatch]:
        parts = []
        for table in self.model.tables:
            rows = self._rows(table)
            forms = [
                self._form(self.model.features[place], self.output_shapes[place], flat[place], weights[place])
                for place in self.model.features_of(table.name)
            ]
            parts.append(packed(table, forms, rows, first_row=core * sum(rows), explicit=explicit))
        return parts

    def _form(self, feature: FeatureSpec, shape: Any, value: Any, weight: Any) -> Any:
        expected = math.prod(shape.as_list())
        sequence = feature.max_sequence_length > 0 and feature.output_shape is None
        kind = kind_of(value)
        if kind == "dense":
            feature = dataclasses.replace(feature, max_sequence_length=0)
        elif kind == "ragged" and shape.rank != (2 if sequence else 1):
            feature = dataclasses.replace(feature, output_shape=tuple(shape.as_list()), max_sequence_length=0)
        form = normal_form(feature, value, weight, weighted_sequences=True)
        if feature.invalid_id != "error":  # the lookup on the host fails on an invalid id, naming the table
            form = policed(feature, form)
        return _with_rows(feature, form, expected)

    # Dequeue

    def dequeue(self, name: str | None) -> Any:
        """See `TPUEmbedding.dequeue`."""
        context = self._replica_context("dequeue")
        core = self._core_of(context)
        try:
            found = context.merge_call(lambda strategy: _Box(self._dequeue_all(name)))
            flat = found.value[core]
        except RuntimeError as error:
            if isinstance(error, EngineError) or "merge_call" not in str(error):
                raise
            flat = self._dequeue_one(core)
        return tf.nest.pack_sequence_as(self.model.structure, flat)

    def _replica_context(self, method: str) -> Any:
        if not self.built:
            raise EngineError(
                f"{method} called on unbuilt TPUEmbedding object. Please either call enqueue first or manually call the "
                "build method."
            )
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is None or tf.distribute.get_strategy() is not self._strategy:
            raise EngineError(
                f"{method} is not valid outside of strategy.run: call it in the function that the strategy of the "
                "TPUEmbedding object runs on every core."
            )
        return context

    def _dequeue_all(self, name: str | None) -> list[list[Any]]:
        """The activations of every core, flat in the order of the features."""
        with tf.device(HOST):
            batches, training = self._taken(range(self._cores))
            waiting = self._waiting_for(name)
            drained = self._drained(waiting, name)
            with tf.control_dependencies([drained]):
                kept = tf.cond(training, lambda: _put(waiting, batches), lambda: tf.constant(0))
            with tf.control_dependencies([kept]):
                return self._split([self._looked_up(*pair, self._cores) for pair in self._pairs(batches)])

    def _pairs(self, batches: Sequence[TableBatch]) -> list[tuple[TableSpec, TableBatch]]:
        return list(zip(self.model.tables, batches, strict=True))

    def _taken(self, cores: Sequence[int]) -> tuple[list[TableBatch], Any]:
        """The oldest batch of each core's queue, joined, and whether it is for training."""
        sizes = tf.stack([self._queues[core].size() for core in cores])
        message = (
            "dequeue without a batch: a core's queue is empty, and a TPU would wait for ever; enqueue a batch on every "
            "core before each dequeue."
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_min(sizes) > 0, [message])]):
            taken = [_parts(self._queues[core].dequeue()) for core in cores]
        training = tf.stack([flag for _, flag in taken])
        mixed = "Cores dequeued training batches and others: enqueue the same kind on every core."
        same = tf.equal(tf.reduce_all(training), tf.reduce_any(training))
        with tf.control_dependencies([tf.debugging.Assert(same, [mixed])]):
            flag = tf.reduce_all(training)
        parts = zip(self.model.tables, *(batches for batches, _ in taken), strict=True)
        return [joined(of_table, len(cores) * sum(self._rows(table))) for table, *of_table in parts], flag

    def _waiting_for(self, name: str | None) -> Any:
        if name not in self._waiting:
            with tf.init_scope():
                self._waiting[name] = unmirrored(lambda: self._new_queue(1))
        return self._waiting[name]

    def _drained(self, waiting: Any, name: str | None) -> Any:
        """Refuse, or with a name forget, a training batch that was dequeued and never given gradients.

        A name tells TensorFlow on a TPU which batches have an apply_gradients, so that the others need none.
        """
        left = waiting.size()
        if name is None:
            message = (
                "dequeue while an earlier training batch waits for its gradients, and a TPU would wait for ever: call "
                "apply_gradients once for each dequeued training batch, or enqueue with training=False."
            )
            with tf.control_dependencies([tf.debugging.Assert(tf.equal(left, 0), [message])]):
                return tf.constant(0)
        return tf.cond(left > 0, lambda: _forget(waiting), lambda: tf.constant(0))

    def _looked_up(self, table: TableSpec, batch: TableBatch, cores: int) -> Any:
        rows = tf.gather(self.variables[table.name]["parameters"], batch.ids, name=f"lookup_in_{_safe(table.name)}")
        return activations_of(table, rows, batch, cores * sum(self._rows(table)))

    def _split(self, activations: Sequence[Any], cores: int | None = None) -> list[list[Any]]:
        """Activations [all rows, dim] per table, cut into cores and features."""
        count = self._cores if cores is None else cores
        result: list[list[Any]] = [[None] * len(self.model.features) for _ in range(count)]
        for table, values in zip(self.model.tables, activations, strict=True):
            places = self.model.features_of(table.name)
            pieces = tf.split(values, self._rows(table) * count)
            for turn, piece in enumerate(pieces):
                core, place = divmod(turn, len(places))
                shape = self.output_shapes[places[place]].as_list()
                result[core][places[place]] = piece if len(shape) == 1 else tf.reshape(piece, [*shape, table.dim])
        return result

    def _dequeue_one(self, core: int) -> list[Any]:
        """Where cores cannot meet (in control flow or a nested function): batches without gradients only."""
        with tf.device(HOST):
            batches, training = self._taken([core])
            message = (
                "dequeue of a training batch inside control flow or a tf.function within strategy.run: call dequeue and "
                "apply_gradients at the top level of the function given to strategy.run, and pass the activations on."
            )
            with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(training), [message])]):
                moved = [
                    batch._replace(ids=tf.identity(batch.ids), segments=batch.segments - core * sum(self._rows(table)))
                    for table, batch in self._pairs(batches)
                ]
            return self._split([self._looked_up(*pair, 1) for pair in self._pairs(moved)], 1)[0]

    # Gradients

    def apply_gradients(self, gradients: Any, name: str | None) -> None:
        """See `TPUEmbedding.apply_gradients`."""
        context = self._replica_context("apply_gradients")
        tf.nest.assert_same_structure(self.model.structure, gradients)
        flat = [
            self._gradient(*item)
            for item in zip(tf.nest.flatten(gradients), self.model.features, self.output_shapes, strict=True)
        ]
        try:
            context.merge_call(lambda strategy, box: self._apply_all(strategy, box, name), args=(_Box(flat),))
        except RuntimeError as error:
            if isinstance(error, EngineError) or "merge_call" not in str(error):
                raise
            raise EngineError(
                "apply_gradients inside control flow or a tf.function within strategy.run, where the cores cannot meet: "
                "call it at the top level of the function given to strategy.run."
            ) from error

    def _gradient(self, gradient: Any, feature: FeatureSpec, shape: Any) -> Any:
        expected = [*shape.as_list(), feature.dim]
        if gradient is None:
            tf.get_logger().warning(
                "No gradient passed for feature %s, sending zero gradient. This may not be correct behavior for certain "
                "optimizers like Adam.",
                feature.path,
            )
            return tf.zeros([math.prod(expected[:-1]), feature.dim])
        if not tf.is_tensor(gradient) or kind_of(gradient) != "dense":
            raise DataError(f"found non-tensor type: {type(gradient)} at path {feature.path}.")
        if gradient.shape != expected:
            raise DataError(
                f"Found gradient of shape {gradient.shape} at path {feature.path}. Expected shape {expected}."
            )
        return tf.reshape(gradient, [-1, feature.dim]) if len(expected) != 2 else gradient

    def _apply_all(self, strategy: Any, boxes: Any, name: str | None) -> None:
        flat = [box.value for box in strategy.experimental_local_results(boxes)]
        with tf.device(HOST):
            waiting = self._waiting_for(name)
            message = (
                "apply_gradients without a training batch: dequeue a batch that was enqueued with training=True first, "
                "once for each apply_gradients."
            )
            with tf.control_dependencies([tf.debugging.Assert(waiting.size() > 0, [message])]):
                batches, _ = _parts(waiting.dequeue())
            rates = step_rates([_optimizer(table) for table in self.model.tables], None)
            for (table, batch), rate in zip(self._pairs(batches), rates, strict=True):
                places = self.model.features_of(table.name)
                whole = tf.concat([core[place] for core in flat for place in places], 0)
                self._update(table, batch, whole, rate)

    def _update(self, table: TableSpec, batch: TableBatch, gradient: Any, rate: Any) -> None:
        optimizer, own = _optimizer(table), self.variables[table.name]
        slots = [own[slot.name] for slot in optimizer.slots]
        apply_to_table(optimizer, own["parameters"], slots, batch.ids, row_gradients_of(batch, gradient), rate)


def _optimizer(table: TableSpec) -> Any:
    if table.optimizer is None:
        raise ConfigError(f"table {table.name!r} has no optimizer: give it one, or give TPUEmbedding one.")
    return table.optimizer


def _check_weight(value: Any, weight: Any, feature: FeatureSpec) -> None:
    if weight is None:
        return
    kind = kind_of(value)
    if kind == "dense":
        raise DataError(
            f"Weight specified for dense input {feature.path}, which is not allowed. Weight will always be 1 in this "
            "case."
        )
    if kind_of(weight) != kind:
        raise DataError(
            f"Weight for {feature.path} is type {type(weight)} which does not match type input which is "
            f"{type(value).__name__}."
        )


def _with_rows(feature: FeatureSpec, form: Any, expected: int) -> Any:
    """The form, checked to have the number of output rows that the engine was built for."""
    if isinstance(form.rows, int):
        if form.rows != expected:
            raise DataError(
                f"Inconsistent shape founded for input feature {feature.path}: its batch gives {form.rows} output rows, "
                f"but the engine was built for {expected} on each core."
            )
        return form
    message = (
        f"The batch of input feature {feature.path} does not have the {expected} output rows per core that the engine "
        "was built for: batch the data with drop_remainder=True."
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(form.rows, expected), [message, form.rows])]):
        return dataclasses.replace(form, ids=tf.identity(form.ids), rows=expected)


def _parts(components: Sequence[Any]) -> tuple[list[TableBatch], Any]:
    """The table batches and the training flag of a queue's element."""
    shaped = [tf.ensure_shape(part, [None]) for part in components[:-1]]
    width = len(PART_TYPES)
    batches = [TableBatch(*shaped[start : start + width]) for start in range(0, len(shaped), width)]
    return batches, tf.ensure_shape(components[-1], [])


def _put(queue: Any, batches: Sequence[TableBatch]) -> Any:
    done = queue.enqueue([part for batch in batches for part in batch] + [tf.constant(True)])
    with tf.control_dependencies([done] if done is not None else []):
        return tf.constant(1)


def _forget(queue: Any) -> Any:
    with tf.control_dependencies([queue.dequeue()[-1]]):
        return tf.constant(1)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
