"""Checks the inputs of `enqueue` for one core, packs them into one batch per table, and finds the output shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import TypeAlias

import tensorflow as tf

from embedding_core.engines.batches import FeatureIds, TableIds, packed
from embedding_core.errors import DataError
from embedding_core.feature_specs import FeatureSpec, Ids, Weights
from embedding_core.lookup import NormalForm, finite_weight, kind_of, normal_form, same_indices, with_valid_ids
from embedding_core.structures import Nested
from embedding_core.translate import Model


def check_inputs(model: Model, values: Sequence[Ids], core_devices: Collection[str]) -> None:
    """Refuse inputs that the TPU's enqueue refuses.

    Args:
      model: the features.
      values: one core's inputs, flat.
      core_devices: devices of the cores; inputs must not be on them.

    Raises:
      DataError (ValueError): an input is not dense, sparse or ragged, or is on a core's device.
    """
    check_kinds(model, values)
    for value, feature in zip(values, model.features, strict=True):
        for tensor in tf.nest.flatten(value, expand_composites=True):
            if tensor.device in core_devices:
                raise _on_core(feature, tensor)


def check_kinds(model: Model, values: Sequence[Ids]) -> None:
    """Refuse inputs that are not dense, sparse or ragged.

    Raises:
      DataError (ValueError): there is such an input.
    """
    for value, feature in zip(values, model.features, strict=True):
        if not kind_of(value):
            raise DataError(
                f"Input {feature.path} is of unknown type {type(value)}. Please only pass Tensor, SparseTensor or "
                "RaggedTensor as input to enqueue."
            )


def _on_core(feature: FeatureSpec, tensor: tf.Tensor) -> DataError:
    kind = "" if tf.executing_eagerly() else tensor.op.type
    if kind and "Iterator" not in kind and kind not in ("Placeholder", "Identity"):
        return DataError(
            f"Received input tensor {feature.path} which is the output of op {tensor.op.name} (type {kind}) which does "
            "not have the `_tpu_input_identity` attr. Please ensure that the inputs to this layer are taken directly "
            "from the arguments of the function called by strategy.run."
        )
    return DataError(
        f"Received input tensor {feature.path} which is on a TPU input device {tensor.device}. Input tensors for TPU "
        "embeddings must be placed on the CPU. Please distribute the dataset with "
        "tf.distribute.InputOptions(experimental_fetch_to_device=False)."
    )


def check_weights(model: Model, values: Sequence[Ids], weights: Sequence[Weights]) -> None:
    """Refuse weights of dense inputs, and weights of another kind than their inputs.

    Raises:
      DataError (ValueError): there is such a weight.
    """
    for value, weight, feature in zip(values, weights, model.features, strict=True):
        if weight is None:
            continue
        if kind_of(value) == "dense":
            raise DataError(
                f"Weight specified for dense input {feature.path}, which is not allowed. Weight will always be 1 in "
                "this case."
            )
        if kind_of(weight) != kind_of(value):
            raise DataError(
                f"Weight for {feature.path} is type {type(weight)} which does not match type input which is "
                f"{type(value).__name__}."
            )


def output_rows(model: Model, table: str, shapes: Sequence[tf.TensorShape]) -> list[int]:
    """Return the number of output rows of each feature of a table, on one core."""
    return [math.prod(shapes[place].as_list()) for place in model.features_of(table)]


def packed_inputs(
    model: Model,
    shapes: Sequence[tf.TensorShape],
    values: Sequence[Ids],
    weights: Sequence[Weights],
    *,
    core: int,
    explicit: bool,
) -> list[TableIds]:
    """Pack one core's inputs into one batch per table.

    Args:
      model: tables and features.
      shapes: the output shape of each feature, fully defined.
      values: inputs, flat.
      weights: weights or None, flat.
      core: number of the core.
      explicit: whether to give the output row and weight of every id, even if the inputs do not need them.

    Raises:
      DataError (ValueError): a batch does not have as many output rows as its output shape, or a feature cannot have
        such ids or weights.
      tf.errors.InvalidArgumentError: the same, if it is known only at run time; or a weight is not finite.
    """
    batches = []
    for table in model.tables:
        places = model.features_of(table.name)
        features = [ids_of(model.features[place], shapes[place], values[place], weights[place]) for place in places]
        first_row = core * sum(output_rows(model, table.name, shapes))
        batches.append(packed(features, first_row=first_row, explicit=explicit))
    return batches


def ids_of(feature: FeatureSpec, shape: tf.TensorShape, value: Ids, weight: Weights) -> FeatureIds:
    """Return the ids of one feature on one core; ragged ids that are only combined skip the slower normal form.

    Args:
      feature: the feature.
      shape: its output shape, fully defined.
      value: its input.
      weight: its weights or None.

    Raises:
      DataError (ValueError): see `packed_inputs`.
      tf.errors.InvalidArgumentError: see `packed_inputs`.
    """
    kind, rows = kind_of(value), math.prod(shape.as_list())
    sequence = feature.max_sequence_length > 0 and feature.output_shape is None
    if kind == "dense":
        feature = dataclasses.replace(feature, max_sequence_length=0)
        if not value.shape.is_fully_defined():
            value = tf.ensure_shape(value, [*shape, 1] if value.shape.rank == shape.rank + 1 else shape)
    elif kind == "ragged" and shape.rank != (2 if sequence else 1):
        feature = dataclasses.replace(feature, output_shape=tuple(shape.as_list()), max_sequence_length=0)
    elif kind == "ragged" and not sequence and feature.invalid_id == "error":
        return _ragged_ids(feature, rows, value, weight)
    form = normal_form(feature, value, weight, weighted_sequences=True)
    if feature.invalid_id != "error":  # for "error", the lookup on the host fails and names the table
        form = with_valid_ids(feature, form)
    form = _with_rows(feature, form, rows)
    return FeatureIds(form.ids, rows, None, form.segments, form.weights)


def _ragged_ids(feature: FeatureSpec, rows: int, value: tf.RaggedTensor, weight: Weights) -> FeatureIds:
    if value.shape[0] not in (None, rows):
        raise _wrong_rows(feature, value.shape[0], rows)
    splits = tf.ensure_shape(value.row_splits, [rows + 1])
    if weight is None:
        return FeatureIds(value.values, rows, splits)
    same_indices(feature, splits, weight.row_splits)
    return FeatureIds(value.values, rows, splits, None, finite_weight(feature.path, weight).values)


def _wrong_rows(feature: FeatureSpec, actual: int, expected: int) -> DataError:
    return DataError(
        f"Inconsistent shape founded for input feature {feature.path}: its batch gives {actual} output rows, but the "
        f"engine was built for {expected} on each core."
    )


def _with_rows(feature: FeatureSpec, form: NormalForm, expected: int) -> NormalForm:
    """Check that the form has the number of output rows that the engine was built for."""
    if isinstance(form.rows, int):
        if form.rows != expected:
            raise _wrong_rows(feature, form.rows, expected)
        return form
    message = (
        f"The batch of input feature {feature.path} does not have the {expected} output rows per core that the engine "
        "was built for: batch the data with drop_remainder=True."
    )
    check = tf.debugging.Assert(tf.equal(tf.cast(form.rows, tf.int64), expected), [message, form.rows])
    with tf.control_dependencies([] if check is None else [check]):
        return dataclasses.replace(form, ids=tf.identity(form.ids), rows=expected)


# Finds the output shapes of features: first as configured, then as given to `build`, then as the inputs show.
#
# Shapes are tf.TensorShapes per replica, without the table's dim, flat in the order of the features. The rules are
# those of `tf.tpu.experimental.embedding.TPUEmbedding`.

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
