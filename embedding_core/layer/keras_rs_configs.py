"""Reads the FeatureConfig and TableConfig of keras-rs as those of TensorFlow, or refuses what would mean another thing.

keras-rs itself is not imported: its classes are recognized by their package.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.structures import Nested

tpu = tf.tpu.experimental.embedding

_FIXED = {
    "placement": ("auto", "the strategy in force decides where tables are; leave it 'auto'"),
    "max_ids_per_partition": (256, "limits are an argument of the layer: `sparse_core_embedding_config`"),
    "max_unique_ids_per_partition": (256, "limits are an argument of the layer: `sparse_core_embedding_config`"),
}


def is_of_keras_rs(feature: Any) -> bool:
    """Return whether an object is a configuration of keras-rs."""
    return type(feature).__module__.partition(".")[0] == "keras_rs"


def with_tensorflow_configs(feature_config: Nested) -> Nested:
    """Replace each FeatureConfig of keras-rs in a structure; other leaves stay.

    Features that share a table still share one.

    Raises:
      ConfigError (ValueError): `placement` or limits that are not the defaults, or an output shape that is not the
        input shape with `embedding_dim` in place of the last dimension.
    """
    if not any(is_of_keras_rs(leaf) for leaf in tf.nest.flatten(feature_config)):
        return feature_config
    tables: dict[int, Any] = {}

    def translated(leaf: Any) -> Any:
        if not is_of_keras_rs(leaf):
            return leaf
        key = id(leaf.table)
        if key not in tables:
            tables[key] = _table(leaf.table)
        _refuse_other_shape(leaf)
        return tpu.FeatureConfig(tables[key], name=leaf.name)

    return tf.nest.map_structure(translated, feature_config)


def _table(table: Any) -> Any:
    for name, (default, remedy) in _FIXED.items():
        value = getattr(table, name)
        if value != default:
            raise ConfigError(f"`{name}` of table {table.name!r} of keras-rs is {value!r}: {remedy}.")
    return tpu.TableConfig(
        table.vocabulary_size,
        table.embedding_dim,
        keras.initializers.get(table.initializer),
        keras.optimizers.get(table.optimizer) if isinstance(table.optimizer, str) else table.optimizer,
        table.combiner,
        table.name,
    )


def _refuse_other_shape(feature: Any) -> None:
    given, expected = tuple(feature.output_shape), (*tuple(feature.input_shape)[:-1], feature.table.embedding_dim)
    if len(feature.input_shape) == 1:
        expected = (feature.input_shape[0], feature.table.embedding_dim)
    if len(given) != len(expected) or any(a and b and a != b for a, b in zip(given, expected, strict=True)):
        raise ConfigError(
            f"`output_shape` of feature {feature.name!r} of keras-rs is {given}: for ids of shape "
            f"{tuple(feature.input_shape)} it must be {expected}; for a sequence use "
            "`tf.tpu.experimental.embedding.FeatureConfig` with `max_sequence_length`."
        )


def as_ragged(ids: Nested) -> Nested:
    """Make dense ids or weights [B, n] ragged, so that the rows of an example are combined; others stay."""

    def ragged(value: Any) -> Any:
        several = tf.is_tensor(value) and isinstance(value, tf.Tensor) and value.shape.rank == 2 and value.shape[1] != 1
        return tf.RaggedTensor.from_tensor(value) if several else value

    return tf.nest.map_structure(ragged, ids)
