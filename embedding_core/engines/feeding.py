"""What `enqueue` is given for one core: checked, and packed into one batch per table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines.batches import TableBatch, packed
from embedding_core.errors import DataError
from embedding_core.features import FeatureSpec, NormalForm, kind_of, normal_form, policed
from embedding_core.translate import Model

__all__ = ["check_inputs", "output_rows", "packed_inputs"]


def check_inputs(model: Model, values: Sequence[Any], weights: Sequence[Any], core_devices: Collection[str]) -> None:
    """Refuse what the TPU's enqueue refuses.

    Args:
      model: the features.
      values: one core's inputs, flat.
      weights: their weights or None, flat.
      core_devices: the devices that inputs may not be on.

    Raises:
      DataError (ValueError): an input's kind, an input on a core's device, a weight that does not fit.
    """
    for value, weight, feature in zip(values, weights, model.features, strict=True):
        if not kind_of(value):
            raise DataError(
                f"Input {feature.path} is of unknown type {type(value)}. Please only pass Tensor, SparseTensor or "
                "RaggedTensor as input to enqueue."
            )
        for tensor in tf.nest.flatten(value, expand_composites=True):
            if tensor.device in core_devices:
                raise _on_core(feature, tensor)
        _check_weight(value, weight, feature)


def _on_core(feature: FeatureSpec, tensor: Any) -> DataError:
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


def _check_weight(value: Any, weight: Any, feature: FeatureSpec) -> None:
    if weight is None:
        return
    if kind_of(value) == "dense":
        raise DataError(
            f"Weight specified for dense input {feature.path}, which is not allowed. Weight will always be 1 in this "
            "case."
        )
    if kind_of(weight) != kind_of(value):
        raise DataError(
            f"Weight for {feature.path} is type {type(weight)} which does not match type input which is "
            f"{type(value).__name__}."
        )


def output_rows(model: Model, table: str, shapes: Sequence[Any]) -> list[int]:
    """The number of output rows of each feature of a table, on one core."""
    return [math.prod(shapes[place].as_list()) for place in model.features_of(table)]


def packed_inputs(
    model: Model, shapes: Sequence[Any], values: Sequence[Any], weights: Sequence[Any], *, core: int, explicit: bool
) -> list[TableBatch]:
    """One core's inputs as one batch per table.

    Args:
      model: tables and features.
      shapes: the output shape of each feature, fully defined.
      values: inputs, flat.
      weights: weights or None, flat.
      core: number of the core.
      explicit: whether to leave no part of a batch empty.

    Raises:
      DataError (ValueError): a batch that does not fill its output shape.
    """
    parts = []
    for table in model.tables:
        rows = output_rows(model, table.name, shapes)
        places = model.features_of(table.name)
        forms = [_form(model.features[place], shapes[place], values[place], weights[place]) for place in places]
        parts.append(packed(table, forms, rows, first_row=core * sum(rows), explicit=explicit))
    return parts


def _form(feature: FeatureSpec, shape: Any, value: Any, weight: Any) -> NormalForm:
    sequence = feature.max_sequence_length > 0 and feature.output_shape is None
    kind = kind_of(value)
    if kind == "dense":
        feature = dataclasses.replace(feature, max_sequence_length=0)
    elif kind == "ragged" and shape.rank != (2 if sequence else 1):
        feature = dataclasses.replace(feature, output_shape=tuple(shape.as_list()), max_sequence_length=0)
    form = normal_form(feature, value, weight, weighted_sequences=True)
    if feature.invalid_id != "error":  # the lookup on the host fails on an invalid id, naming the table
        form = policed(feature, form)
    return _with_rows(feature, form, math.prod(shape.as_list()))


def _with_rows(feature: FeatureSpec, form: NormalForm, expected: int) -> NormalForm:
    """The form, checked to have the number of output rows that the engine was built for."""
    if isinstance(form.rows, int):
        if form.rows != expected:
            raise DataError(
                f"Inconsistent shape founded for input feature {feature.path}: its batch gives {form.rows} output "
                f"rows, but the engine was built for {expected} on each core."
            )
        return form
    message = (
        f"The batch of input feature {feature.path} does not have the {expected} output rows per core that the engine "
        "was built for: batch the data with drop_remainder=True."
    )
    check = tf.debugging.Assert(tf.equal(tf.cast(form.rows, tf.int64), expected), [message, form.rows])
    with tf.control_dependencies([] if check is None else [check]):
        return dataclasses.replace(form, ids=tf.identity(form.ids), rows=expected)
