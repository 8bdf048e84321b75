"""Finds the output shapes of features: first as configured, then as given to `build`, then as the inputs show.

Shapes are tf.TensorShapes per replica, without the table's dim, flat in the order of the features.
The rules are those of `tf.tpu.experimental.embedding.TPUEmbedding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.feature_specs import FeatureSpec, Ids
from embedding_core.normal_form import kind_of
from embedding_core.structures import Nested

Shapes: TypeAlias = list[tf.TensorShape]
Features: TypeAlias = Sequence[FeatureSpec]


def configured_shapes(features: Features) -> Shapes:
    """Return the output shapes that the feature configurations give; unknown if they give none."""
    return [tf.TensorShape(feature.output_shape) for feature in features]


def shapes_of_batch(batch: int, features: Features) -> Shapes:
    """Return the output shapes for a per-replica batch size."""
    return [
        tf.TensorShape([batch, feature.max_sequence_length] if _is_sequence(feature) else [batch])
        for feature in features
    ]


def _is_sequence(feature: FeatureSpec) -> bool:
    return feature.output_shape is None and feature.max_sequence_length > 0


def is_flat_list(structure: Nested, given: Nested) -> bool:
    """Return whether `given` is a plain list or tuple of one TensorShape per leaf of a structure, in its order."""
    return (
        isinstance(given, list | tuple)
        and not hasattr(given, "_fields")
        and len(given) == len(tf.nest.flatten(structure))
        and all(isinstance(shape, tf.TensorShape) for shape in given)
    )


def output_shapes(input_shapes: Shapes, features: Features) -> Shapes:
    """Return the output shapes for per-replica input shapes: without the last dimension, which is combined.

    Raises:
      DataError (ValueError): a shape of rank 0 or unknown rank.
    """
    return [
        _output_shape(tf.TensorShape(shape), feature) for shape, feature in zip(input_shapes, features, strict=True)
    ]


def _output_shape(shape: tf.TensorShape, feature: FeatureSpec) -> tf.TensorShape:
    if shape.rank is None or shape.rank < 1:
        raise DataError(
            f"Received input tensor of shape {shape} for {feature.path}. Rank must be 1 and above: build with the "
            "shapes of the inputs, or set output_shape in the FeatureConfig."
        )
    if shape.rank == 2 and shape[-1] != 1 and _is_sequence(feature):
        return tf.TensorShape([shape[0], feature.max_sequence_length])
    return shape if shape.rank == 1 else shape[:-1]


def input_shape(value: Ids, feature: FeatureSpec) -> tf.TensorShape:
    """Return the shape of one replica's input; for a sequence feature of rank 2, with `max_sequence_length` added.

    Raises:
      DataError (ValueError): the input's kind cannot have its rank or last dimension.
    """
    kind, shape = kind_of(value), value.shape.as_list()
    if kind == "dense":
        return _dense_shape(shape, feature)
    if kind == "sparse" and len(shape) < 2:
        raise DataError(
            "Only rank 2 and above sparse tensor is supported, find rank "
            f"{len(shape)} sparse tensor for input {feature.path}"
        )
    if kind == "ragged" and len(shape) != 2:
        raise DataError(
            f"Only rank 2 ragged tensor is supported, find rank {len(shape)} ragged tensor for input {feature.path}"
        )
    if _is_sequence(feature) and len(shape) == 2:
        shape.insert(1, feature.max_sequence_length)
    return tf.TensorShape(shape)


def _dense_shape(shape: list[int | None], feature: FeatureSpec) -> tf.TensorShape:
    if len(shape) < 1:
        raise DataError(
            f"Only rank 1 and above dense tensor is supported, find rank {len(shape)} tensor for input {feature.path}"
        )
    if len(shape) > 1 and shape[-1] != 1:
        raise DataError(
            "Rank 2 or above dense tensor should have last dimension as 1 as the last dimension will always be "
            f"reduced. Instead got dense tensor as shape {shape} for input {feature.path}; for several ids per example "
            "pass a SparseTensor or RaggedTensor."
        )
    return tf.TensorShape(shape)


def check_shapes(current: Shapes, incoming: Shapes, features: Features) -> None:
    """Refuse incoming output shapes that contradict the current ones.

    A smaller rank than the current one is left to the enqueue: a ragged feature of rank 2 may
    have an output shape of a higher rank.

    Raises:
      DataError (ValueError): they contradict.
    """
    for old, new, feature in zip(current, incoming, features, strict=True):
        if old.rank is None or new.rank is None or (new.rank in (1, 2) and old.rank > new.rank):
            continue
        pairs = zip(old.as_list(), new.as_list(), strict=False)
        if old.rank != new.rank or any(a and b and a != b for a, b in pairs):
            raise DataError(
                f"Inconsistent shape founded for input feature {feature.path}, Output shape is set to be {old}, "
                f"But got incoming output shape {new}"
            )


def merged_shapes(current: Shapes, incoming: Shapes) -> Shapes:
    """Return the current shapes, completed by the incoming ones."""
    return [new if old.rank is None else old for old, new in zip(current, incoming, strict=True)]


def check_defined(shapes: Shapes, features: Features) -> None:
    """Refuse shapes with unknown dimensions.

    Raises:
      DataError (ValueError): a shape is not fully defined.
    """
    for shape, feature in zip(shapes, features, strict=True):
        if not shape.is_fully_defined():
            raise DataError(
                f"Input Feature {feature.path} has output shape set as {shape} which is not fully defined. Please "
                "specify the fully defined shape in either FeatureConfig or for the build method; batch the data with "
                "drop_remainder=True."
            )
