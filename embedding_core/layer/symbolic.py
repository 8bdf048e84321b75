"""Answers the calls in which Keras only infers shapes for functional models, without looking up anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.engines.output_shapes import configured_shapes, merged_shapes, output_shapes
from embedding_core.feature_specs import Ids, Weights
from embedding_core.normal_form import kind_of, normal_form
from embedding_core.translate import Model


def is_symbolic(inputs: Sequence[Any]) -> bool:
    """Return whether a call with these inputs only builds a model, directly or inside one of its layers."""
    return _in_scratch_graph() or any(_is_keras_tensor(value) for value in inputs)


def _in_scratch_graph() -> bool:
    """Return whether the graph has a name that Keras gives to graphs that never run."""
    if tf.executing_eagerly():
        return False
    name = str(getattr(tf.compat.v1.get_default_graph(), "name", ""))
    return name.endswith("_scratch_graph") or name == "build_graph"


def _is_keras_tensor(value: Any) -> bool:
    try:
        return bool(tf_keras.backend.is_keras_tensor(value))
    except ValueError:  # not a tensor
        return False


def placeholders(model: Model, values: Sequence[Ids], weights: Sequence[Weights]) -> list[tf.Tensor]:
    """Return placeholders in the shapes of the activations.

    Args:
      model: the features.
      values: placeholders of their inputs, flat.
      weights: placeholders or None, flat.

    Raises:
      DataError (ValueError): a kind, type, rank or weight that a step would refuse.
    """
    for feature, value, weight in zip(model.features, values, weights, strict=True):
        kind = kind_of(value)
        known = 1 if kind == "dense" else 2  # Input(shape=(), sparse=True) has rank 1 and means rank 2
        if not kind or (value.shape.rank or 0) >= known:
            normal_form(dataclasses.replace(feature, output_shape=None), value, weight, weighted_sequences=True)
    shapes = output_shapes([value.shape for value in values], model.features)
    merged = merged_shapes(configured_shapes(model.features), shapes)
    return [
        tf.compat.v1.placeholder(tf.float32, [*shape, feature.dim])
        for shape, feature in zip(merged, model.features, strict=True)
    ]
