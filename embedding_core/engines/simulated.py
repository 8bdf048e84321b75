"""Emulates the TPU embedding engine on the CPU host of a simulated TPU, and recovers from failed steps.

Each core has a queue of batches. `dequeue` takes one batch from every core's queue, looks all of them up together and
gives each core its part. `apply_gradients` collects the gradients of all cores and updates the touched rows. In both,
the cores synchronize in a merge_call. The variables emulate the device memory: one full variable per table and slot, of
which each host's block is a range of rows.

The step after a failed one starts without anything that the failed one left behind.

A failure in eager code, or while a function is traced, raises an exception that the engine or the strategy sees. If a
tf.function fails while it runs, it stops somewhere between its calls of the engine, and neither sees the exception.
Therefore each traced call records its number within the function after it has run. The next function, or the next
eager call, checks whether the last function completed all of its calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from embedding_core.engines import feeding
from embedding_core.engines.batches import TableBatch, TableIds, activations_of, row_gradients_of, traced_once
from embedding_core.engines.engine import ReplicaValue
from embedding_core.engines.feeding import check_inputs, check_weights, output_rows, packed_inputs
from embedding_core.engines.hardware_configs import refuse_ignored
from embedding_core.engines.queues import (
    CoreQueues,
    QueuedEngine,
    WaitingBatch,
    packed_gradients,
    unpacked,
    vectors_of_cores,
)
from embedding_core.engines.simulated_strategy import (
    ReplicaContext,
    SimulatedTPUStrategy,
    cannot_meet,
    core_at,
    core_of,
    local_values,
    refuse_nested,
)
from embedding_core.engines.table_updates import EarlierRows, optimizer_of, train_table
from embedding_core.engines.tables import (
    ITERATIONS,
    Tables,
    Track,
    Variables,
    device_variables,
    keyed_variables,
    new_iterations,
    step_rates,
    unmirrored,
)
from embedding_core.errors import EngineError
from embedding_core.feature_specs import AnyTable, Ids, Weights
from embedding_core.lookup import quantized
from embedding_core.structures import Nested, flat_like
from embedding_core.translate import Model, TableSpec


@dataclasses.dataclass(frozen=True)
class _Place:
    """A call of the engine within a function.

    Attributes:
      position: the number of the function and the number of the call within it, from 1.
      started: control inputs of the call's operations.
    """

    position: tuple[int, int]
    started: Sequence[tf.Operation]


class Steps:
    """Tracks the calls of an engine within each function, and how many of them the last function completed.

    Attributes:
      failures: the number of times that `clear` ran, int64 scalar variable.
    """

    def __init__(self, clear: Callable[[], None]):
        """Start with zero failures.

        Args:
          clear: function that drops what is pending in the engine; runs eagerly and inside tf.function.
        """
        self._clear = clear
        # [function number, calls so far]
        self._functions: weakref.WeakKeyDictionary[tf.Graph, list[int]] = weakref.WeakKeyDictionary()
        self._last, self._calls, self.failures = unmirrored(
            lambda: (
                # (function number, call number) of the last completed call in a function; (0, 0) if there is none
                tf.Variable([0, 0], trainable=False, dtype=tf.int64),
                tf.Variable([0], trainable=False, dtype=tf.int64, shape=[None]),  # calls, by number of the function
                tf.Variable(0, trainable=False, dtype=tf.int64),
            )
        )

    def failed(self) -> None:
        """Drop at once what is pending, even while a function is traced."""
        with tf.init_scope():
            self._drop()
            self._last.assign([0, 0])

    @contextlib.contextmanager
    def call(self) -> Iterator[list[tf.Operation]]:
        """Start a call of the engine; yield a list, to be filled with the operations that end the call."""
        place = self._begin()
        done: list[tf.Operation] = []
        with tf.control_dependencies(place.started if place else []):
            yield done
        if place is not None:
            with tf.control_dependencies(done):
                self._last.assign(place.position)

    def _begin(self) -> _Place | None:
        """Start a call of the engine; return its place if it is traced, else None."""
        if tf.executing_eagerly():
            if self._unfinished():
                self.failed()
            return None
        here = tf.compat.v1.get_default_graph()
        function, started = self._function_of(here)
        number, calls = self._functions[function]
        self._functions[function] = [number, calls + 1]
        with tf.init_scope():
            self._calls.scatter_nd_update([[number]], [calls + 1])
        # In a loop, the last recorded call may belong to the previous iteration, so record where this one starts.
        if here is not function:
            started = [self._last.assign([number, calls])]
        return _Place((number, calls + 1), started)

    def _function_of(self, graph: tf.Graph) -> tuple[tf.Graph, list[tf.Operation]]:
        """Return the function that a graph is part of, and the control inputs of its first call."""
        around = _functions_around(graph)
        known = [function for function in around if function in self._functions]
        if known:
            return known[-1], []
        function = around[0]
        with tf.init_scope():
            number = int(tf.size(self._calls))
            self._calls.assign(tf.concat([self._calls, [0]], 0))
        self._functions[function] = [number, 0]
        if function is graph:
            return function, [self._started(number)]
        with function.as_default():
            self._started(number)
        return function, []

    def _started(self, number: int) -> tf.Operation:
        """Clear up at the start of a function, if the last one failed."""

        def drop() -> tf.Tensor:
            self._drop()
            return tf.constant(True)

        with tf.control_dependencies([tf.cond(self._unfinished(), drop, lambda: tf.constant(False))]):
            return self._last.assign([number, 0])

    def _unfinished(self) -> tf.Tensor:
        number, done = tf.unstack(self._last.read_value())
        return done < tf.gather(self._calls.read_value(), number)

    def _drop(self) -> None:
        self._clear()
        self.failures.assign_add(1)


def _functions_around(graph: tf.Graph) -> list[tf.Graph]:
    """List the tf.functions around a graph, the innermost first; branches and bodies of loops do not count."""
    graphs = []
    while graph is not None:
        if type(graph).__name__ == "FuncGraph" or getattr(graph, "outer_graph", None) is None:
            graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return [graph for graph in graphs if hasattr(graph, "outer_graph")] or graphs


_HOST = "CPU:0"


class SimulatedEngine(QueuedEngine):
    """The engine of a simulated TPU, with the methods `enqueue`, `dequeue` and `apply_gradients` of `TPUEmbedding`.

    Attributes:
      variables: tables and slots by table name, then "parameters" or the name of a slot; empty before `build`.
    """

    def __init__(
        self, model: Model, seed: int, strategy: SimulatedTPUStrategy, *, pipelined: bool, track: Track | None = None
    ):
        """Read the configuration; variables are created by `build`, or by the first `enqueue`.

        Args:
          model: tables and features.
          seed: seed of the initial rows.
          strategy: the simulated TPU.
          pipelined: whether activations may be one step old.
          track: called with each checkpoint key and its variable; None adds the variables to `tables`.

        Raises:
          EngineError (RuntimeError): the cores have no embedding engine.
          ConfigError (ValueError): an optimizer has an attribute set that would be ignored.
        """
        super().__init__(model)
        self.tables = Tables()
        self.variables: Variables = {}
        self._track = self.tables._add if track is None else track
        self._seed = seed
        if strategy.embedding_feature != "V1":
            raise EngineError(
                f"TPUEmbedding on a simulated TPU with embedding_feature={strategy.embedding_feature!r}: such cores "
                "have no embedding engine; use TPUEmbeddingV0, or simulated_tpu(embedding_feature='V1')."
            )
        self._strategy = strategy
        self._pipelined = pipelined
        self.output_shapes = feeding.configured_shapes(model.features)
        self._queues = CoreQueues(0)
        self._waiting: dict[str | None, WaitingBatch] = {}
        self._earlier: dict[str, EarlierRows] = {}
        self._steps: Steps | None = None
        self._iterations: tf.Variable | None = None
        refuse_ignored(model, "engine")

    # Building

    @property
    def built(self) -> bool:
        """Whether the variables exist."""
        return bool(self.variables)

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Build if the arguments determine the shapes of all outputs; otherwise the first lookup builds."""
        if batch_size is not None:
            self.occupy(batch_size)
        elif input_shapes is not None:
            features = self.model.features
            known = feeding.merged_shapes(self.output_shapes, feeding.output_shapes(list(input_shapes), features))
            if all(shape.is_fully_defined() for shape in known):
                self.occupy(list(input_shapes))

    def occupy(self, per_replica_input_shapes: Nested = None, per_replica_batch_size: int | None = None) -> None:
        """Fix the output shapes, create variables and queues, and claim the simulated TPU; do nothing the second time.

        Raises:
          EngineError (RuntimeError): another engine was built since the TPU was initialized.
          DataError (ValueError): shapes contradict each other, or are not fully defined.
        """
        if self.built:
            return
        if self._strategy.embedding_engine is not None:
            raise EngineError(
                "TPU is already initialized for embeddings. This may be caused by using multiple TPUEmbedding "
                "instances in a TPU scope which is unsupported; initialize the TPU again before building another one."
            )
        self._set_output_shapes(per_replica_input_shapes, per_replica_batch_size)
        with tf.init_scope(), tf.device(_HOST):
            self.variables = device_variables(self.model.tables, self._seed, self._strategy.hosts)
            for key, variable in self.table_variables.items():
                self._track(key, variable)
            self._iterations = new_iterations([table.optimizer for table in self.model.tables])
            if self._iterations is not None:
                self._track(ITERATIONS, self._iterations)
            self._queues = CoreQueues(self._cores)
            drop = tf.function(self._queues.drop, autograph=False)  # traced once, not in every function
            self._steps = Steps(lambda: self._drop(drop))
            if self._pipelined:
                self._earlier = {table.name: EarlierRows(table.dim) for table in self.model.tables}
        self._strategy.embedding_engine = self

    def step_failed(self) -> None:
        """Drop every pending batch, so that nothing of the failed step reaches the next one."""
        if self._steps is not None:
            self._steps.failed()

    def _drop(self, batches_of_cores: Callable[[], None]) -> None:
        with tf.device(_HOST):
            batches_of_cores()
            for earlier in self._earlier.values():
                earlier.forget()

    def _calls(self) -> Steps:
        if self._steps is None:
            raise EngineError("the engine is not built: call build, or enqueue first.")
        return self._steps

    @property
    def _cores(self) -> int:
        cores: int = self._strategy.num_replicas_in_sync
        return cores

    def _set_output_shapes(self, input_shapes: Nested, batch: int | None) -> None:
        features, known = self.model.features, self.output_shapes
        given = batch if input_shapes is None else input_shapes
        if given is not None:
            if isinstance(given, int):
                incoming = feeding.shapes_of_batch(given, features)
            else:
                structure = self.model.structure
                if not feeding.is_flat_list(structure, given):
                    given = flat_like("per_replica_input_shapes", structure, given)
                incoming = feeding.output_shapes(given, features)
            feeding.check_shapes(known, incoming, features)
            known = feeding.merged_shapes(known, incoming)
        feeding.check_defined(known, features)
        self.output_shapes = known  # those of refused inputs are forgotten

    def _rows(self, table: TableSpec) -> list[int]:
        return output_rows(self.model, table.name, self.output_shapes)

    @property
    def table_variables(self) -> dict[str, tf.Variable]:
        """Tables and slots, float32 [rows, dim], by `<table>` and `<table>/<slot>`; empty before `build`."""
        return keyed_variables(self.model.tables, self.variables)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the tables while a serving function is traced; as on a TPU, they cannot be read at other times.

        Raises:
          EngineError (RuntimeError): called from eager code, within a strategy, or before `build`.
        """
        if not tf.executing_eagerly() and not tf.distribute.has_strategy() and self.built:
            return {table.key: self.variables[table.name]["parameters"] for table in self.model.tables}
        raise EngineError(
            "Unable to retrieve embedding tables when using a TPU strategy. If you need access, save your model, "
            "create this object under a CPU strategy and restore."
        )

    # Enqueue

    def enqueue(
        self, features: Nested, weights: Nested, training: bool | tf.Tensor, name: str | None, device: str | None
    ) -> None:
        """See `TPUEmbedding.enqueue`."""
        try:
            self._enqueue(features, weights, training, name, device)
        except BaseException:
            self.step_failed()
            raise

    def _enqueue(
        self, features: Nested, weights: Nested, training: bool | tf.Tensor, name: str | None, device: str | None
    ) -> None:
        del name  # pairs dequeue with apply_gradients only; a core's queue is first in, first out
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is not None:
            refuse_nested(context)
        tf.nest.assert_same_structure(self.model.structure, features)
        values = tf.nest.flatten(features)
        flat_weights: list[Weights] = [None] * len(values)
        if weights is not None:
            tf.nest.assert_same_structure(self.model.structure, weights)
            flat_weights = tf.nest.flatten(weights)
        explicit = context is None and device is not None
        with tf.device(_HOST):
            batches = {
                core: self._batches_of(
                    core,
                    local_values(self._strategy, values, core),
                    local_values(self._strategy, flat_weights, core),
                    explicit,
                )
                for core in self._cores_fed(context, device)
            }
            with self._calls().call() as done:
                done.extend(self._queues.put(batches, training))

    def _cores_fed(self, context: ReplicaContext | None, device: str | None) -> list[int]:
        """Return the cores that a call of enqueue feeds."""
        if context is not None:
            return [core_of(context)]
        return list(range(self._cores)) if device is None else [core_at(self._strategy, device)]

    def _batches_of(self, core: int, values: list[Ids], weights: list[Weights], explicit: bool) -> list[TableIds]:
        """Check one core's inputs and pack them into one batch per table; the first call builds the engine."""
        features = self.model.features
        check_inputs(self.model, values, self._strategy.extended.worker_devices)
        input_shapes = [feeding.input_shape(value, feature) for value, feature in zip(values, features, strict=True)]
        if not self.built:
            self.occupy(input_shapes)
        feeding.check_shapes(self.output_shapes, feeding.output_shapes(input_shapes, features), features)
        check_weights(self.model, values, weights)
        return packed_inputs(self.model, self.output_shapes, values, weights, core=core, explicit=explicit)

    # Dequeue

    def dequeue(self, name: str | None) -> Nested:
        """See `TPUEmbedding.dequeue`."""
        context = self._replica_context("dequeue")
        core = core_of(context)
        try:
            vector = context.merge_call(lambda strategy: ReplicaValue(self._dequeue_all(name))).value[core]
        except RuntimeError as error:
            if not cannot_meet(error) or self._pipelined:
                raise
            vector = self._dequeue_one(core)
        return tf.nest.pack_sequence_as(self.model.structure, unpacked(vector, self.model, self.output_shapes))

    def _replica_context(self, method: str) -> ReplicaContext:
        if not self.built:
            raise EngineError(
                f"{method} called on unbuilt TPUEmbedding object. Please either call enqueue first or manually call "
                "the build method."
            )
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is None or tf.distribute.get_strategy() is not self._strategy:
            raise EngineError(
                f"{method} is not valid outside of strategy.run: call it in the function that the strategy of the "
                "TPUEmbedding object runs on every core."
            )
        return context

    def _dequeue_all(self, name: str | None) -> list[tf.Tensor]:
        """Look up one batch of every core; return the activations as one vector per core."""
        with tf.device(_HOST):
            with self._calls().call() as done:
                batches, training = self._taken(range(self._cores))
                activations = self._looked_up(batches, self._cores)
                with tf.control_dependencies(activations):  # hold the batch only after its lookup succeeded
                    done.append(self._waiting_for(name).replace(batches, training))
            for earlier in self._earlier.values():
                earlier.forget()
            return vectors_of_cores(activations, self._cores)

    def _pairs(self, batches: Sequence[TableBatch]) -> list[tuple[TableSpec, TableBatch]]:
        return list(zip(self.model.tables, batches, strict=True))

    def _taken(self, cores: Sequence[int]) -> tuple[list[TableBatch], tf.Tensor]:
        """Dequeue the oldest batch of each core; return them joined, and whether they are for training."""
        return self._queues.take(cores, self.model.tables, [self._rows(table) for table in self.model.tables])

    def _waiting_for(self, name: str | None) -> WaitingBatch:
        if name not in self._waiting:
            self._waiting[name] = WaitingBatch(len(self.model.tables), name, self._calls().failures)
        return self._waiting[name]

    def _looked_up(self, batches: Sequence[TableBatch], cores: int) -> list[tf.Tensor]:
        """Return the activations of each table, [rows of all these cores, dim]."""
        combined = traced_once(activations_of)
        return [
            combined(table.combiner, self._rows_of(table, batch), batch, cores * sum(self._rows(table)))
            for table, batch in self._pairs(batches)
        ]

    def _rows_of(self, table: TableSpec, batch: TableBatch) -> tf.Tensor:
        rows = tf.gather(self.variables[table.name]["parameters"], batch.ids, name=f"lookup_in_{_letters(table.name)}")
        if self._pipelined:
            rows = self._earlier[table.name].applied_to(rows, batch.ids)
        return rows if table.quantization is None else quantized(rows, table.quantization)

    def _dequeue_one(self, core: int) -> tf.Tensor:
        """Look up one core's batch inside control flow or a nested function, where the cores cannot synchronize.

        The batch must not be for training.
        """
        message = (
            "dequeue of a training batch inside control flow or a tf.function within strategy.run: call dequeue and "
            "apply_gradients at the top level of the function given to strategy.run, and pass the activations on."
        )
        with tf.device(_HOST):
            with self._calls().call() as done:
                batches, training = self._taken([core])
                with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(training), [message])]):
                    checked = [batch._replace(ids=tf.identity(batch.ids)) for batch in batches]
                activations = self._looked_up(checked, 1)
                done.extend(activations)
            return vectors_of_cores(activations, 1)[0]

    # Gradients

    def apply_gradients(self, gradients: Nested, name: str | None) -> None:
        """See `TPUEmbedding.apply_gradients`."""
        context = self._replica_context("apply_gradients")
        tf.nest.assert_same_structure(self.model.structure, gradients)
        vector = ReplicaValue(packed_gradients(tf.nest.flatten(gradients), self.model, self.output_shapes))
        try:
            context.merge_call(lambda strategy, vectors: self._apply_all(strategy, vectors, name), args=(vector,))
        except RuntimeError as error:
            if not cannot_meet(error):
                raise
            raise EngineError(
                "apply_gradients inside control flow or a tf.function within strategy.run: the cores cannot "
                "meet there; call it at the top level of the function given to strategy.run."
            ) from error

    def _apply_all(self, strategy: tf.distribute.Strategy, replicas: ReplicaValue, name: str | None) -> None:
        vectors = [vector.value for vector in strategy.experimental_local_results(replicas)]
        sizes = [sum(self._rows(table)) * table.dim for table in self.model.tables]
        with tf.device(_HOST):
            with self._calls().call() as done:
                batches = self._waiting_for(name).take()
                done.append(batches[0].ids)
            cores = [tf.split(vector, sizes) for vector in vectors]
            rates = step_rates([optimizer_of(table) for table in self.model.tables], self._iterations)
            row_gradients = traced_once(row_gradients_of)
            for turn, (table, batch) in enumerate(self._pairs(batches)):
                whole = tf.reshape(tf.concat([pieces[turn] for pieces in cores], 0), [-1, table.dim])
                train_table(
                    optimizer_of(table),
                    self.variables[table.name],
                    batch.ids,
                    row_gradients(table.combiner, batch, whole),
                    rates[turn],
                    self._earlier.get(table.name),
                )
            if self._iterations is not None:
                self._iterations.assign_add(1)


def _letters(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
