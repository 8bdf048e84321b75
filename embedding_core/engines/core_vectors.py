"""Packs the activations, or the gradients, of each core into one vector, so that one tensor is sent per core."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from embedding_core.engines.feeding import output_rows
from embedding_core.errors import DataError
from embedding_core.feature_specs import FeatureSpec
from embedding_core.normal_form import kind_of
from embedding_core.translate import Model


def vectors_of_cores(activations: Sequence[tf.Tensor], cores: int) -> list[tf.Tensor]:
    """Pack the activations of all tables, each [rows of all cores, dim], into one vector per core."""
    rows = [tf.reshape(values, [cores, -1]) for values in activations]
    return list(tf.unstack(rows[0] if len(rows) == 1 else tf.concat(rows, 1), num=cores))


def unpacked(vector: tf.Tensor, model: Model, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Unpack the vector of one core into the activations of each feature, in the order of the features.

    Args:
      vector: vector of one core.
      model: tables and features.
      shapes: the output shape of each feature, fully defined.
    """
    sizes = [rows * table.dim for table in model.tables for rows in output_rows(model, table.name, shapes)]
    constant = functools.cache(tf.constant)  # most features share a shape, and every core repeats this
    activations = {
        place: tf.reshape(piece, constant((*shapes[place].as_list(), model.features[place].dim)))
        for place, piece in zip(_order(model), tf.split(vector, sizes), strict=True)
    }
    return [activations[place] for place in range(len(activations))]


def packed_gradients(
    gradients: Sequence[tf.Tensor | None], model: Model, shapes: Sequence[tf.TensorShape]
) -> tf.Tensor:
    """Pack the gradients of one core into one vector, table by table.

    Args:
      gradients: gradients of the activations, in the order of the features; None counts as zeros.
      model: tables and features.
      shapes: the output shape of each feature, fully defined.

    Raises:
      DataError (ValueError): a gradient is not a dense tensor, or does not have the shape of its activations.
    """
    checked = [checked_gradient(*item) for item in zip(gradients, model.features, shapes, strict=True)]
    flat = tf.constant([-1])
    return tf.concat([tf.reshape(checked[place], flat) for place in _order(model)], 0)


def _order(model: Model) -> list[int]:
    """Return the positions of the features in `model.features`, table by table."""
    return [place for table in model.tables for place in model.features_of(table.name)]


def checked_gradient(gradient: tf.Tensor | None, feature: FeatureSpec, shape: tf.TensorShape) -> tf.Tensor:
    """Check the gradient of one feature on one core; return zeros in the shape of its activations if it is None.

    Raises:
      DataError (ValueError): it is not a dense tensor, or does not have the shape of its activations.
    """
    expected = [*shape.as_list(), feature.dim]
    if gradient is None:
        tf.get_logger().warning(
            "No gradient passed for feature %s, sending zero gradient. This may not be correct behavior for certain "
            "optimizers like Adam.",
            feature.path,
        )
        return tf.zeros(expected)
    if kind_of(gradient) != "dense":
        raise DataError(f"found non-tensor type: {type(gradient)} at path {feature.path}.")
    if gradient.shape != expected:
        raise DataError(f"Found gradient of shape {gradient.shape} at path {feature.path}. Expected shape {expected}.")
    return gradient
