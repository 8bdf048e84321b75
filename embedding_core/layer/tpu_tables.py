"""Tables behind a TPU's embedding engine, real or simulated, or whole on each of its cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines import TPUEmbedding, TPUEmbeddingV0
from embedding_core.engines.hardware_configs import embedding_feature, is_real_tpu
from embedding_core.engines.output_shapes import configured_shapes, merged_shapes, output_shapes
from embedding_core.engines.simulated import SimulatedEngine
from embedding_core.engines.simulated_strategy import SimulatedTPUStrategy
from embedding_core.engines.tables import Tables
from embedding_core.errors import ConfigError, EngineError
from embedding_core.layer.backends import Backend, Trap, keyed_variables
from embedding_core.layer.layer_configs import Prepared
from embedding_core.translate import Model, config_to_tensorflow


def on_tpu(strategy: Any) -> bool:
    """Whether a strategy runs on a TPU, real or simulated."""
    return isinstance(strategy, SimulatedTPUStrategy) or is_real_tpu(strategy)


def hardware_feature(strategy: Any, override: Any) -> str:
    """The generation of a TPU's embedding hardware: "V0", "V1" or "V2".

    Args:
      strategy: of the TPU.
      override: None, or a tf.tpu.experimental.HardwareFeature.EmbeddingFeature; UNSUPPORTED gives "V0" everywhere.

    Raises:
      ConfigError (ValueError): the hardware does not have the feature.
    """
    simulated = isinstance(strategy, SimulatedTPUStrategy)
    found: str = strategy.embedding_feature if simulated else embedding_feature(strategy)
    kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
    names = {kinds.UNSUPPORTED: "V0", kinds.V1: "V1", kinds.V2: "V2"}
    if override is None or names.get(override) == found:
        return found
    if override == kinds.UNSUPPORTED:
        return "V0"
    own = next(kind for kind, name in names.items() if name == found)
    raise ConfigError(
        f"`embedding_feature` is {override!r}: TPU only supports {kinds.UNSUPPORTED} and {own}; leave it None."
    )


class _Queued(Backend):
    """What the simulated engine and a V1 TPU have in common: enqueue, dequeue, apply_gradients."""

    on_tpu = True
    _embedding: Any

    def __init__(self, model: Model):
        self._model = model
        self._calls = 0

    def look_up(self, values: list[Any], weights: list[Any], trap: Trap) -> list[Any]:
        """See `Backend`; each call has a name, which tells the engine which lookups get gradients."""
        if tf.distribute.in_cross_replica_context():  # before a batch is enqueued that nobody dequeues
            raise EngineError(
                "The layer was created under a TPU's strategy and is called outside of strategy.run, where there are "
                "no cores: call it in the function given to strategy.run, or by model.fit, evaluate or predict."
            )
        self._calls += 1
        name = str(self._calls)
        structure = self._model.structure
        features = tf.nest.pack_sequence_as(structure, values)
        packed_weights = None
        if any(weight is not None for weight in weights):
            packed_weights = tf.nest.pack_sequence_as(structure, weights)
        self._enqueue(features, packed_weights, name)
        return trap(
            lambda: tf.nest.flatten(self._embedding.dequeue(name)),
            lambda gradients: self._embedding.apply_gradients(
                tf.nest.pack_sequence_as(structure, list(gradients)), name
            ),
        )

    def _enqueue(self, features: Any, weights: Any, name: str) -> None:
        try:
            self._embedding.enqueue(features, weights, True, name, None)
        except RuntimeError as error:
            if "control flow" not in str(error):
                raise
            names = [feature.path for feature in self._model.features]
            raise EngineError(
                f"The lookup of {names} is inside tf.cond, a loop or a nested tf.function within strategy.run, where "
                "the cores cannot meet. Call the layer before, at the top level of the function given to "
                "strategy.run, and pass its activations in."
            ) from error


class SimulatedTables(_Queued):
    """The simulated TPU's engine."""

    def __init__(self, model: Model, seed: int, strategy: SimulatedTPUStrategy, *, pipelined: bool):
        super().__init__(model)
        self.holder = Tables()
        self._embedding = SimulatedEngine(model, self.holder._add, seed, strategy, pipelined=pipelined)

    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """See `Backend`; where shapes are missing the first lookup builds."""
        if batch_size is not None:
            self._embedding.build(batch_size)
        elif input_shapes is not None:
            features = self._model.features
            shapes = merged_shapes(configured_shapes(features), output_shapes(list(input_shapes), features))
            if all(shape.is_fully_defined() for shape in shapes):
                self._embedding.build(list(input_shapes))

    def tables(self) -> dict[Any, Any]:
        """See `Backend`; only while a function outside of the strategy is traced, as on a TPU."""
        found: dict[Any, Any] = self._embedding.embedding_tables()
        return found

    def variables(self) -> Mapping[str, tf.Variable]:
        """See `Backend`."""
        return keyed_variables(self._model, self._embedding.variables)


class HardwareTables(_Queued):
    """A real TPU with a V1 engine: TensorFlow's own class."""

    def __init__(self, prepared: Prepared, *, pipelined: bool):
        super().__init__(prepared.model)
        self.holder = self._embedding = TPUEmbedding(prepared.copies, prepared.optimizer, pipelined)
        self._prepared = prepared

    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """See `Backend`."""
        if batch_size is not None:
            self._embedding.build(per_replica_batch_size=batch_size)
        elif input_shapes is not None:
            shapes = tf.nest.pack_sequence_as(self._model.structure, list(input_shapes))
            self._embedding.build(per_replica_input_shapes=shapes)

    def tables(self) -> dict[Any, Any]:
        """See `Backend`; only while a model is exported."""
        return _by_callers_config(self._prepared, self._embedding.embedding_tables)

    def variables(self) -> Mapping[str, tf.Variable]:
        """None: they are in the TPU's memory."""
        return {}


class SparseCoreTables(HardwareTables):
    """A real TPU with SparseCores (V2): TensorFlow's own class, which looks up by being called."""

    def __init__(self, prepared: Prepared, *, pipelined: bool, batch_size: int | None):
        given = prepared.copies
        copies = config_to_tensorflow(given) if isinstance(given, EmbeddingConfig) else given
        for feature in tf.nest.flatten(copies):
            if feature.output_shape.rank is None:
                feature.output_shape = _output_shape(feature, batch_size)
        super().__init__(dataclasses.replace(prepared, copies=copies), pipelined=pipelined)

    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """See `Backend`."""
        self._embedding.build()

    def look_up(self, values: list[Any], weights: list[Any], trap: Trap) -> list[Any]:
        """See `Backend`."""
        structure = self._model.structure
        packed_weights = None
        if any(weight is not None for weight in weights):
            packed_weights = tf.nest.pack_sequence_as(structure, weights)
        kept: list[Any] = []

        def activations() -> list[Any]:
            found, preserved = self._embedding(tf.nest.pack_sequence_as(structure, values), packed_weights)
            kept.append(preserved)
            return list(tf.nest.flatten(found))

        def update(gradients: Sequence[Any]) -> None:
            packed = tf.nest.pack_sequence_as(structure, list(gradients))
            self._embedding.apply_gradients(packed, preserved_outputs=kept[-1])

        return trap(activations, update)


def _output_shape(feature: Any, batch_size: int | None) -> tf.TensorShape:
    """What TensorFlow must know of a feature before it makes the tables.

    Raises:
      ConfigError (ValueError): the rows of a batch are not known.
    """
    if batch_size is None:
        raise ConfigError(
            f"`output_shape` of feature {feature.name!r} is not given, nor is the layer's `batch_size`: a TPU with "
            "SparseCores has to know the rows of a core's batch from the start; give the layer `batch_size`."
        )
    length = feature.max_sequence_length
    return tf.TensorShape([batch_size, length] if length else [batch_size])


class ReplicatedTables(Backend):
    """Whole tables on every core of a TPU without an embedding engine; the Keras optimizer trains them."""

    trains_itself = False
    on_tpu = True

    def __init__(self, prepared: Prepared, seed: int):
        real = is_real_tpu(tf.distribute.get_strategy())
        options = {} if real else {"seed": seed}
        self.holder = TPUEmbeddingV0(prepared.copies, prepared.optimizer, **options)
        self._prepared = prepared

    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """See `Backend`."""
        self.holder.build()

    def look_up(self, values: list[Any], weights: list[Any], trap: Trap) -> list[Any]:
        """See `Backend`."""
        structure = self._prepared.model.structure
        features = tf.nest.pack_sequence_as(structure, values)
        return list(tf.nest.flatten(self.holder(features, tf.nest.pack_sequence_as(structure, weights))))

    def tables(self) -> dict[Any, Any]:
        """See `Backend`."""
        return _by_callers_config(self._prepared, self.holder.embedding_tables)

    def variables(self) -> Mapping[str, tf.Variable]:
        """None: the tables are weights of the layer."""
        return {}


def _by_callers_config(prepared: Prepared, tables: Mapping[Any, Any]) -> dict[Any, Any]:
    """Tables keyed by the copies that the engine was given, or by stacked names, keyed by the caller's own."""
    places = {id(feature.table): place for place, feature in enumerate(tf.nest.flatten(prepared.copies))}
    keys = {table.name: table.key for table in prepared.model.tables}
    found = {}
    for key, table in tables.items():
        if id(key) not in places:
            found[key] = table
            continue
        found[keys[prepared.model.features[places[id(key)]].table]] = table
    return found
