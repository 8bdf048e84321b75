"""Looks up, trains, configures and saves the tables of a Keras layer, whichever Keras it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.engine import Engine, Gradients, Lookup, Tables
from embedding_core.engines.feeding import configured_shapes, merged_shapes, output_shapes
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.feature_specs import AnyTable, FeatureConfigs, Ids, Weights
from embedding_core.layer.engine_choice import is_exported, new_engine, on_tpu
from embedding_core.layer.keras_files import Store, read_tables, refuse_other_keys, write_tables
from embedding_core.layer.keras_package import Keras, LossScale, LossScaler, followed
from embedding_core.layer.layer_configs import (
    Json,
    LayerConfig,
    config_from_json,
    config_to_json,
    flat_inputs,
    flat_shapes,
    layer_config,
)
from embedding_core.layer.virtual_variable import with_table_updates
from embedding_core.lookup import cpu_embedding_lookup, kind_of, normal_form
from embedding_core.rooms import MISSING, hooks, room_of
from embedding_core.structures import Nested
from embedding_core.tracing import as_written
from embedding_core.translate import GivenOptimizer, Model

# Answers the calls in which Keras only infers shapes for functional models, without looking up anything.


def in_scratch_graph() -> bool:
    """Return whether the graph has a name that Keras gives to graphs that never run, in which it builds models."""
    if tf.executing_eagerly():
        return False
    name = str(getattr(tf.compat.v1.get_default_graph(), "name", ""))
    return "scratch_graph" in name or name == "build_graph"


def placeholders(
    model: Model, values: Sequence[Ids], weights: Sequence[Weights], *, kinds_known: bool
) -> list[tf.Tensor]:
    """Return placeholders in the shapes of the activations.

    Args:
      model: the features.
      values: placeholders of their inputs, flat.
      weights: placeholders or None, flat.
      kinds_known: whether a dense placeholder of rank 2 and more cannot be one of sparse or ragged ids.

    Raises:
      DataError (ValueError): a kind, type, rank or weight that a step would refuse.
    """
    for feature, value, weight in zip(model.features, values, weights, strict=True):
        kind = kind_of(value)
        known = 1 if kind == "dense" else 2  # Input(shape=(), sparse=True) has rank 1 and means rank 2
        if kind == "dense" and not kinds_known and (value.shape.rank or 0) > 1:
            continue
        if not kind or (value.shape.rank or 0) >= known:
            normal_form(dataclasses.replace(feature, output_shape=None), value, weight, weighted_sequences=True)
    shapes = output_shapes([value.shape for value in values], model.features)
    merged = merged_shapes(configured_shapes(model.features), shapes)
    return [
        tf.compat.v1.placeholder(tf.float32, [*shape, feature.dim])
        for shape, feature in zip(merged, model.features, strict=True)
    ]


# Looks up and trains tables.

_Layer = TypeVar("_Layer", bound="TableLayer")


@dataclasses.dataclass
class State:
    """Attributes of the layer that Keras must neither track nor wrap."""

    config: LayerConfig
    arguments: Json
    engine: Engine
    strategy: tf.distribute.Strategy
    loss_scale: LossScale
    helper: Any = None  # the virtual variable, if Keras must not track it
    symbolic: bool = False
    kinds_known: bool = True


class TableLayer:
    """What the layers of tf_keras and Keras 3 share; a class derives from this and then from its Keras' `Layer`.

    Attributes:
      keras: the package of Keras.
    """

    keras: ClassVar[Keras]
    name: str
    trainable: bool
    compute_dtype: str
    weights: list[Any]

    def __init__(
        self,
        feature_config: FeatureConfigs,
        optimizer: GivenOptimizer,
        pipeline_execution_with_tensor_core: bool = False,
        batch_size: int | None = None,
        embedding_feature: Any = None,
        *,
        table_update: Literal["keras", "engine"] = "keras",
        seed: int = 0,
        **arguments: Any,
    ):
        """Read the configuration; variables are created by `build`, or by the first call.

        Args:
          feature_config: a structure of `tf.tpu.experimental.embedding.FeatureConfig`, or an EmbeddingConfig.
          optimizer: optimizer of the tables that have none of their own: "sgd", "adagrad", "adam", "ftrl", one of
            tf_keras (legacy or new), of `tf.tpu.experimental.embedding` or `embedding_core`; off a TPU, None leaves out
            the slots.
          pipeline_execution_with_tensor_core: whether activations on a TPU may be one step old.
          batch_size: rows per replica, for a TPU if the inputs have unknown shapes; SparseCores need it when the layer
            is created, unless every feature has an output shape.
          embedding_feature: on a TPU, HardwareFeature.EmbeddingFeature.UNSUPPORTED keeps whole tables on every core.
          table_update: what trains the tables off a TPU; see the class.
          seed: seed of the initial rows: the same seed gives a table of the same name the same rows everywhere.
          **arguments: arguments of any Keras layer: name, dtype, trainable; and arguments of engines of optional rooms,
            which other engines ignore, such as `sparse_core_embedding_config`.

        Raises:
          ConfigError (ValueError): an unsupported optimizer or hyperparameter, two tables with one name, or an invalid
            `table_update` or `batch_size`.
        """
        of_engines = {name: arguments.pop(name, None) for name in _of_rooms()}
        of_engines = {
            name: None if value is None else _of_rooms()[name].of(value) for name, value in of_engines.items()
        }
        for name in arguments:
            room = room_of(name)
            if room is not None:
                raise ConfigError(f"`{name}` is given: {MISSING.format(room)}")
        super().__init__(autocast=False, **arguments)  # type: ignore[call-arg]  # of Keras
        if table_update not in ("keras", "engine"):
            raise ConfigError(f"`table_update` is {table_update!r}: it must be 'keras' or 'engine'.")
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise ConfigError(
                f"`batch_size` is {batch_size!r}: it must be a whole number >= 1, of one replica, or None."
            )
        strategy = tf.distribute.get_strategy()
        config = layer_config(self.keras, feature_config, optimizer, needs_optimizer=on_tpu(strategy))
        given = {
            "optimizer": optimizer,
            "pipeline_execution_with_tensor_core": pipeline_execution_with_tensor_core,
            "batch_size": batch_size,
            "embedding_feature": embedding_feature,
            "table_update": table_update,
            "seed": seed,
            **of_engines,
        }
        engine = new_engine(strategy, config, given, self._new_tables)
        self._state = State(config, given, engine, strategy, LossScale(self.keras))
        self._tpu_embedding = self._state.engine.tables

    def _new_tables(self, model: Model, seed: int) -> Engine:
        """Return the engine of tables that are trainable variables of this Keras."""
        raise NotImplementedError

    def _build_engine(self, input_shape: Nested) -> Engine:
        """Create the tables; `input_shape` as in `build`."""
        engine = self._state.engine
        engine.build(flat_shapes(self._model.structure, input_shape), self._state.arguments["batch_size"])
        return engine

    @property
    def _model(self) -> Model:
        return self._state.config.model

    def call(self, features: Nested, weights: Nested = None, serving_config: FeatureConfigs = None) -> Nested:
        """Look up the rows of features and combine them.

        Args:
          features: dense, sparse or ragged integer ids, in the structure of `feature_config`; with
            `serving_config`, in its structure.
          weights: None, or a structure like `features` with weights (sparse or ragged) or None for each feature.
          serving_config: a structure of FeatureConfig with this layer's tables; if given, the lookup follows it instead
            of `feature_config`, and runs on CPU.

        Returns:
          Activations, in the structure of `feature_config` (or of `serving_config`).

        Raises:
          DataError (ValueError): a feature is missing, unknown, or of an invalid kind, rank or weight; or a table of
            `serving_config` is not of this layer.
          EngineError (RuntimeError): the layer was created under a TPU's strategy and is called outside of it, or the
            other way around; or it is called inside control flow on a TPU.
          tf.errors.InvalidArgumentError: an id is outside its table, or in training a weight is not finite.
        """
        if serving_config is not None:
            return self._served(features, weights, serving_config)
        return self._looked_up(features, weights)

    @as_written
    def _looked_up(self, features: Nested, weights: Nested) -> Nested:
        values, flat_weights = flat_inputs(self._model, features, weights)
        if self._state.symbolic:
            return self._packed(placeholders(self._model, values, flat_weights, kinds_known=self._state.kinds_known))
        if is_exported(self._state.strategy):
            feature_config = self._state.config.feature_config
            served = cpu_embedding_lookup(features, weights, self.embedding_tables, feature_config)
            return self._packed(tf.nest.flatten(served))
        return self._packed(self._trained(self._state.engine.look_up(values, flat_weights)))

    def _packed(self, activations: Sequence[tf.Tensor]) -> Nested:
        cast = [tf.cast(values, self.compute_dtype) for values in activations]
        return tf.nest.pack_sequence_as(self._model.structure, cast)

    def _trained(self, lookup: Lookup) -> list[tf.Tensor]:
        """Return the activations of a lookup; if the engine trains the tables, their gradients update the tables."""
        train = lookup.update
        if train is None or not self.trainable:  # every tape.gradient through `with_table_updates` would train
            return lookup.activations()

        def update(gradients: Gradients) -> None:
            train(self._state.loss_scale.unscaled(gradients, self.name, self.compute_dtype))

        return with_table_updates(self._helper(), lookup.activations, update, self.name)

    def _helper(self) -> tf.Variable:
        """Return the virtual variable."""
        raise NotImplementedError

    @property
    def loss_scale_optimizer(self) -> LossScaler:
        """The LossScaleOptimizer that scales the loss, or None.

        Set this in a custom training loop that scales its loss if the layer trains its tables, because a gradient does
        not show that it is scaled. Under the policy 'mixed_float16', set None if the loss is not scaled. `model.fit`
        and `LossScaleOptimizer.minimize` do not need it.
        """
        return self._state.loss_scale.optimizer

    @loss_scale_optimizer.setter
    def loss_scale_optimizer(self, optimizer: GivenOptimizer) -> None:
        self._state.loss_scale.name(optimizer)

    def __dir__(self) -> list[str]:
        """Leave out optimizers: Keras' files hold what `dir` names, once, and would hold the model's optimizer here."""
        return [name for name in super().__dir__() if name not in ("keras_optimizer", "loss_scale_optimizer")]

    @property
    def keras_optimizer(self) -> GivenOptimizer:
        """The Keras optimizer whose learning rate and iterations the tables follow, or None.

        A layer that was made by `from_config`, as `load_model` and `clone_model` do, has a copy of the optimizer, which
        no training loop steps. If such a layer trains its tables itself, replace the copy before training:
        `layer.keras_optimizer = model.optimizer`. The hyperparameters must be those of the configuration.
        """
        rate = followed(self._state.config.optimizer)
        return None if rate is None else rate.optimizer

    @keras_optimizer.setter
    def keras_optimizer(self, optimizer: GivenOptimizer) -> None:
        rate = followed(self._state.config.optimizer)
        if rate is None:
            raise ConfigError(
                f"`optimizer` of layer {self.name!r} is not a Keras optimizer, so the tables do not follow one."
            )
        rate.follow(self._state.config.optimizer, optimizer)

    @as_written
    def _served(self, features: Nested, weights: Nested, serving_config: FeatureConfigs) -> Nested:
        tables = self.embedding_tables
        if not isinstance(serving_config, EmbeddingConfig):
            for feature in tf.nest.flatten(serving_config):
                if not any(feature.table is key for key in tables):
                    raise DataError(
                        f"TableConfig {feature.table} does not match any of the TableConfigs used to configure this "
                        "layer: use the same objects."
                    )
        return cpu_embedding_lookup(features, weights, tables, serving_config)

    @property
    def embedding_tables(self) -> dict[AnyTable, tf.Variable]:
        """The float32 [rows, dim] tables by the caller's TableConfig.

        Raises:
          EngineError (RuntimeError): the tables are in a TPU's memory; they can be read only while a function is traced
            outside of the strategy, as for an export.
        """
        return self._state.engine.tables_by_config()

    @property
    def table_variables(self) -> Mapping[str, tf.Variable]:
        """The tables and slots that the layer trains itself, float32 [rows, dim], by `<table>` and `<table>/<slot>`.

        Empty before `build`, if Keras trains the tables, and if they are in a real TPU's memory.
        """
        return self._state.engine.table_variables

    @property
    def table_blocks(self) -> Mapping[str, Sequence[tf.Variable]]:
        """The tables and slots in blocks of consecutive rows, by the same names; empty if no table is partitioned."""
        return self._state.engine.table_blocks

    @property
    def table_holder(self) -> Tables:
        """The trackable that checkpoints the tables as `<table>`, and the layer's slots as `<table>/<slot>`."""
        return self._state.engine.tables

    def update_embedding_table(self, table: AnyTable, embedding_table: tf.Tensor) -> None:
        """Overwrite the rows of a table; its slots do not change.

        Args:
          table: the TableConfig that the layer was configured with.
          embedding_table: a variable, tensor or array [rows, dim].

        Raises:
          DataError (ValueError): the table is not of this layer, or `embedding_table` has another shape.
          EngineError (RuntimeError): the tables are in a real TPU's memory, on parameter servers, or not built yet.
        """
        names = [spec.name for spec in self._model.tables if spec.key is table]
        if not names:
            raise DataError(f"{table} is not a TableConfig that this layer was configured with: use the same object.")
        variable = self._own_variable(names[0], table)
        rows = tf.cast(tf.convert_to_tensor(embedding_table), variable.dtype)
        if rows.shape != variable.shape:
            raise DataError(f"`embedding_table` has shape {rows.shape}: table {names[0]!r} is {variable.shape}.")
        variable.assign(rows)

    def _own_variable(self, name: str, table: AnyTable) -> tf.Variable:
        engine = self._state.engine
        if not engine.trains_itself:
            return engine.tables_by_config()[table]
        if not engine.on_tpu:
            engine.build()
        variable = engine.table_variables.get(name)
        if variable is None:
            raise EngineError(
                f"Table {name!r} cannot be written: it is in a TPU's memory or on parameter servers, or the layer is "
                "not built. Build the layer, or restore a checkpoint that holds the rows."
            )
        return variable

    def get_config(self) -> Json:
        """Return the arguments as a JSON object, from which `from_config` makes an equal layer.

        Raises:
          ConfigError (ValueError): JSON cannot hold an argument, such as a learning rate or initializer that is a
            function.
        """
        given = dict(self._state.arguments)
        feature = given["embedding_feature"]
        given["embedding_feature"] = None if feature is None else feature.name
        for name in _of_rooms():
            given[name] = None if given[name] is None else given[name].to_mapping()
        config = config_to_json(self.keras, self._state.config.feature_config, given.pop("optimizer"))
        base: Json = super().get_config()  # type: ignore[misc]  # of Keras
        base.pop("autocast", None)
        return {**base, **given, "config": config}

    @classmethod
    def from_config(cls: type[_Layer], config: Json) -> _Layer:
        """Return the layer that `get_config` describes."""
        config = {name: value for name, value in config.items() if value is not None}
        feature_config, optimizer = config_from_json(cls.keras, config.pop("config"))
        feature = config.pop("embedding_feature", None)
        if feature is not None:
            feature = tf.tpu.experimental.HardwareFeature.EmbeddingFeature[feature]
        given = {name: kind.from_mapping(config.pop(name)) for name, kind in _of_rooms().items() if name in config}
        return cls(feature_config, optimizer, embedding_feature=feature, **given, **config)

    def save_own_variables(self, store: Store) -> None:
        """Write the weights, or the tables and slots of an engine, to a file in one of Keras' own formats."""
        if self._state.engine.trains_itself:
            write_tables(self._state.engine, store, self.name)
        else:
            super().save_own_variables(store)  # type: ignore[misc]  # of Keras

    def load_own_variables(self, store: Store) -> None:
        """Read what `save_own_variables` wrote.

        Raises:
          CheckpointError (RuntimeError): tables or slots are missing, unknown or of another shape, or the file was
            written by a layer whose tables were trained in another way.
        """
        if self._state.engine.trains_itself:
            read_tables(self._state.engine, self._model, store, self.name)
            return
        refuse_other_keys(self.name, {str(place) for place in range(len(self.weights))}, set(store.keys()))
        super().load_own_variables(store)  # type: ignore[misc]  # of Keras


def _of_rooms() -> dict[str, Any]:
    """Return the classes of the arguments that engines of optional rooms take, by name.

    A class has the methods `of`, which reads what a caller gives, `to_mapping` and `from_mapping`.
    """
    rooms = hooks("embedding_core", "layer_arguments")
    return {name: kind for room in rooms for name, kind in room.ARGUMENTS.items()}
