"""What a TPU's hardware is given: copies of the caller's configurations, in TensorFlow's classes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.rates import is_schedule
from embedding_core.errors import ConfigError
from embedding_core.optimizers import Optimizer
from embedding_core.translate import Model, config_to_tensorflow, model_of, optimizer_to_tensorflow

__all__ = ["copied_configs", "embedding_feature", "is_real_tpu", "refuse_ignored"]

_ENGINE_ALONE = {  # hyperparameters that only a V1 embedding engine plays, and their defaults
    "clip_weight_min": None,
    "clip_weight_max": None,
    "weight_decay_factor": None,
    "clipvalue": None,
    "use_gradient_accumulation": True,
}
_IGNORED: Mapping[str, Mapping[str, Any]] = {
    "V0": _ENGINE_ALONE,
    "V2": _ENGINE_ALONE | {"lazy_adam": True},
}
_WHY = {
    "V0": "cores without an embedding engine (V0) are trained by a Keras optimizer, which would ignore it",
    "V2": "TensorFlow ignores it on this TPU (SparseCore, V2)",
}


def is_real_tpu(strategy: Any) -> bool:
    """Whether a strategy runs on a TPU."""
    return isinstance(strategy, tf.distribute.TPUStrategy | tf.distribute.experimental.TPUStrategy)


def embedding_feature(strategy: Any) -> str:
    """The generation of a real TPU's embedding hardware: "V1", "V2" (SparseCore), or "V0" for none."""
    kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
    found = strategy.extended.tpu_hardware_feature.embedding_feature
    return {kinds.V1: "V1", kinds.V2: "V2"}.get(found, "V0")


def copied_configs(feature_config: Any, optimizer: Any) -> tuple[Any, Any]:
    """Feature configurations and optimizer for TensorFlow's classes, which change what they are given.

    Args:
      feature_config: an EmbeddingConfig, or a structure of `tf.tpu.experimental.embedding.FeatureConfig`.
      optimizer: of this project or of TensorFlow, or None.

    Raises:
      ConfigError (ValueError): a hyperparameter out of range, a learning rate that is a function of the step, or a
        policy for invalid ids, which TensorFlow's classes do not have.
    """
    model = model_of(feature_config, optimizer, needs_optimizer=False)
    _refuse_policies(feature_config)
    for table in model.tables:
        if table.optimizer is not None and is_schedule(table.optimizer.learning_rate):
            raise ConfigError(
                f"`learning_rate` of table {table.name!r} is a function of the step: on a TPU it must be a callable "
                "without arguments; pass lambda: schedule(step), with your own step variable."
            )
    if isinstance(optimizer, Optimizer):
        optimizer = optimizer_to_tensorflow(optimizer)
    if isinstance(feature_config, EmbeddingConfig):
        return config_to_tensorflow(feature_config), optimizer
    tables: dict[int, Any] = {}

    def copied(feature: Any) -> Any:
        feature = copy.copy(feature)
        feature.table = tables.setdefault(id(feature.table), copy.copy(feature.table))
        return feature

    return tf.nest.map_structure(copied, feature_config), optimizer


def _refuse_policies(feature_config: Any) -> None:
    for feature in feature_config.features if isinstance(feature_config, EmbeddingConfig) else ():
        if feature.column is None and feature.invalid_id != "error":
            raise ConfigError(
                f"`invalid_id` of feature {feature.name!r} is {feature.invalid_id!r}: a TPU's engine looks ids up as "
                "they are; correct or drop invalid ids in the input pipeline, and leave it 'error'."
            )


def refuse_ignored(model: Model, generation: Literal["V0", "V2"]) -> None:
    """Refuse hyperparameters that a generation of TPUs would silently ignore (TensorFlow 2.16).

    On SparseCores (V2) TensorFlow does not pass them on. Without an embedding engine (V0) a Keras
    optimizer trains the tables; an optimizer with a `slot_variable_creation_fn` stands for that one.

    Raises:
      ConfigError (ValueError): such a hyperparameter is set.
    """
    for table in model.tables:
        if table.optimizer is None or (generation == "V0" and table.slot_creator is not None):
            continue
        for name, default in _IGNORED[generation].items():
            value = getattr(table.optimizer, name, default)
            if value != default:
                raise _ignored(table.name, name, value, default, _WHY[generation])
        if table.packed and generation == "V2":
            raise _ignored(table.name, "low_dimensional_packing_status", True, False, _WHY[generation])


def _ignored(table: str, name: str, value: object, default: object, why: str) -> ConfigError:
    return ConfigError(
        f"`{name}` of the optimizer of table {table!r} is {value!r}: {why}; leave it {default!r}, or train on hardware "
        "with a V1 embedding engine."
    )
