"""Where numbers come from: outputs of Transform with the raw columns that they need, or raw columns of the schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.utils import io_utils

from embedding_core.errors import DataError
from embedding_core.serving.inputs import DenseInputs

__all__ = ["number_columns", "open_transform_graph"]


def open_transform_graph(uri: str, outputs: Collection[str], names: Collection[str] | None = None) -> DenseInputs:
    """The inputs that Transform computes, with the raw columns that they need and no others.

    Training asks for dense features, label and weight; serving for dense features alone, and so
    never needs the columns that only the label is made of.

    Args:
      uri: of a TransformGraph artifact.
      outputs: what is wanted of its outputs: dense features, label, weight, columns `after_transform`.
      names: which of them are the model's dense inputs; None for all.

    Raises:
      DataError: an output that `preprocessing_fn` did not return.
    """
    graph = tft.TFTransformOutput(uri)
    wanted, known = set(outputs), set(graph.transformed_feature_spec())
    unknown = sorted(wanted - known)
    if unknown:
        raise DataError(
            f"Transform has no output {unknown[0]!r}, it has {sorted(known)}: return it from `preprocessing_fn`, or "
            "correct its name."
        )
    layer = graph.transform_features_layer()
    spec = _needed(layer, graph.raw_feature_spec(), wanted)
    chosen = tuple(outputs if names is None else names)
    return DenseInputs(names=chosen, spec=spec, transform=layer)


def _needed(layer: Any, spec: Mapping[str, Any], wanted: set[str]) -> dict[str, Any]:
    """The columns without which an output that is wanted could not be computed."""
    return {name: feature for name, feature in spec.items() if wanted - _outputs_without(layer, spec, name)}


def _outputs_without(layer: Any, spec: Mapping[str, Any], column: str) -> set[str]:
    """The outputs that the layer computes where one column is not given: TFT leaves out what depends on it."""
    rest = {name: feature for name, feature in spec.items() if name != column}
    if not rest:
        return set()

    def compute(examples: tf.Tensor) -> Any:
        return layer(tf.io.parse_example(examples, rest))

    return set(tf.function(compute).get_concrete_function(tf.TensorSpec([None], tf.string)).structured_outputs)


def number_columns(schema_file: str, names: Collection[str]) -> dict[str, tf.io.FixedLenFeature]:
    """How to read raw columns of one number per row: a missing float is NaN, a whole number must be there.

    Args:
      schema_file: path of a `schema.pbtxt`.
      names: of the columns.

    Raises:
      DataError: a column that the schema does not have, or that holds no numbers.
    """
    schema = io_utils.parse_pbtxt_file(schema_file, schema_pb2.Schema())
    types = {feature.name: feature.type for feature in schema.feature}
    return {name: _number_column(name, types.get(name)) for name in dict.fromkeys(names)}


def _number_column(name: str, kind: int | None) -> tf.io.FixedLenFeature:
    if kind == schema_pb2.INT:
        return tf.io.FixedLenFeature([], tf.int64)
    if kind == schema_pb2.FLOAT:
        return tf.io.FixedLenFeature([], tf.float32, default_value=float("nan"))
    given = "not in the schema" if kind is None else "not a column of numbers"
    raise DataError(f"column {name!r} is {given}: name a column of numbers, or compute it with Transform.")
