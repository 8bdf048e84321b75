"""Builds and calls the dense part of a model: its inputs are activations and dense features.

A model is made by a user's ``build(config, embeddings, dense, **arguments)``, which gets one Keras
input per feature and returns a functional `tf_keras.Model` from those inputs to logits `[B, 1]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError

ModelInputs: TypeAlias = "tuple[dict[str, Any], dict[str, Any]]"

_EMBEDDING, _DENSE = "embedding_", "dense_"


def model_inputs(config: EmbeddingConfig, dense: Iterable[str]) -> ModelInputs:
    """Make Keras inputs: per feature `[B, dim]` (or `[B, L, dim]` for a sequence), per dense feature `[B, 1]`."""
    embeddings = {}
    for feature in config.features:
        length, dim = feature.max_sequence_length, config.table_of(feature.name).dim
        shape = (length, dim) if length else (dim,)
        embeddings[feature.name] = tf_keras.Input(shape, name=_EMBEDDING + feature.name)
    return embeddings, {name: tf_keras.Input((1,), name=_DENSE + name) for name in dense}


def _load_build(module: str) -> Callable[..., tf_keras.Model]:
    build = getattr(importlib.import_module(module), "build", None)
    if not callable(build):
        raise ConfigError(f"model {module!r} has no function `build`: write `build(config, embeddings, dense)` in it.")
    return cast(Callable[..., tf_keras.Model], build)


def build_model(
    module: str, config: EmbeddingConfig, dense: Iterable[str], arguments: Mapping[str, Any]
) -> tf_keras.Model:
    """Build the model that a module describes.

    Args:
      module: dotted name of a module with `build(config, embeddings, dense, **arguments)`.
      config: tables and features; one input each.
      dense: names of the dense features.
      arguments: keyword arguments of `build`.

    Raises:
      ConfigError: the module has no `build`, or `build` returned something other than logits `[B, 1]`.
    """
    embeddings, dense_inputs = model_inputs(config, dense)
    model = _load_build(module)(config, embeddings, dense_inputs, **arguments)
    shape = getattr(model, "output_shape", None)
    if shape != (None, 1):
        raise ConfigError(
            f"`build` of model {module!r} returned {type(model).__name__} with output shape {shape!r}: "
            "it must return a functional tf_keras.Model whose output is one logit per example, (None, 1)."
        )
    return model


def call_model(
    model: tf_keras.Model,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    training: bool = False,
) -> tf.Tensor:
    """Compute the logits `[B, 1]` of a model made by `build_model`, however its `build` nested the inputs.

    Args:
      model: the model.
      embeddings: activations by feature name.
      dense: float32 `[B, 1]` by name.
      training: whether layers such as dropout are active.
    """
    given = {_EMBEDDING + name: value for name, value in embeddings.items()}
    given.update({_DENSE + name: value for name, value in dense.items()})
    return model([given[name] for name in model.input_names], training=training)
