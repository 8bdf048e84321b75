"""Defines engines that hold a layer's tables on a TPU or as Keras variables, and chooses one by the strategy in force.

On a real TPU, the tables are in the memory of its embedding engine. If it has none, each core holds whole tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines import HostEngine, SimulatedTPUStrategy, TPUEmbedding, TPUEmbeddingV0
from embedding_core.engines.engine import Engine, Lookup
from embedding_core.engines.hardware_configs import embedding_feature, is_real_tpu
from embedding_core.engines.host import look_up_forms, normal_forms
from embedding_core.engines.queues import QueuedEngine
from embedding_core.engines.simulated import SimulatedEngine
from embedding_core.engines.tables import Tables, Variables, keyed_variables, plain_variables
from embedding_core.errors import ConfigError, EngineError
from embedding_core.feature_specs import AnyTable, Ids, Weights
from embedding_core.layer.layer_configs import LayerConfig
from embedding_core.rooms import MISSING, hooks, room_of
from embedding_core.translate import Model


class HardwareTables(QueuedEngine):
    """Tables on a real TPU with a V1 engine, through TensorFlow's own class."""

    def __init__(self, config: LayerConfig, *, pipelined: bool):
        self.tables = TPUEmbedding(config.copies, config.optimizer, pipelined)
        super().__init__(config.model, self.tables)
        self._config = config

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """See `Engine`."""
        if batch_size is not None:
            self.tables.build(per_replica_batch_size=batch_size)
        elif input_shapes is not None:
            shapes = tf.nest.pack_sequence_as(self.model.structure, list(input_shapes))
            self.tables.build(per_replica_input_shapes=shapes)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """See `Engine`; works only while a model is exported."""
        return by_callers_config(self._config, self.tables.embedding_tables)


class ReplicatedTables(Engine):
    """Whole tables on every core of a TPU without an embedding engine; a Keras optimizer trains them."""

    trains_itself = False
    on_tpu = True

    def __init__(self, config: LayerConfig, seed: int):
        real = is_real_tpu(tf.distribute.get_strategy())
        options = {} if real else {"seed": seed}
        self.tables = TPUEmbeddingV0(config.copies, config.optimizer, **options)
        self._config = config

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; shapes are not needed."""
        self.tables.build()

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        structure = self._config.model.structure
        features, packed_weights = (tf.nest.pack_sequence_as(structure, list(flat)) for flat in (values, weights))
        return Lookup(lambda: list(tf.nest.flatten(self.tables(features, packed_weights))), None)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """See `Engine`."""
        return by_callers_config(self._config, self.tables.embedding_tables)


def by_callers_config(config: LayerConfig, tables: Mapping[Any, Any]) -> dict[AnyTable, tf.Variable]:
    """Key tables by the caller's configs; the engine keys them by copies of these, or by names of stacked tables."""
    places = {id(feature.table): place for place, feature in enumerate(tf.nest.flatten(config.copies))}
    keys = {table.name: table.key for table in config.model.tables}
    by_config = {}
    for key, table in tables.items():
        if id(key) not in places:
            by_config[key] = table
            continue
        by_config[keys[config.model.features[places[id(key)]].table]] = table
    return by_config


# Saves slots of a Keras optimizer under the checkpoint keys that a TPU's tables have.

KEY = "VARIABLE_VALUE"  # TensorFlow's name for the value of a variable in a checkpoint


class SlotView(Tables):
    """Saves and restores an optimizer's variable without tracking it: only the optimizer may track the variable."""

    def __init__(self, variable: tf.Variable):
        self._slot: Callable[[], tf.Variable] = lambda: variable  # an attribute that is a variable would be tracked

    def numpy(self) -> Any:
        """Return the slot's values."""
        return self._slot().numpy()

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {KEY: self._slot().read_value()}

    def _restore_from_tensors(self, restored: dict[str, Any]) -> Any:
        return self._slot().assign(restored[KEY])

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        if self not in object_map:
            object_map[self] = SlotView(tf.Variable(self._slot().read_value(), trainable=False))
        object_map[self]._slot().assign(self._slot().read_value())


class TablesWithSlots(Tables):
    """Holds tables as variables, and views of their slots, which an exported model leaves out."""

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":
            return children
        return {name: child for name, child in children.items() if not isinstance(child, SlotView)}


# Holds tables as trainable variables, which the Keras optimizer of the model updates.


class KerasTables(Engine):
    """Tables as trainable variables, replicated by the current strategy; lookups are differentiable.

    The slots belong to the Keras optimizer. Those of a legacy Keras optimizer (see `translate.KerasSlots`) are also
    saved under the TPU's checkpoint keys, so that training can continue on a TPU.
    """

    trains_itself = False

    def __init__(self, model: Model, seed: int):
        self.tables = TablesWithSlots()
        self._model = model
        self._seed = seed
        self._variables: Variables = {}

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; shapes are not needed."""
        if self._variables:
            return
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is not None:  # together, the replicas create each variable once
            context.merge_call(lambda strategy: self._create())
            return
        self._create()

    def _create(self) -> None:
        specs = [
            table if table.slot_creator else dataclasses.replace(table, optimizer=None) for table in self._model.tables
        ]
        with tf.init_scope():
            self._variables = plain_variables(specs, self._seed)
        for key, variable in keyed_variables(self._model.tables, self._variables).items():
            self.tables._add(key, variable if key in self._variables else SlotView(variable))

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        features = self._model.features
        tables = {name: own["parameters"] for name, own in self._variables.items()}
        forms = normal_forms(features, tables, values, weights)
        return Lookup(lambda: look_up_forms(features, tables, forms, values), None)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the tables by the caller's TableConfig; create them if needed."""
        self.build()
        return {table.key: self._variables[table.name]["parameters"] for table in self._model.tables}


# Chooses the engine of a layer by the strategy in force.


def on_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy runs on a TPU, real or simulated."""
    return isinstance(strategy, SimulatedTPUStrategy) or is_real_tpu(strategy)


def hardware_feature(strategy: tf.distribute.Strategy, override: Any) -> str:
    """Return the generation of a TPU's embedding hardware: "V0", "V1" or "V2".

    Args:
      strategy: strategy of the TPU.
      override: None, or a tf.tpu.experimental.HardwareFeature.EmbeddingFeature; UNSUPPORTED gives "V0" everywhere.

    Raises:
      ConfigError (ValueError): the hardware does not have the feature.
    """
    simulated = isinstance(strategy, SimulatedTPUStrategy)
    feature: str = strategy.embedding_feature if simulated else embedding_feature(strategy)
    kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
    names = {kinds.UNSUPPORTED: "V0", kinds.V1: "V1", kinds.V2: "V2"}
    if override is None or names.get(override) == feature:
        return feature
    if override == kinds.UNSUPPORTED:
        return "V0"
    supported = next(kind for kind, name in names.items() if name == feature)
    raise ConfigError(
        f"`embedding_feature` is {override!r}: TPU only supports {kinds.UNSUPPORTED} and {supported}; leave it None."
    )


def is_exported(created: tf.distribute.Strategy) -> bool:
    """Return whether a layer of a TPU is traced outside of its strategy, as when a model is exported.

    Args:
      created: strategy that the layer was created under.

    Raises:
      EngineError (RuntimeError): the layer is called eagerly outside of its TPU strategy, or is called on a TPU but was
        created elsewhere.
    """
    now = tf.distribute.get_strategy()
    if on_tpu(now) == on_tpu(created):
        return False
    if on_tpu(now):
        raise EngineError(
            f"Layer is created under strategy {created} but is being called under a TPUStrategy. Please create the "
            "layer under a TPUStrategy if you wish to run the layer on TPU."
        )
    if tf.executing_eagerly():
        raise EngineError(
            f"Layer is created under strategy {created} but is being called under strategy {now}. Please use "
            "strategy.run when calling this layer."
        )
    return True


def new_engine(
    strategy: tf.distribute.Strategy,
    config: LayerConfig,
    arguments: Mapping[str, Any],
    new_tables: Callable[[Model, int], Engine],
) -> Engine:
    """Return the engine for a strategy: that of an optional room, or one of those above.

    A room has a function `new_engine` with the first three arguments in its module `engine`, which gives None for the
    strategies of others.

    Args:
      strategy: the strategy in force when the layer is made.
      config: tables and features.
      arguments: arguments of the layer.
      new_tables: makes the engine of tables that are trainable variables, from a model and a seed.

    Raises:
      ConfigError (ValueError): the strategy is that of a room that is not installed.
    """
    for room in hooks("embedding_core", "engine"):
        engine: Engine | None = room.new_engine(strategy, config, arguments)
        if engine is not None:
            return engine
    missing = room_of(type(strategy).__name__)
    if missing is not None:
        raise ConfigError(f"the strategy in force is {strategy}: {MISSING.format(missing)}")
    pipelined, seed = arguments["pipeline_execution_with_tensor_core"], arguments["seed"]
    if not on_tpu(strategy):
        if arguments["table_update"] == "engine":
            return HostEngine(config.model, seed=seed)
        return new_tables(config.model, seed)
    feature = hardware_feature(strategy, arguments["embedding_feature"])
    if feature == "V0":
        return ReplicatedTables(config, seed)
    if feature == "V2":
        raise ConfigError(f"the hardware of {strategy} is V2: {MISSING.format(room_of('embedding_feature=V2'))}")
    if isinstance(strategy, SimulatedTPUStrategy):
        return SimulatedEngine(config.model, seed, strategy, pipelined=pipelined)
    return HardwareTables(config, pipelined=pipelined)
