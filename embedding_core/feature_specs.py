"""Reads feature configurations, TensorFlow's or this project's, into one `FeatureSpec` per feature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.attributes import refuse_unknown
from embedding_core.config import Combiner, EmbeddingConfig, FeatureConfig, InvalidId, TableConfig
from embedding_core.structures import Nested, path_name, paths_of

tpu = tf.tpu.experimental.embedding

Ids: TypeAlias = "tf.Tensor | tf.SparseTensor | tf.RaggedTensor"  # integers
Weights: TypeAlias = "tf.SparseTensor | tf.RaggedTensor | None"  # with the kind and indices of the ids
FeatureConfigs: TypeAlias = "EmbeddingConfig | Nested"  # of FeatureConfig, this project's or TensorFlow's
AnyFeature: TypeAlias = Any  # a FeatureConfig, this project's or TensorFlow's
AnyTable: TypeAlias = Any  # a TableConfig, this project's or TensorFlow's
Count: TypeAlias = "int | tf.Tensor"  # an int scalar tensor if it is known only at run time


class Quantization(NamedTuple):
    """Simulated quantization of the rows of a table: `num_buckets` values from `lower` to `upper`."""

    num_buckets: int
    lower: float
    upper: float


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """What a lookup needs to know of one feature and its table, whichever class it was configured with.

    Attributes:
      path: path of the feature in the caller's structure, as text; for messages only, since it may not be unique.
      table: key of its table among the tables.
      vocabulary_size, dim: number of rows of that table, and length of a row.
      combiner: "mean", "sum" or "sqrtn".
      max_sequence_length: 0 combines the rows of an example; n > 0 gives [batch, n, dim].
      output_shape: shape of the output without `dim`, or None; dimensions may be None.
      invalid_id: policy for an id outside the table.
      quantization: quantization that the lookup applies to the rows, or None; stored rows are not quantized.
    """

    path: str
    table: AnyTable
    vocabulary_size: int
    dim: int
    combiner: Combiner = "mean"
    max_sequence_length: int = 0
    output_shape: tuple[int | None, ...] | None = None
    invalid_id: InvalidId = "error"
    quantization: Quantization | None = None


def specs_of(feature_config: FeatureConfigs, tables: Mapping[Any, Any]) -> Any:
    """Return the specs of a structure of feature configurations, in the same structure.

    Args:
      feature_config: an EmbeddingConfig (the structure is a dict by feature name), or any structure of
        `embedding_core.FeatureConfig` or `tf.tpu.experimental.embedding.FeatureConfig`.
      tables: a mapping with one entry per table, keyed by its TableConfig (of either kind) or by its name.

    Raises:
      KeyError: a feature's table is not among `tables`.
      ConfigError (ValueError): see `refuse_ignored_attributes`.
    """
    if isinstance(feature_config, EmbeddingConfig):
        named = {feature.name: feature for feature in feature_config.features}
        return {
            name: _spec_of(name, feature, feature_config.table(feature.table), tables)
            for name, feature in named.items()
        }
    own = {key.name: key for key in tables if isinstance(key, TableConfig)}
    flat = []
    for path, feature in zip(paths_of(feature_config), tf.nest.flatten(feature_config), strict=True):
        refuse_ignored_attributes(feature)
        table = own.get(feature.table) if isinstance(feature, FeatureConfig) else feature.table
        if table is None:
            raise KeyError(
                f"table {feature.table!r} of feature {path_name(path)} is not among the tables {sorted(own)}: "
                "key them by their TableConfig, or pass an EmbeddingConfig as feature_config."
            )
        flat.append(_spec_of(path_name(path), feature, table, tables))
    return tf.nest.pack_sequence_as(feature_config, flat)


def _spec_of(path: str, feature: AnyFeature, table: AnyTable, tables: Mapping[Any, Any]) -> FeatureSpec:
    key = table if table in tables else table.name
    if key not in tables:
        raise KeyError(f"table {table.name!r} of feature {path} is not among the tables: {list(tables)}.")
    return feature_spec(path, feature, key, table, table.vocabulary_size, quantization_of(table))


def feature_spec(
    path: str, feature: AnyFeature, key: AnyTable, table: AnyTable, rows: int, quantization: Quantization | None
) -> FeatureSpec:
    """Make the spec of one feature.

    Args:
      path: path of the feature in the caller's structure, as text.
      feature: configuration of the feature.
      key: key of its table among the tables.
      table: anything with the `dim` and the `combiner` of that table.
      rows: number of rows of that table.
      quantization: quantization of its rows, or None.
    """
    shape = getattr(feature, "output_shape", None)
    return FeatureSpec(
        path=path,
        table=key,
        vocabulary_size=rows,
        dim=table.dim,
        combiner=table.combiner,
        max_sequence_length=feature.max_sequence_length,
        output_shape=None if shape is None or shape.rank is None else tuple(shape.as_list()),
        invalid_id=getattr(feature, "invalid_id", "error"),
        quantization=quantization,
    )


def quantization_of(table: AnyTable) -> Quantization | None:
    """Return the quantization of a table's configuration; None if it has none."""
    given = getattr(table, "quantization_config", None)
    return None if given is None else Quantization(given.num_buckets, given.lower, given.upper)


def refuse_ignored_attributes(feature: AnyFeature) -> None:
    """Refuse attributes of a TensorFlow FeatureConfig, its table or its quantization that would be ignored.

    Raises:
      ConfigError (ValueError): an attribute that would be ignored is set.
    """
    if not isinstance(feature, tpu.FeatureConfig):
        return
    refuse_unknown("FeatureConfig", feature, f"feature {feature.name!r}")
    table = feature.table
    refuse_unknown("TableConfig", table, f"table {table.name!r}")
    if table.quantization_config is not None:
        refuse_unknown("QuantizationConfig", table.quantization_config, f"table {table.name!r}")
