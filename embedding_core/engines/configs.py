"""What a TPU's hardware is given: copies of the caller's configurations, in TensorFlow's classes."""

from __future__ import annotations

import copy
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.rates import is_schedule
from embedding_core.errors import ConfigError
from embedding_core.optimizers import Adam, Optimizer
from embedding_core.translate import Model, config_to_tensorflow, model_of, optimizer_to_tensorflow

__all__ = ["copied_configs", "embedding_feature", "is_real_tpu", "refuse_ignored"]

SPARSE_CORE_IGNORES = ("clip_weight_min", "clip_weight_max", "weight_decay_factor", "clipvalue")


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
      ConfigError (ValueError): a hyperparameter out of range, or a learning rate that is a function of the step.
    """
    model = model_of(feature_config, optimizer, needs_optimizer=False)
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


def refuse_ignored(model: Model) -> None:
    """Refuse hyperparameters that TensorFlow 2.16 silently ignores on SparseCore hardware (V2).

    Raises:
      ConfigError (ValueError): such a hyperparameter is set.
    """
    for table in model.tables:
        optimizer = table.optimizer
        if optimizer is None:
            continue
        for name in SPARSE_CORE_IGNORES:
            if getattr(optimizer, name) is not None:
                raise _ignored(table.name, name, getattr(optimizer, name), "None")
        if not optimizer.use_gradient_accumulation:
            raise _ignored(table.name, "use_gradient_accumulation", False, "True")
        if isinstance(optimizer, Adam) and not optimizer.lazy_adam:
            raise _ignored(table.name, "lazy_adam", False, "True")


def _ignored(table: str, name: str, value: object, remedy: str) -> ConfigError:
    return ConfigError(
        f"`{name}` of the optimizer of table {table!r} is {value!r}: TensorFlow ignores it on this TPU (SparseCore, "
        f"V2); leave it {remedy}, or train on hardware with a V1 embedding engine."
    )
