"""Copies the layer's configuration, so that the caller's objects never change, and converts it to and from JSON."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.feeding import is_flat_list
from embedding_core.errors import ConfigError
from embedding_core.feature_specs import AnyFeature, AnyTable, FeatureConfigs, Ids, Weights
from embedding_core.layer.keras_package import CopiedOptimizer, Keras
from embedding_core.optimizers import optimizer_from_json
from embedding_core.structures import Nested, flat_like, flat_pairs
from embedding_core.translate import GivenOptimizer, Model, model_of, optimizer_to_core, optimizer_to_tensorflow

tpu = tf.tpu.experimental.embedding

Json: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """The configuration of a layer, prepared for an engine.

    Attributes:
      feature_config: the configuration as given.
      copies: the same structure with copies of features and tables, whose optimizers are translated to the TPU's; an
        EmbeddingConfig is not copied, as it is frozen.
      optimizer: the TPU's optimizer of tables without their own, or None.
      model: tables and features; `TableSpec.key` is the caller's TableConfig.
    """

    feature_config: FeatureConfigs
    copies: FeatureConfigs
    optimizer: GivenOptimizer
    model: Model


def layer_config(
    keras: Keras, feature_config: FeatureConfigs, optimizer: GivenOptimizer, *, needs_optimizer: bool
) -> LayerConfig:
    """Copy the configuration and translate its optimizers, which may be those of one package of Keras.

    Raises:
      ConfigError (ValueError): an unsupported optimizer or structure, a hyperparameter out of range, or two tables with
        one name.
    """
    optimizer = keras.table_optimizer(optimizer)
    _check_leaves(feature_config)
    if isinstance(feature_config, EmbeddingConfig):
        model = model_of(feature_config, optimizer, needs_optimizer=needs_optimizer)
        return LayerConfig(feature_config, feature_config, optimizer, model)
    originals = {id(feature.table): feature.table for feature in tf.nest.flatten(feature_config)}
    tables = {key: _translated(keras, table) for key, table in originals.items()}
    keys = {id(tables[key]): table for key, table in originals.items()}

    def copied(feature: AnyFeature) -> AnyFeature:
        feature = copy.copy(feature)
        feature.table = tables[id(feature.table)]
        return feature

    copies = tf.nest.map_structure(copied, feature_config)
    model = model_of(copies, optimizer, needs_optimizer=needs_optimizer)
    specs = tuple(dataclasses.replace(table, key=keys[id(table.key)]) for table in model.tables)
    return LayerConfig(feature_config, copies, optimizer, dataclasses.replace(model, tables=specs))


def _check_leaves(feature_config: FeatureConfigs) -> None:
    if isinstance(feature_config, EmbeddingConfig):
        return
    leaves = tf.nest.flatten(feature_config)
    wrong = [leaf for leaf in leaves if not isinstance(leaf, tpu.FeatureConfig)]
    if wrong or not leaves:
        raise ConfigError(
            f"`feature_config` holds {wrong[0] if wrong else feature_config!r}: it must be an EmbeddingConfig, or a "
            "structure of dicts, lists and tuples whose leaves are tf.tpu.experimental.embedding.FeatureConfig."
        )


def _translated(keras: Keras, table: AnyTable) -> AnyTable:
    table = copy.copy(table)
    table.optimizer = keras.table_optimizer(table.optimizer)
    return table


def flat_inputs(model: Model, features: Nested, weights: Nested) -> tuple[list[Ids], list[Weights]]:
    """Return features and weights in the order of the configured features.

    Raises:
      DataError (ValueError): a feature is missing or unknown, or a container has another type.
    """
    values = [_tensor(value) for value in flat_like("features", model.structure, features)]
    if weights is None:
        return values, [None] * len(values)
    return values, [_tensor(value) for value in flat_like("weights", model.structure, weights)]


def _tensor(value: Ids) -> Ids:
    return tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value


def flat_shapes(structure: Nested, given: Nested) -> list[tf.TensorShape] | None:
    """Return the shapes of the inputs in the order of the features; None if they are unknown.

    Args:
      structure: structure of the feature configuration.
      given: shapes (TensorShape, tuple or list) in that structure, or a flat list of TensorShapes in the order of the
        features, or None.
    """
    if given is None:
        return None
    if is_flat_list(structure, given):
        return list(given)
    try:
        pairs = flat_pairs("input_shape", structure, given, nested_values=True)
        return [tf.TensorShape(shape) for _, shape in pairs]
    except (TypeError, ValueError):  # the lookup raises an error that names the missing feature
        return None


def config_to_json(keras: Keras, feature_config: FeatureConfigs, optimizer: GivenOptimizer) -> Json:
    """Return the feature configuration and optimizer as a JSON object.

    Raises:
      ConfigError (ValueError): JSON cannot hold a part of it, such as a callable learning rate or a function as
        initializer.
    """
    if isinstance(feature_config, EmbeddingConfig):
        return {"embedding_config": feature_config.to_json(), "optimizer": _optimizer_to_json(keras, optimizer)}
    tables: list[AnyTable] = []
    structure = _structure_to_json(feature_config, tables)
    return {
        "structure": structure,
        "tables": [_table_to_json(keras, table) for table in tables],
        "optimizer": _optimizer_to_json(keras, optimizer),
    }


def config_from_json(keras: Keras, value: Json) -> tuple[FeatureConfigs, GivenOptimizer]:
    """Return the feature configuration and optimizer that `config_to_json` wrote."""
    optimizer = _optimizer_from_json(keras, value["optimizer"])
    if "embedding_config" in value:
        return EmbeddingConfig.from_json(value["embedding_config"]), optimizer
    tables = [_table_from_json(keras, table) for table in value["tables"]]
    return _structure_from_json(value["structure"], tables), optimizer


def _structure_to_json(structure: Nested, tables: list[AnyTable]) -> Any:
    if isinstance(structure, tpu.FeatureConfig):
        return {"feature": _feature_to_json(structure, tables)}
    if isinstance(structure, Mapping):
        return {"dict": [[key, _structure_to_json(item, tables)] for key, item in structure.items()]}
    for kind in (list, tuple):
        if type(structure) is kind:
            return {kind.__name__: [_structure_to_json(item, tables) for item in structure]}
    raise ConfigError(
        f"`feature_config` holds a {type(structure)}: only dicts, lists and tuples of FeatureConfig can be written to "
        "JSON; use one of them."
    )


def _structure_from_json(value: Json, tables: list[AnyTable]) -> Any:
    if "feature" in value:
        return _feature_from_json(value["feature"], tables)
    if "dict" in value:
        return {key: _structure_from_json(item, tables) for key, item in value["dict"]}
    ((kind, items),) = value.items()
    children = [_structure_from_json(item, tables) for item in items]
    return tuple(children) if kind == "tuple" else children


def _feature_to_json(feature: AnyFeature, tables: list[AnyTable]) -> Json:
    if not any(feature.table is table for table in tables):
        tables.append(feature.table)
    shape = feature.output_shape
    return {
        "table": next(place for place, table in enumerate(tables) if table is feature.table),
        "max_sequence_length": feature.max_sequence_length,
        "validate_weights_and_indices": feature.validate_weights_and_indices,
        "output_shape": None if shape is None or shape.rank is None else shape.as_list(),
        "name": feature.name,
    }


def _feature_from_json(value: Json, tables: list[AnyTable]) -> Any:
    return tpu.FeatureConfig(**{**value, "table": tables[value["table"]]})


def _table_to_json(keras: Keras, table: AnyTable) -> Json:
    quantization = table.quantization_config
    return {
        "vocabulary_size": table.vocabulary_size,
        "dim": table.dim,
        "initializer": _initializer_to_json(keras, table),
        "optimizer": _optimizer_to_json(keras, table.optimizer),
        "combiner": table.combiner,
        "name": table.name,
        "quantization_config": None
        if quantization is None
        else [quantization.num_buckets, quantization.lower, quantization.upper],
    }


def _table_from_json(keras: Keras, value: Json) -> Any:
    quantization = value["quantization_config"]
    return tpu.TableConfig(
        **{
            **value,
            "initializer": _initializer_from_json(keras, value["initializer"]),
            "optimizer": _optimizer_from_json(keras, value["optimizer"]),
            "quantization_config": None if quantization is None else tpu.QuantizationConfig(*quantization),
        }
    )


def _initializer_to_json(keras: Keras, table: AnyTable) -> Json:
    initializer, again, cause = table.initializer, None, None
    if hasattr(initializer, "get_config"):
        if type(initializer).__module__.partition(".")[0] in ("tensorflow", "tf_keras", "keras"):
            return {"class_name": type(initializer).__name__, "config": initializer.get_config()}
        try:
            written: Json = keras.package.saving.serialize_keras_object(initializer)
            again = _initializer_from_json(keras, written)
        except (TypeError, ValueError) as error:
            cause = error
    if type(again) is type(initializer):
        return written
    raise ConfigError(
        f"`initializer` of table {table.name!r} is {initializer!r}, which cannot be written to JSON and read again: "
        f"use one of {keras.name}.initializers, or put @{keras.name}.saving.register_keras_serializable() on its class."
    ) from cause


def _initializer_from_json(keras: Keras, value: Json) -> Any:
    if "module" in value:  # a user-defined class
        return keras.package.saving.deserialize_keras_object(value)
    return keras.package.initializers.deserialize(value)


def _optimizer_to_json(keras: Keras, optimizer: GivenOptimizer) -> Any:
    if optimizer is None or isinstance(optimizer, str):
        return optimizer
    if isinstance(optimizer, CopiedOptimizer):
        optimizer = optimizer.optimizer
    if keras.is_optimizer(optimizer):
        return {"keras": keras.package.optimizers.serialize(optimizer)}
    return {"tpu": optimizer_to_core(optimizer).to_mapping()}


def _optimizer_from_json(keras: Keras, value: Nested) -> Any:
    if value is None or isinstance(value, str):
        return value
    if "keras" in value:
        return CopiedOptimizer(keras.package.optimizers.deserialize(value["keras"]))
    return optimizer_to_tensorflow(optimizer_from_json(value["tpu"]))
