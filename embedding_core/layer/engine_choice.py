"""Chooses the engine of a layer by the strategy in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedding_core.engines import HostEngine, SimulatedTPUStrategy
from embedding_core.engines.engine import Engine
from embedding_core.engines.hardware_configs import embedding_feature, is_real_tpu
from embedding_core.engines.simulated import SimulatedEngine
from embedding_core.errors import ConfigError, EngineError
from embedding_core.layer.keras_tables import KerasTables
from embedding_core.layer.layer_configs import Prepared
from embedding_core.layer.server_tables import ServerTables
from embedding_core.layer.sparse_core_tables import SparseCoreTables
from embedding_core.layer.tpu_tables import HardwareTables, ReplicatedTables


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


def new_engine(strategy: tf.distribute.Strategy, config: Prepared, arguments: Mapping[str, Any]) -> Engine:
    """Return the engine for a strategy.

    Args:
      strategy: the strategy in force when the layer is made.
      config: tables and features.
      arguments: arguments of the layer.
    """
    pipelined, seed = arguments["pipeline_execution_with_tensor_core"], arguments["seed"]
    if not on_tpu(strategy):
        if arguments["table_update"] == "engine":
            if isinstance(strategy, tf.distribute.ParameterServerStrategy):
                return ServerTables(config.model, seed, strategy)
            return HostEngine(config.model, seed=seed)
        return KerasTables(config.model, seed)
    feature = hardware_feature(strategy, arguments["embedding_feature"])
    if feature == "V0":
        return ReplicatedTables(config, seed)
    if feature == "V2":
        limits, batch_size = arguments["sparse_core_embedding_config"], arguments["batch_size"]
        return SparseCoreTables(config, pipelined=pipelined, batch_size=batch_size, limits=limits, seed=seed)
    if isinstance(strategy, SimulatedTPUStrategy):
        return SimulatedEngine(config.model, seed, strategy, pipelined=pipelined)
    return HardwareTables(config, pipelined=pipelined)
