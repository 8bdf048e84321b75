"""Reads feature configurations, TensorFlow's or this project's, into one `FeatureSpec` per feature."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.config import Combiner, EmbeddingConfig, FeatureConfig, InvalidId, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.structures import Nested, path_name, paths_of

# Declares for each attribute of TensorFlow's embedding configurations whether it is honoured or refused.
#
# An attribute that is refused must have its default. This also applies to attributes that are not declared here,
# because a newer TensorFlow added them.

Trainer: TypeAlias = Literal["engine", "V0", "V2"]

_V0 = "cores without an embedding engine (V0) are trained by a Keras optimizer, which would ignore it"
_V2 = "TensorFlow ignores it on this TPU (SparseCore, V2)"
_ENGINE = "an engine that trains the table makes the slots itself; a checkpoint may give them other values"


@dataclasses.dataclass(frozen=True)
class Attribute:
    """How one attribute is treated.

    Attributes:
      honoured: where its value takes effect, in words; "" if nowhere, so that every value but the default is refused.
      default: its default, which is never refused.
      ignored: by trainer, why the trainer would ignore any other value, which is therefore refused.
    """

    honoured: str
    default: Any = None
    ignored: Mapping[Trainer, str] = dataclasses.field(default_factory=dict)


_RULE = "the update rule of the optimizer"
_BY_BOTH: Mapping[Trainer, str] = {"V0": _V0, "V2": _V2}
_ALL_OPTIMIZERS = {
    "learning_rate": Attribute(_RULE),
    "use_gradient_accumulation": Attribute(_RULE, True, _BY_BOTH),
    "clip_weight_min": Attribute(_RULE, None, _BY_BOTH),
    "clip_weight_max": Attribute(_RULE, None, _BY_BOTH),
    "weight_decay_factor": Attribute(_RULE, None, _BY_BOTH),
    "multiply_weight_decay_factor_by_learning_rate": Attribute(f"{_RULE}; refused without weight_decay_factor"),
    "clipvalue": Attribute(_RULE, None, _BY_BOTH),
    "low_dimensional_packing_status": Attribute("a real TPU; refused if it would change numbers", False, {"V2": _V2}),
}
_WITH_SLOTS = _ALL_OPTIMIZERS | {
    "slot_variable_creation_fn": Attribute(
        "tables that a Keras optimizer trains, or nobody", None, {"engine": _ENGINE, "V2": _V2}
    ),
}
ATTRIBUTES: Mapping[str, Mapping[str, Attribute]] = {
    "FeatureConfig": {
        "table": Attribute("every lookup"),
        "max_sequence_length": Attribute("every lookup"),
        "validate_weights_and_indices": Attribute("every lookup: both values check ids and keep the batch", True),
        "output_shape": Attribute("every lookup"),
        "name": Attribute("the configuration of a real TPU; here a feature is named by its path"),
    },
    "TableConfig": {
        "vocabulary_size": Attribute("variables and lookups"),
        "dim": Attribute("variables and lookups"),
        "initializer": Attribute("first rows"),
        "optimizer": Attribute("training"),
        "combiner": Attribute("every lookup"),
        "name": Attribute("checkpoint keys"),
        "quantization_config": Attribute("every lookup"),
        "layout": Attribute(""),
    },
    "QuantizationConfig": {name: Attribute("every lookup") for name in ("num_buckets", "lower", "upper")},
    "SGD": _ALL_OPTIMIZERS,
    "Adagrad": _WITH_SLOTS | {"initial_accumulator_value": Attribute("first slots")},
    "AdagradMomentum": _WITH_SLOTS
    | {name: Attribute(_RULE) for name in ("momentum", "use_nesterov", "exponent", "beta2", "epsilon")},
    "Adam": _WITH_SLOTS
    | {name: Attribute(_RULE) for name in ("beta_1", "beta_2", "epsilon", "sum_inside_sqrt")}
    | {"lazy_adam": Attribute(_RULE, True, {"V2": _V2})},
    "FTRL": _WITH_SLOTS
    | {
        name: Attribute(_RULE)
        for name in (
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "beta",
            "multiply_linear_by_learning_rate",
            "allow_zero_accumulator",
        )
    }
    | {"initial_accumulator_value": Attribute("first slots")},
}


def ignored_by(trainer: Trainer, kind: str) -> dict[str, tuple[Any, str]]:
    """Return the attributes of a kind of optimizer that a trainer would ignore, each with its default and a reason."""
    attributes = ATTRIBUTES.get(kind, {})
    return {
        name: (attribute.default, attribute.ignored[trainer])
        for name, attribute in attributes.items()
        if trainer in attribute.ignored
    }


def refuse_unknown(kind: str, given: object, owner: str) -> None:
    """Refuse an object of TensorFlow that sets an attribute which takes effect nowhere.

    Args:
      kind: name of its class in TensorFlow, a key of `ATTRIBUTES`.
      given: the object.
      owner: what the object belongs to, for the message.

    Raises:
      ConfigError (ValueError): an attribute that takes effect nowhere is not at its default.
    """
    declared = ATTRIBUTES[kind]
    nowhere = {name: attribute.default for name, attribute in declared.items() if not attribute.honoured}
    cls: Any = type(given)
    newer = {name: default for name, default in _parameters(cls).items() if name not in declared}
    for name, default in (nowhere | newer).items():
        value = getattr(given, name, default)
        if value is not default and value != default:
            raise ConfigError(
                f"`{name}` of the {kind} of {owner} is {value!r}: it would be ignored here; leave it {default!r}."
            )


@functools.cache
def _parameters(cls: Any) -> dict[str, Any]:
    """Return the named arguments of a class, and their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    return {each.name: each.default for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}


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
