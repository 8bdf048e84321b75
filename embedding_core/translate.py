"""Translates TensorFlow's configurations of tables, features and optimizers to this project's, and back.

Whatever in TensorFlow's configurations cannot be translated without a change of meaning raises an error that names it.
The caller's objects are never changed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args

import tensorflow as tf

from embedding_core import config as core
from embedding_core.config import EmbeddingConfig, InitializerConfig
from embedding_core.errors import ConfigError
from embedding_core.feature_specs import (
    AnyTable,
    FeatureConfigs,
    FeatureSpec,
    Quantization,
    feature_spec,
    quantization_of,
    refuse_ignored_attributes,
    refuse_unknown,
)
from embedding_core.optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam, Optimizer
from embedding_core.structures import Nested, path_name, paths_of

tpu = tf.tpu.experimental.embedding

GivenOptimizer: TypeAlias = (
    Any  # of this project, of `tf.tpu.experimental.embedding` or of Keras; None for no optimizer
)


class OptimizerKind(NamedTuple):
    """An optimizer of tables, and the corresponding classes of TensorFlow and Keras.

    Attributes:
      ours: the class in `embedding_core`.
      tensorflow: the class in `tf.tpu.experimental.embedding`, with the same hyperparameters.
      keras: name of the classes in `tf_keras.optimizers` and `tf_keras.optimizers.legacy`, or None.
      passed: hyperparameters, besides the learning rate, that Keras' classes have by the same name and that are passed
        on from or to Keras; with Keras, all others must keep their defaults.
      slots: slot names of the class in `tf_keras.optimizers.legacy`, by this project's slot names.
    """

    ours: type[Optimizer]
    tensorflow: Any
    keras: str | None = None
    passed: tuple[str, ...] = ()
    slots: Mapping[str, str] = MappingProxyType({})


OPTIMIZERS = (
    OptimizerKind(SGD, tpu.SGD, "SGD"),
    OptimizerKind(
        Adagrad,
        tpu.Adagrad,
        "Adagrad",
        ("initial_accumulator_value",),
        MappingProxyType({"accumulators": "accumulator"}),
    ),
    OptimizerKind(AdagradMomentum, tpu.AdagradMomentum),
    OptimizerKind(
        Adam,
        tpu.Adam,
        "Adam",
        ("beta_1", "beta_2", "epsilon"),
        MappingProxyType({"momenta": "m", "velocities": "v"}),
    ),
    OptimizerKind(
        FTRL,
        tpu.FTRL,
        "Ftrl",
        (
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "beta",
            "initial_accumulator_value",
        ),
        MappingProxyType({"accumulators": "accumulator", "linears": "linear"}),
    ),
)


class KerasSlots:
    """A `slot_variable_creation_fn`: creates a table's slots in a Keras optimizer, with the TPU's initial values.

    Args:
      optimizer: optimizer of tf_keras.optimizers.legacy.
      names: its slot names, by those of the TPU's optimizer.
    """

    def __init__(self, optimizer: GivenOptimizer, names: Mapping[str, str]):
        self._optimizer = optimizer
        self._names = names

    def __call__(self, table: tf.Variable, slot_names: Sequence[str], initializers: Sequence[Any]) -> dict[str, Any]:
        """Make the slots, and return them by the slot names of the TPU's optimizer."""
        return {
            slot: self._optimizer.add_slot(table, self._names[slot], initializer)
            for slot, initializer in zip(slot_names, initializers, strict=True)
        }


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """One table, configured with the TableConfig of this project or of TensorFlow.

    Attributes:
      name: checkpoint key of the table.
      rows, dim: its shape.
      combiner: "mean", "sum" or "sqrtn".
      optimizer: this project's, or None for a table without slots.
      initializer: this project's, or the caller's callable of a shape and dtype.
      quantization: quantization of its rows in lookups, or None.
      key: the caller's configuration object.
      slot_creator: the optimizer's `slot_variable_creation_fn`, or None.
      packed: whether the optimizer has `low_dimensional_packing_status`.
    """

    name: str
    rows: int
    dim: int
    combiner: core.Combiner
    optimizer: Optimizer | None
    initializer: InitializerConfig | Callable[..., Any]
    quantization: Quantization | None
    key: AnyTable
    slot_creator: Callable[..., Any] | None = None
    packed: bool = False


@dataclasses.dataclass(frozen=True)
class Model:
    """The tables and features of a structure of configurations.

    Attributes:
      structure: the nested feature configurations; inputs and outputs are nested alike.
      tables: in the order of their first use.
      features: in the order of tf.nest.flatten; `FeatureSpec.table` is the table's name.
    """

    structure: Nested
    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]

    def features_of(self, table: str) -> list[int]:
        """Return the positions of a table's features in `features`."""
        return [place for place, feature in enumerate(self.features) if feature.table == table]


def optimizer_to_core(optimizer: GivenOptimizer) -> Optimizer:
    """Convert an optimizer of `tf.tpu.experimental.embedding` to this project's; return one of this project unchanged.

    Raises:
      ConfigError (ValueError): another class, or a hyperparameter out of range.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    for kind in OPTIMIZERS:
        if type(optimizer) is kind.tensorflow:  # not a subclass, which may compute something else
            refuse_unknown(kind.ours.__name__, optimizer, "a table")
            fields = set(kind.ours.hyperparameters()) - {"clipvalue"}
            values = {name: getattr(optimizer, name) for name in fields}
            low, high = optimizer.clip_gradient_min, optimizer.clip_gradient_max
            return kind.ours(**values, clipvalue=None if low is None and high is None else (low, high))
    raise ConfigError(
        f"{type(optimizer)} is an unsupported optimizer class. Please pass an instance of one of the optimizer classes "
        "under tf.tpu.experimental.embedding, or of embedding_core, and not of a subclass."
    )


def optimizer_to_tensorflow(optimizer: Optimizer) -> GivenOptimizer:
    """Return the optimizer of `tf.tpu.experimental.embedding` with the same hyperparameters."""
    values = {name: getattr(optimizer, name) for name in optimizer.hyperparameters()}
    return kind_of_optimizer(optimizer).tensorflow(**values)


def kind_of_optimizer(optimizer: Optimizer) -> OptimizerKind:
    """Return the entry of `OPTIMIZERS` for an optimizer of this project.

    Raises:
      ConfigError (ValueError): its class has no entry.
    """
    for kind in OPTIMIZERS:
        if type(optimizer) is kind.ours:
            return kind
    raise ConfigError(f"{optimizer!r} has no namesake under tf.tpu.experimental.embedding.")


def config_to_tensorflow(config: EmbeddingConfig) -> dict[str, Any]:
    """Convert an EmbeddingConfig to TensorFlow's feature configurations, by feature name.

    TensorFlow's have no place for vocabularies, columns and what happens to invalid ids; these are left out.
    """
    tables = {table.name: _table_to_tensorflow(table) for table in config.tables}
    return {
        feature.name: tpu.FeatureConfig(
            tables[feature.table], max_sequence_length=feature.max_sequence_length, name=feature.name
        )
        for feature in config.features
    }


def _table_to_tensorflow(table: core.TableConfig) -> Any:
    optimizer = None if table.optimizer is None else optimizer_to_tensorflow(table.optimizer)
    return tpu.TableConfig(
        table.vocabulary_size,
        table.dim,
        _initializer_to_tensorflow(table.initializer, table.dim),
        optimizer,
        table.combiner,
        table.name,
    )


def _initializer_to_tensorflow(initializer: InitializerConfig, dim: int) -> Any:
    """Make a Keras initializer of the same distribution; it draws other values than this project's engines."""
    scale = 1.0 / math.sqrt(dim) if initializer.scale is None else initializer.scale
    if initializer.name == "constant":
        return tf.constant_initializer(scale)
    if initializer.name == "uniform":
        return tf.random_uniform_initializer(-scale, scale)
    return tf.initializers.TruncatedNormal(0.0, scale)


def initializer_to_core(initializer: Any, dim: int) -> Any:
    """Convert an initializer to this project's if there is an equivalent one, else return it unchanged.

    Only classes of TensorFlow and Keras are recognised, not a user's class of the same name. A seeded initializer is
    returned unchanged. An unseeded one is replaced by this project's, which computes a row from the engine's seed, the
    table and the row's number. `dim` is the length of a row, by which the default scale is recognised.
    """
    kind = _known_initializers(*(name for name in ("tf_keras", "keras") if name in sys.modules)).get(type(initializer))
    fields = initializer.get_config() if kind else {}
    if kind in ("zeros", "ones"):
        return InitializerConfig(name="constant", scale=float(kind == "ones"))
    if fields.get("seed") is not None:
        return initializer
    if kind == "truncated_normal" and fields["mean"] == 0.0 and _is_scale(fields["stddev"]):
        default = math.isclose(fields["stddev"], 1.0 / math.sqrt(dim))
        return InitializerConfig(scale=None if default else fields["stddev"])
    if kind == "random_uniform" and _is_scale(fields["maxval"]) and fields["minval"] == -fields["maxval"]:
        return InitializerConfig(name="uniform", scale=fields["maxval"])
    return initializer


def _is_scale(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


@functools.cache
def _known_initializers(*loaded: str) -> Mapping[type, str]:
    """Map the classes of TensorFlow and of loaded packages of Keras to the initializers that this project can express.

    A package that is not loaded has no objects, and loading it takes seconds.
    """
    packages = [getattr(sys.modules[name], "initializers", None) for name in loaded]
    initializers: dict[type, str] = {type(tpu.TableConfig(1, 1, name="t").initializer): "truncated_normal"}
    for kind in ("zeros", "ones", "random_uniform", "truncated_normal"):
        name = f"{kind}_initializer"
        classes = [getattr(module, name, None) for module in (tf, tf.compat.v1)]
        camel = kind.title().replace("_", "")
        classes += [getattr(module, camel, None) for module in (tf.initializers, *packages)]
        initializers |= {cls: kind for cls in classes if cls is not None}
    return initializers


def model_of(feature_config: FeatureConfigs, optimizer: GivenOptimizer, *, needs_optimizer: bool) -> Model:
    """Convert a structure of feature configurations to a `Model`.

    Args:
      feature_config: an EmbeddingConfig, or a structure of `tf.tpu.experimental.embedding.FeatureConfig`.
      optimizer: optimizer of the tables whose configuration has none; of this project or of TensorFlow.
      needs_optimizer: whether a table without an optimizer is an error.

    Raises:
      ConfigError (ValueError): two tables have the same name, a table has the name of another's slot, or a combiner or
        optimizer is unsupported.
    """
    if isinstance(feature_config, EmbeddingConfig):
        leaves: list[Any] = list(feature_config.features)
        structure: Nested = {feature.name: feature for feature in leaves}
        leaves = [structure[name] for name in sorted(structure)]
        keys = [feature_config.table(feature.table) for feature in leaves]
    else:
        structure = feature_config
        leaves = tf.nest.flatten(feature_config)
        keys = [feature.table for feature in leaves]
        for leaf in leaves:
            refuse_ignored_attributes(leaf)
    distinct = [key for place, key in enumerate(keys) if not any(key is other for other in keys[:place])]
    tables = tuple(_table(place, key, optimizer, needs_optimizer) for place, key in enumerate(distinct))
    _check_names(tables)
    spec_of = {id(key): table for key, table in zip(distinct, tables, strict=True)}
    features = []
    for path, leaf, key in zip(paths_of(structure), leaves, keys, strict=True):
        table = spec_of[id(key)]
        features.append(feature_spec(path_name(path), leaf, table.name, table, table.rows, table.quantization))
    return Model(structure, tables, tuple(features))


def _check_names(tables: tuple[TableSpec, ...]) -> None:
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Tables must have a unique name. Multiple tables with name {name} found. Features share a table by "
                "sharing one TableConfig object."
            )
    for table in tables:
        for slot in table.optimizer.slots if table.optimizer is not None else ():
            if f"{table.name}/{slot.name}" in names:
                raise ConfigError(
                    f"A table has the name '{table.name}/{slot.name}', which in checkpoints is the slot {slot.name!r} "
                    f"of table {table.name!r}: give it another name."
                )


def _table(place: int, key: AnyTable, optimizer: GivenOptimizer, needs_optimizer: bool) -> TableSpec:
    if key.combiner not in get_args(core.Combiner):
        raise ConfigError(
            f"`combiner` of table {key.name!r} is {key.combiner!r}: it must be one of {get_args(core.Combiner)}; a "
            "CustomCombiner of TensorFlow 2.20 and later runs on SparseCores only, without this project's classes."
        )
    chosen = key.optimizer if key.optimizer is not None else optimizer
    initializer = key.initializer
    if not isinstance(initializer, InitializerConfig):
        initializer = initializer_to_core(initializer, key.dim)
    return TableSpec(
        name=f"table_{place}" if key.name is None else key.name,
        rows=key.vocabulary_size,
        dim=key.dim,
        combiner=key.combiner,
        optimizer=optimizer_to_core(chosen) if chosen is not None or needs_optimizer else None,
        initializer=initializer,
        quantization=quantization_of(key),
        key=key,
        slot_creator=getattr(chosen, "slot_variable_creation_fn", None),
        packed=bool(getattr(chosen, "low_dimensional_packing_status", False)),
    )
