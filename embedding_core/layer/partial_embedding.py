"""Puts large tables into a `TPUEmbedding` and small ones into Keras' own layers: `PartialTPUEmbedding`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.errors import ConfigError, DataError
from embedding_core.feature_specs import AnyFeature, FeatureSpec, Ids, refuse_ignored_attributes
from embedding_core.layer.embedding import TPUEmbedding
from embedding_core.layer.keras_optimizers import TF_KERAS
from embedding_core.layer.layer_configs import Json, config_from_json, config_to_json
from embedding_core.lookup import kind_of, normal_form
from embedding_core.structures import Nested
from embedding_core.translate import GivenOptimizer


@tf_keras.saving.register_keras_serializable("tfx_embeddings")
class PartialTPUEmbedding(tf_keras.layers.Layer):
    """A drop-in for the layer of that name in TensorFlow Recommenders.

    Tables of more than `size_threshold` rows go into a `TPUEmbedding`. The others are
    `tf_keras.layers.Embedding`, replicated and trained by the model's optimizer; they take dense ids only.
    """

    def __init__(
        self,
        feature_config: Mapping[str, AnyFeature],
        optimizer: GivenOptimizer,
        pipeline_execution_with_tensor_core: bool = False,
        batch_size: int | None = None,
        size_threshold: int | None = 10_000,
        **arguments: Any,
    ):
        """Divide the tables between the layers.

        Args:
          feature_config: FeatureConfig by feature name.
          optimizer: optimizer of the large tables; see `TPUEmbedding`.
          pipeline_execution_with_tensor_core: see `TPUEmbedding`.
          batch_size: see `TPUEmbedding`.
          size_threshold: maximum rows of a small table; 0 puts all tables into the TPUEmbedding, None puts none.
          **arguments: `table_update` and `seed` of the `TPUEmbedding`, and those of every Keras layer.

        Raises:
          ConfigError (ValueError): `feature_config` is not a dict of FeatureConfig, or a small table has what Keras'
            layer would ignore: its own optimizer, quantization, a sequence feature or an output shape.
        """
        own: Json = {name: arguments.pop(name) for name in ("table_update", "seed") if name in arguments}
        super().__init__(autocast=False, **arguments)
        _check_features(feature_config)
        large = {
            name: feature
            for name, feature in feature_config.items()
            if size_threshold is not None and feature.table.vocabulary_size > size_threshold
        }
        small = {name: feature for name, feature in feature_config.items() if name not in large}
        for name, feature in small.items():
            refuse_ignored_attributes(feature)
            _refuse_ignored(name, feature, size_threshold)
        self._state = _Arguments(
            {
                "feature_config": dict(feature_config),
                "optimizer": optimizer,
                "pipeline_execution_with_tensor_core": pipeline_execution_with_tensor_core,
                "batch_size": batch_size,
                "size_threshold": size_threshold,
                **own,
            }
        )
        self._keras_embedding_layers = _keras_layers(small, self.dtype_policy)
        self._tpu_embedding: TPUEmbedding | None = None
        if large:
            self._tpu_embedding = TPUEmbedding(
                large, optimizer, pipeline_execution_with_tensor_core, batch_size, dtype=self.dtype_policy, **own
            )

    def call(self, inputs: Mapping[str, Ids]) -> dict[str, tf.Tensor]:
        """Return activations [B, dim] by feature name.

        Args:
          inputs: ids by feature name; dense [B] or [B, 1] for small tables.

        Raises:
          DataError (ValueError): a feature is missing or unknown, or a sparse or ragged one has a small table.
        """
        expected = set(self._state.values["feature_config"])
        if set(inputs) != expected:
            missing, extra = sorted(expected - set(inputs)), sorted(set(inputs) - expected)
            raise DataError(
                f"`inputs` of PartialTPUEmbedding must be its features: missing {missing}, not configured {extra}."
            )
        small = self._keras_embedding_layers
        activations = {name: layer(_dense_ids(name, layer, inputs[name])) for name, layer in small.items()}
        if self._tpu_embedding is not None:
            large = {name: value for name, value in inputs.items() if name not in small}
            activations.update(self._tpu_embedding(large))
        return activations

    @property
    def tpu_embedding(self) -> TPUEmbedding | None:
        """The layer of the large tables; None without large tables."""
        return self._tpu_embedding

    @property
    def keras_embedding_layers(self) -> dict[str, tf_keras.layers.Embedding]:
        """The layer of each feature with a small table; features that share a table share the layer."""
        layers: dict[str, tf_keras.layers.Embedding] = self._keras_embedding_layers
        return layers

    def get_config(self) -> Json:
        """Return the arguments in a form that JSON can hold; see `TPUEmbedding.get_config`."""
        given = dict(self._state.values)
        config = config_to_json(TF_KERAS, given.pop("feature_config"), given.pop("optimizer"))
        base = super().get_config()
        base.pop("autocast", None)
        return {**base, **given, "config": config}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PartialTPUEmbedding:
        """Return the layer that `get_config` describes."""
        config = dict(config)
        features: Any
        features, optimizer = config_from_json(TF_KERAS, config.pop("config"))
        return cls(features, optimizer, **config)


class _Arguments:
    """Holds the arguments so that Keras does not track them."""

    def __init__(self, values: Json):
        self.values = values


def _check_features(feature_config: Nested) -> None:
    if isinstance(feature_config, Mapping) and all(
        isinstance(feature, tf.tpu.experimental.embedding.FeatureConfig) for feature in feature_config.values()
    ):
        return
    raise ConfigError(
        f"`feature_config` of PartialTPUEmbedding is {feature_config!r}: it must be a dict of "
        "tf.tpu.experimental.embedding.FeatureConfig by feature name; for other structures use TPUEmbedding."
    )


def _refuse_ignored(name: str, feature: AnyFeature, size_threshold: int | None) -> None:
    reason = None
    if feature.table.optimizer is not None:
        reason = "its own optimizer, which the small table's Keras layer would ignore"
    elif feature.max_sequence_length > 0:
        reason = "a max_sequence_length, which needs sparse or ragged ids"
    elif feature.table.quantization_config is not None:
        reason = "a quantization_config, which the small table's Keras layer would ignore"
    elif feature.output_shape is not None and feature.output_shape.rank is not None:
        reason = "an output_shape, which the small table's Keras layer would ignore"
    if reason:
        rows = feature.table.vocabulary_size
        raise ConfigError(
            f"Feature {name!r} of PartialTPUEmbedding has {reason}: its table has {rows} rows, and `size_threshold` is "
            f"{size_threshold}; give a threshold below {rows}."
        )


def _keras_layers(features: Mapping[str, AnyFeature], dtype: Any) -> dict[str, tf_keras.layers.Embedding]:
    made: dict[int, tf_keras.layers.Embedding] = {}
    for feature in features.values():
        table = feature.table
        if id(table) not in made:
            made[id(table)] = tf_keras.layers.Embedding(
                table.vocabulary_size, table.dim, embeddings_initializer=table.initializer, name=table.name, dtype=dtype
            )
    return {name: made[id(feature.table)] for name, feature in features.items()}


def _dense_ids(name: str, layer: tf_keras.layers.Embedding, value: Ids) -> tf.Tensor:
    if kind_of(value) != "dense":
        raise DataError(
            f"Only tf.Tensor input is supported for Keras embedding layers, but feature {name!r} got: {type(value)}; "
            "lower `size_threshold` to give its table to the TPUEmbedding."
        )
    if value.shape.rank == 0:
        return value
    form = normal_form(FeatureSpec(name, name, layer.input_dim, layer.output_dim), value)
    return form.ids if form.leading is None else tf.reshape(form.ids, form.leading)
