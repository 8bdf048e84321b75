"""Copies the caller's configurations for TensorFlow's classes on a real TPU, and refuses ignored settings."""

from __future__ import annotations

import copy
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.tables import is_schedule
from embedding_core.errors import ConfigError, UnsupportedError
from embedding_core.feature_specs import FeatureConfigs, Trainer, ignored_by
from embedding_core.optimizers import SGD, Adagrad, Optimizer
from embedding_core.translate import (
    GivenOptimizer,
    KerasSlots,
    Model,
    TableSpec,
    config_to_tensorflow,
    model_of,
    optimizer_to_tensorflow,
)

# Replaces a bool in TensorFlow's optimizers by the enum number that protobuf 7 requires.
#
# TensorFlow (2.16 to 2.21) assigns `low_dimensional_packing_status`, a bool, to an enum field of a proto. protobuf 4 to
# 6 convert it to the enum's number. protobuf 7, which TensorFlow 2.20 and 2.21 allow, raises TypeError, so no
# TPUEmbedding could be built. The number has the same meaning.

_ENUM = "low_dimensional_packing_status"


def with_enum_numbers(optimizer: GivenOptimizer) -> GivenOptimizer:
    """Return the optimizer; if `low_dimensional_packing_status` is a bool, return a copy that has the number instead.

    Args:
      optimizer: optimizer of `tf.tpu.experimental.embedding`; any other is returned unchanged.
    """
    if not isinstance(getattr(optimizer, _ENUM, None), bool):
        return optimizer
    numbered = copy.copy(optimizer)
    setattr(numbered, _ENUM, int(getattr(optimizer, _ENUM)))
    return numbered


# Copies the caller's configurations for TensorFlow's classes on a real TPU, and refuses ignored settings.


def is_real_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy runs on a real TPU."""
    return isinstance(strategy, tf.distribute.TPUStrategy | tf.distribute.experimental.TPUStrategy)


def embedding_feature(strategy: tf.distribute.Strategy) -> str:
    """Return the generation of a real TPU's embedding hardware: "V1", "V2" (SparseCore), or "V0" for none."""
    kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
    feature = strategy.extended.tpu_hardware_feature.embedding_feature
    return {kinds.V1: "V1", kinds.V2: "V2"}.get(feature, "V0")


def copied_configs(feature_config: FeatureConfigs, optimizer: GivenOptimizer) -> tuple[Any, Any]:
    """Copy feature configurations and optimizer for TensorFlow's classes, which modify their arguments.

    Args:
      feature_config: an EmbeddingConfig, or a structure of `tf.tpu.experimental.embedding.FeatureConfig`.
      optimizer: optimizer of this project or of TensorFlow, or None.

    Raises:
      ConfigError (ValueError): a hyperparameter is out of range, a learning rate is a function of the step, or the
        policy for invalid ids is not "error", the only one that TensorFlow's classes have.
    """
    model = model_of(feature_config, optimizer, needs_optimizer=False)
    refuse_policies(feature_config)
    for table in model.tables:
        if table.optimizer is not None and is_schedule(table.optimizer.learning_rate):
            raise ConfigError(
                f"`learning_rate` of table {table.name!r} is a function of the step: on a TPU it must be a callable "
                "without arguments; pass lambda: schedule(step), with your own step variable."
            )
    if isinstance(optimizer, Optimizer):
        optimizer = optimizer_to_tensorflow(optimizer)
    if isinstance(feature_config, EmbeddingConfig):
        feature_config = config_to_tensorflow(feature_config)
    tables: dict[int, Any] = {}

    def copied(feature: Any) -> Any:
        feature = copy.copy(feature)
        if id(feature.table) not in tables:
            table = tables[id(feature.table)] = copy.copy(feature.table)
            table.optimizer = with_enum_numbers(table.optimizer)
        feature.table = tables[id(feature.table)]
        return feature

    return tf.nest.map_structure(copied, feature_config), with_enum_numbers(optimizer)


def refuse_policies(feature_config: FeatureConfigs) -> None:
    """Refuse policies for invalid ids other than "error", the only one that TensorFlow's classes have.

    Raises:
      ConfigError (ValueError): a feature has another policy.
    """
    for feature in feature_config.features if isinstance(feature_config, EmbeddingConfig) else ():
        if feature.column is None and feature.invalid_id != "error":
            raise ConfigError(
                f"`invalid_id` of feature {feature.name!r} is {feature.invalid_id!r}: a TPU's engine looks ids up as "
                "they are; correct or drop invalid ids in the input pipeline, and leave it 'error'."
            )


def refuse_ignored(model: Model, trainer: Trainer) -> None:
    """Refuse attributes of optimizers that the trainer of the tables would ignore (as of TensorFlow 2.16).

    Args:
      model: the tables.
      trainer: "engine" for an engine of this project; "V2" for SparseCores, to which TensorFlow does not pass all
        attributes; "V0" for a TPU without an embedding engine, on which a Keras optimizer trains the tables.

    Raises:
      UnsupportedError (ValueError, NotImplementedError): such an attribute is set.
      ConfigError (ValueError): `low_dimensional_packing_status` would change results.
    """
    for table in model.tables:
        if table.optimizer is None:
            continue
        for name, (default, why) in ignored_by(trainer, type(table.optimizer).__name__).items():
            value = _value(table, name, default)
            if value != default:
                raise UnsupportedError(
                    f"`{name}` of the optimizer of table {table.name!r} is {value!r}: {why}; leave it {default!r}"
                    f"{'' if trainer == 'engine' else ', or train on hardware with a V1 embedding engine'}."
                )
        if trainer == "engine" and table.packed and _moves_untouched_rows(table.optimizer):
            raise ConfigError(
                f"`low_dimensional_packing_status` of the optimizer of table {table.name!r} is True: it gives the "
                "neighbours of a row a gradient of zero, which is emulated only if that changes no numbers (SGD and "
                "Adagrad without weight decay and bounds of weights); leave it False."
            )


def _value(table: TableSpec, name: str, default: Any) -> Any:
    if name == "slot_variable_creation_fn":
        return default if isinstance(table.slot_creator, KerasSlots) else table.slot_creator
    return table.packed if name == "low_dimensional_packing_status" else getattr(table.optimizer, name, default)


def _moves_untouched_rows(optimizer: Optimizer) -> bool:
    """Return whether a gradient of zero may change a row or its slots."""
    bounds = (optimizer.weight_decay_factor, optimizer.clip_weight_min, optimizer.clip_weight_max)
    return not isinstance(optimizer, SGD | Adagrad) or any(bound is not None for bound in bounds)
