"""Offers TensorFlow's mid-level embedding API on a TPU, on a simulated one, and off a TPU: `TPUEmbedding`.

The current strategy decides which engine is used; engines never import each other.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from embedding_core.engines.hardware_configs import copied_configs, embedding_feature, is_real_tpu
from embedding_core.engines.simulated import SimulatedEngine
from embedding_core.engines.simulated_strategy import SimulatedTPUStrategy
from embedding_core.engines.tables import NamedTables, Track, Variables, plain_variables, track_variables
from embedding_core.errors import EngineError
from embedding_core.feature_specs import AnyTable, FeatureConfigs
from embedding_core.rooms import MISSING, hooks, room_of
from embedding_core.structures import Nested
from embedding_core.tracing import as_written
from embedding_core.translate import GivenOptimizer, Model, model_of

# Wraps TensorFlow's own classes for a real TPU, to give them checked copies of the caller's configurations.


class HardwareTPUEmbedding(tf.tpu.experimental.embedding.TPUEmbedding):
    """TensorFlow's own class on a real TPU (V1), given copies of the caller's configurations."""

    def __init__(
        self,
        feature_config: FeatureConfigs,
        optimizer: GivenOptimizer,
        pipeline_execution_with_tensor_core: bool = False,
    ):
        model_of(feature_config, optimizer, needs_optimizer=True)  # refuses what TensorFlow would silently accept
        super().__init__(*copied_configs(feature_config, optimizer), pipeline_execution_with_tensor_core)


class TPUEmbedding(NamedTables):
    """A drop-in for `tf.tpu.experimental.embedding.TPUEmbedding` that also runs without a TPU.

    If it is created in the scope of `engines.simulated_tpu()`, it executes the TPU's rules on CPU. Outside of any
    TPU's scope it only holds the tables, as upstream. In the scope of a real `tf.distribute.TPUStrategy`, creating
    one returns a `HardwareTPUEmbedding`, which is TensorFlow's own class. With SparseCores, real or simulated, creating
    one returns what an optional room makes. Arguments, errors and checkpoint keys are upstream's, and the
    configurations given are never changed.
    """

    def __new__(
        cls,
        feature_config: FeatureConfigs,
        optimizer: GivenOptimizer,
        pipeline_execution_with_tensor_core: bool = False,
        *,
        seed: int = 0,
    ) -> Any:
        """Create an instance of this class, of that of an optional room, or, on a TPU, of TensorFlow's class."""
        strategy = tf.distribute.get_strategy()
        is_real, simulated = is_real_tpu(strategy), isinstance(strategy, SimulatedTPUStrategy)
        feature = embedding_feature(strategy) if is_real else strategy.embedding_feature if simulated else None
        if feature == "V2":
            return _of_room(feature_config, optimizer, pipeline_execution_with_tensor_core, seed)
        if feature == "V0" and is_real:
            raise EngineError(
                "This TPU has no embedding engine (HardwareFeature.EmbeddingFeature.UNSUPPORTED, as v5e): use "
                "embedding_core.engines.TPUEmbeddingV0, which keeps whole tables on every core."
            )
        if is_real:
            return HardwareTPUEmbedding(feature_config, optimizer, pipeline_execution_with_tensor_core)
        return super().__new__(cls)

    def __init__(
        self,
        feature_config: FeatureConfigs,
        optimizer: GivenOptimizer,
        pipeline_execution_with_tensor_core: bool = False,
        *,
        seed: int = 0,
    ):
        """Read the configuration; variables are created by `build`, or by the first `enqueue`.

        Args:
          feature_config: a structure of `tf.tpu.experimental.embedding.FeatureConfig`, or an EmbeddingConfig.
          optimizer: one of `tf.tpu.experimental.embedding` or of `embedding_core`, for tables without their own; off
            a TPU, None leaves out the slots.
          pipeline_execution_with_tensor_core: whether activations may be one step old, as on a TPU.
          seed: seed of the initial rows: the same seed gives a table of the same name the same rows on every topology.

        Raises:
          ConfigError (ValueError): an unsupported optimizer, a hyperparameter out of range, two tables with one name.
        """
        strategy = tf.distribute.get_strategy()
        simulated = isinstance(strategy, SimulatedTPUStrategy)
        model = model_of(feature_config, optimizer, needs_optimizer=simulated)
        self._engine: SimulatedEngine | _PlainTables = (
            SimulatedEngine(
                model, seed, strategy, pipelined=pipeline_execution_with_tensor_core, track=self._track_variable
            )
            if simulated
            else _PlainTables(model, seed, self._track_variable)
        )

    def _track_variable(self, key: str, variable: tf.Variable) -> None:
        self._track_trackable(variable, name=key)

    def _queues(self, method: str) -> SimulatedEngine:
        if isinstance(self._engine, SimulatedEngine):
            return self._engine
        raise EngineError(
            f"{method} is not valid when TPUEmbedding object is not created under a TPUStrategy: create it in the "
            "scope of tf.distribute.TPUStrategy, or of embedding_core.engines.simulated_tpu(), or look up on CPU with "
            "embedding_core.lookup.cpu_embedding_lookup."
        )

    def build(self, per_replica_input_shapes: Nested = None, per_replica_batch_size: int | None = None) -> None:
        """Create tables and slots and, on a simulated TPU, occupy its engine; do nothing the second time.

        Args:
          per_replica_input_shapes: a structure of input shapes like `feature_config`, or a batch size.
          per_replica_batch_size: (deprecated) the batch size of one core.

        Raises:
          DataError (ValueError): shapes contradict the configured output shapes, or are not fully defined.
          EngineError (RuntimeError): the TPU already has an engine.
        """
        if isinstance(self._engine, SimulatedEngine):
            self._engine.occupy(per_replica_input_shapes, per_replica_batch_size)
        else:
            self._engine.build()

    @as_written
    def enqueue(
        self,
        features: Nested,
        weights: Nested = None,
        training: bool = True,
        name: str | None = None,
        device: str | None = None,
    ) -> None:
        """Hand the ids of one batch to the engine.

        Args:
          features: dense, sparse or ragged ids in the structure of `feature_config`, per replica or of one core.
          weights: None, or a structure like `features`, each leaf of which is weights or None.
          training: whether `apply_gradients` will be called for the batch.
          name: pairs this call with `dequeue` and `apply_gradients` of the same name.
          device: the core whose batch this is, outside of strategy.run.

        Raises:
          EngineError (RuntimeError): not under a TPU strategy, or inside control flow within strategy.run.
          DataError (ValueError): structure, kind, shape, weight or device do not fit.
        """
        self._queues("enqueue").enqueue(features, weights, training, name, device)

    @as_written
    def dequeue(self, name: str | None = None) -> Nested:
        """Look up this core's oldest batch: activations [*output_shape, dim] in the structure of `feature_config`.

        Raises:
          EngineError (RuntimeError): not under a TPU strategy, outside of strategy.run, or before `build`.
        """
        return self._queues("dequeue").dequeue(name)

    @as_written
    def apply_gradients(self, gradients: Nested, name: str | None = None) -> None:
        """Update the tables with the gradients of the activations last dequeued.

        Args:
          gradients: in the structure of `feature_config`, in the shapes of the activations; None counts as zeros.
          name: as given to `dequeue`.

        Raises:
          EngineError (RuntimeError): not under a TPU strategy, outside of strategy.run, or before `build`.
          DataError (ValueError): a gradient is not a tensor, or has another shape.
        """
        self._queues("apply_gradients").apply_gradients(gradients, name)

    @property
    def embedding_tables(self) -> dict[AnyTable, tf.Variable]:
        """The float32 [rows, dim] tables by TableConfig, off a TPU.

        Raises:
          EngineError (RuntimeError): created under a TPU strategy.
        """
        return self._engine.tables_by_config()


class _PlainTables:
    """Tables and slots off a TPU: for lookups on CPU, and to save and restore.

    The tables are trainable, as upstream: a Keras optimizer may train them.
    """

    def __init__(self, model: Model, seed: int, track: Track):
        self.model = model
        self.variables: Variables = {}
        self._seed = seed
        self._track = track

    def build(self) -> None:
        """Create the variables, and track them except the slots that `slot_variable_creation_fn` made."""
        if self.variables:
            return
        with tf.init_scope():
            self.variables = plain_variables(self.model.tables, self._seed)
        track_variables(self.model.tables, self.variables, self._track)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the tables by the caller's TableConfig; create them if needed."""
        self.build()
        return {table.key: self.variables[table.name]["parameters"] for table in self.model.tables}


def _of_room(feature_config: FeatureConfigs, optimizer: GivenOptimizer, pipelined: bool, seed: int) -> Any:
    for room in hooks("embedding_core", "tpu_embedding"):
        return room.TPUEmbeddingV2(feature_config, optimizer, pipelined, seed=seed)
    raise EngineError(f"the hardware of this TPU is V2: {MISSING.format(room_of('embedding_feature=V2'))}")
