"""Computes the columns of Transform's output, for features that are counted `after_transform`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf
import tensorflow_transform as tft

from components.vocabulary_gen.counting_plan import CountedFeature, CountingPlan
from embedding_core.columns import Values
from embedding_core.config import TokenDtype
from embedding_core.errors import DataError
from embedding_core.schema import Json

_TOKEN_DTYPES: dict[tf.DType, TokenDtype] = {tf.string: "string", tf.int64: "int64", tf.float32: "float32"}


class SavedTransform:
    """The saved transform. Make it outside of any graph function, or the graph would become part of that function.

    Attributes:
      spec: how to read each raw column, as for `tf.io.parse_example`.
      needs_vetting: whether rows must pass the protobuf parser first: Transform's inputs hold a float
        column of variable length, and a malformed list of such a column can end the process inside
        TensorFlow's parser.
    """

    def __init__(self, transform_graph: str) -> None:
        output = tft.TFTransformOutput(transform_graph)
        self._layer = output.transform_features_layer()
        self.spec: Json = output.raw_feature_spec()
        self.needs_vetting = any(
            isinstance(feature, (tf.io.VarLenFeature, tf.io.RaggedFeature, tf.io.SparseFeature))
            and feature.dtype == tf.float32
            for feature in self.spec.values()
        )

    def of_examples(self, records: tf.Tensor) -> Mapping[str, Values]:
        """Compute Transform's output for serialized tf.Examples [B]; a graph function."""
        transformed: Mapping[str, Values] = self._layer(tf.io.parse_example(records, dict(self.spec)))
        return transformed


def plan_after_transform(plan: CountingPlan) -> CountingPlan:
    """Give the columns `after_transform` the dtypes that Transform's output has.

    Raises:
      DataError: Transform's output has no such column.
      ConfigError: a column of numbers has a separator.
    """
    if plan.transform_graph is None or not any(feature.column.after_transform for feature in plan.features):
        return dataclasses.replace(plan, transform_graph=None)
    spec = tft.TFTransformOutput(plan.transform_graph).transformed_feature_spec()
    dtypes = {name: _TOKEN_DTYPES[feature.dtype] for name, feature in spec.items()}
    features = tuple(
        _with_dtype(feature, dtypes) if feature.column.after_transform else feature for feature in plan.features
    )
    return dataclasses.replace(plan, features=features)


def _with_dtype(feature: CountedFeature, dtypes: Mapping[str, TokenDtype]) -> CountedFeature:
    column = feature.column
    if column.name not in dtypes:
        raise DataError(
            f"feature {feature.name!r}: Transform's output has no column {column.name!r}: it has "
            f"{', '.join(sorted(dtypes))}; return it from `preprocessing_fn`, or name another."
        )
    return dataclasses.replace(feature, column=column.replace(dtype=dtypes[column.name]))
