"""Trains tables on this process' own device by the TPU's rules: by default touched rows only, each once per step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.engine import Engine, Lookup, ReplicaValue
from embedding_core.engines.hardware_configs import refuse_ignored
from embedding_core.engines.table_updates import apply_to_table
from embedding_core.engines.tables import (
    ITERATIONS,
    Tables,
    Variables,
    device_variables,
    keyed_variables,
    new_iterations,
    step_rates,
)
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.feature_specs import AnyTable, FeatureSpec, Ids, Weights
from embedding_core.lookup import NormalForm, combine, kind_of, normal_form, row_gradients, with_valid_ids
from embedding_core.optimizers import Optimizer
from embedding_core.tracing import as_written
from embedding_core.translate import Model, model_of

RowGradients: TypeAlias = Mapping[str, tuple[tf.Tensor, tf.Tensor]]  # ids [N] and gradients [N, dim] by table


class HostEngine(Engine):
    """Tables in this process: looks up rows, and applies gradients by one of the five TPU optimizers.

    Works eagerly, inside tf.function and under a strategy whose replicas are all in this process: the replicas share
    one copy of each table. Only rows that a batch touched are read and written, except with Adam(lazy_adam=False),
    which moves all rows.

        engine = HostEngine(config, optimizer=Adagrad(learning_rate=0.05))
        with tf.GradientTape() as tape:
            activations = engine.lookup(ids)
            tape.watch(activations)
            loss = loss_of(model(activations))
        engine.apply_gradients(ids, tape.gradient(loss, activations))

    Attributes:
      tables: the trackable holder of the variables; its checkpoint keys are `<table>` and
        `<table>/<slot>`, as those of `tf.tpu.experimental.embedding.TPUEmbedding`.
    """

    def __init__(
        self,
        config: EmbeddingConfig | Model,
        *,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        with_slots: bool = True,
    ):
        """Create the tables and their slots.

        Args:
          config: tables and features. For a Model, which the layer passes, `build` creates the variables.
          optimizer: optimizer of the tables of an EmbeddingConfig that have none of their own.
          seed: seed of the initial rows: the same seed gives a table of the same name the same rows everywhere.
          with_slots: False leaves out the slots of an EmbeddingConfig, for lookups only.

        Raises:
          ConfigError: with `with_slots`, a table of an EmbeddingConfig has no optimizer and none was given; or an
            optimizer has an attribute set that would be ignored.
        """
        self.model = config if isinstance(config, Model) else _model_of(config, optimizer, with_slots)
        refuse_ignored(self.model, "engine")
        self.tables = Tables()
        self._seed = seed
        self._variables: Variables = {}
        self._iterations: tf.Variable | None = None
        if isinstance(config, EmbeddingConfig):
            self.build()

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; shapes are not needed."""
        if self._variables:
            return
        with tf.init_scope():
            self._iterations = new_iterations([table.optimizer for table in self.model.tables])
            if self._iterations is not None:
                self.tables._add(ITERATIONS, self._iterations)
            self._variables = device_variables(self.model.tables, self._seed, hosts=1)
        for key, variable in self.table_variables.items():
            self.tables._add(key, variable)

    @property
    def table_variables(self) -> dict[str, tf.Variable]:
        """Tables and slots, float32 [rows, dim], by `<table>` and `<table>/<slot>`; empty before `build`."""
        return keyed_variables(self.model.tables, self._variables)

    @property
    def embedding_tables(self) -> dict[str, tf.Variable]:
        """The float32 [rows, dim] variable of each table, by name."""
        return {name: own["parameters"] for name, own in self._variables.items()}

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the tables by the caller's TableConfig; create them if needed."""
        self.build()
        return {table.key: self._variables[table.name]["parameters"] for table in self.model.tables}

    @as_written
    def lookup(self, ids: Mapping[str, Ids], weights: Mapping[str, Weights] | None = None) -> dict[str, tf.Tensor]:
        """Return the activations of the features given, by name.

        Args:
          ids: by feature name: dense [B] or [B, 1], sparse or ragged integer ids. Features may be left out.
          weights: by feature name, with the kind and indices of the ids; features may be left out.

        Returns:
          float32 [B, dim] per feature, or [B, max_sequence_length, dim] for a sequence.

        Raises:
          DataError (ValueError): an unknown feature, or a kind of input that its feature cannot have.
          tf.errors.InvalidArgumentError: an id is outside its table, or a weight is not finite.
        """
        features, values, flat_weights = self._given(ids, weights)
        activations = self._look_up(features, values, flat_weights).activations()
        return {feature.path: values for feature, values in zip(features, activations, strict=True)}

    @as_written
    def apply_gradients(
        self,
        ids: Mapping[str, Ids],
        gradients: Mapping[str, tf.Tensor | None],
        weights: Mapping[str, Weights] | None = None,
    ) -> None:
        """Take one optimizer step: every row that `ids` name is updated once with its accumulated gradient.

        Args:
          ids: as given to `lookup`.
          gradients: gradients of the activations, by feature name, in their shapes; None counts as zeros.
          weights: as given to `lookup`.

        Raises:
          EngineError (RuntimeError): a table has no optimizer.
          DataError (ValueError): features of `ids` and `gradients` differ, or a gradient has another shape.
          tf.errors.InvalidArgumentError: an id is outside its table, or a weight is not finite; no table or slot
            was changed.
        """
        if set(ids) != set(gradients):
            raise DataError(
                f"gradients are given for {sorted(gradients)}, ids for {sorted(ids)}: both must name the same features."
            )
        features, values, flat_weights = self._given(ids, weights)
        forms = normal_forms(features, self.embedding_tables, values, flat_weights, checked=True)
        self._train(features, forms, [gradients[feature.path] for feature in features])

    def _given(
        self, ids: Mapping[str, Ids], weights: Mapping[str, Weights] | None
    ) -> tuple[list[FeatureSpec], list[Ids], list[Weights]]:
        """Return the features that ids are given for, with their ids and weights."""
        weights = weights or {}
        known = {feature.path: feature for feature in self.model.features}
        unknown = sorted({*ids, *weights} - set(known))
        if unknown:
            raise DataError(f"unknown feature {unknown[0]!r}; known features: {sorted(known)}.")
        features = [feature for name, feature in known.items() if name in ids]
        values = [ids[feature.path] for feature in features]
        return features, values, [weights.get(feature.path) for feature in features]

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        return self._look_up(self.model.features, values, weights)

    def _look_up(self, features: Sequence[FeatureSpec], values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        tables = self.embedding_tables
        forms = normal_forms(features, tables, values, weights)
        return Lookup(
            lambda: look_up_forms(features, tables, forms, values),
            lambda gradients: self._train(features, forms, gradients),
        )

    def _train(
        self, features: Sequence[FeatureSpec], forms: Sequence[NormalForm], gradients: Sequence[tf.Tensor | None]
    ) -> None:
        for table in self.model.tables:
            if table.optimizer is None:
                raise EngineError(
                    f"table {table.name!r} has no optimizer, so it cannot be trained: give the table or its layer one, "
                    "and make a HostEngine that is to be trained without with_slots=False."
                )
        occurrences = list(zip(features, forms, gradients, strict=True))
        parts = {
            table: _row_gradients([occurrence for occurrence in occurrences if occurrence[0].table == table])
            for table in dict.fromkeys(feature.table for feature in features)
        }
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            self._apply([parts])
            return
        context.merge_call(
            lambda strategy, replicas: self._apply(_of_all_replicas(strategy, replicas)),
            args=(ReplicaValue(parts),),
        )

    def _apply(self, replicas: Sequence[RowGradients]) -> None:
        optimizers = [table.optimizer for table in self.model.tables if table.optimizer is not None]
        rates = step_rates(optimizers, self._iterations)
        for table, optimizer, rate in zip(self.model.tables, optimizers, rates, strict=True):
            if table.name not in replicas[0]:
                continue
            ids, gradients = (_joined([parts[table.name][turn] for parts in replicas]) for turn in range(2))
            own = self._variables[table.name]
            with tf.device(own["parameters"].device):
                slots = [own[slot.name] for slot in optimizer.slots]
                apply_to_table(optimizer, own["parameters"], slots, ids, gradients, rate)
        if self._iterations is not None:
            self._iterations.assign_add(1)


def _model_of(config: EmbeddingConfig, optimizer: Optimizer | None, with_slots: bool) -> Model:
    """Return the model of a configuration, with an optimizer in every table, or in none."""
    if not with_slots:
        model = model_of(config, None, needs_optimizer=False)
        tables = (dataclasses.replace(table, optimizer=None) for table in model.tables)
        return dataclasses.replace(model, tables=tuple(tables))
    for table in config.tables:
        if table.optimizer is None and optimizer is None:
            raise ConfigError(
                f"`optimizer` of table {table.name!r} is None: give the table one, give the engine one for all, or "
                "make the engine with with_slots=False."
            )
    return model_of(config, optimizer, needs_optimizer=True)


def _row_gradients(
    occurrences: Sequence[tuple[FeatureSpec, NormalForm, tf.Tensor | None]],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the ids of a table's features, and the gradients of their rows, in this replica."""
    ids = [form.ids for _, form, _ in occurrences]
    gradients = [_gradient_of(*occurrence) for occurrence in occurrences]
    return _joined([tf.cast(values, tf.int64) for values in ids]) if len(ids) > 1 else ids[0], _joined(gradients)


def _gradient_of(feature: FeatureSpec, form: NormalForm, gradient: tf.Tensor | None) -> tf.Tensor:
    if gradient is None:
        return tf.zeros([tf.size(form.ids), feature.dim])
    gradient = tf.convert_to_tensor(gradient)
    if gradient.shape.rank is None or gradient.shape[-1] != feature.dim:
        raise DataError(
            f"Found gradient of shape {gradient.shape} for feature {feature.path!r}: its last dimension must be "
            f"{feature.dim}."
        )
    return row_gradients(form, feature.combiner, gradient)


def _of_all_replicas(strategy: tf.distribute.Strategy, replicas: ReplicaValue) -> list[RowGradients]:
    """Return the gradients of all replicas; refuse replicas in other processes, which would train their own tables."""
    parts = [replica.value for replica in strategy.experimental_local_results(replicas)]
    if len(parts) != strategy.num_replicas_in_sync:
        raise EngineError(
            f"table_update='engine' under {type(strategy).__name__}, of which {len(parts)} of "
            f"{strategy.num_replicas_in_sync} replicas are in this process: each process would train tables of its "
            "own. Use table_update='keras', or one process."
        )
    return parts


def _joined(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.concat(values, 0)


# Looks up the features of a batch in tables of this process; errors name the feature whose id is invalid.


def normal_forms(
    features: Sequence[FeatureSpec],
    tables: Mapping[str, tf.Variable],
    values: Sequence[Ids],
    weights: Sequence[Weights],
    *,
    checked: bool = False,
) -> list[NormalForm]:
    """Return the normal form of each feature, after checking the weights of all features.

    Args:
      features: the features.
      tables: by name.
      values: ids of each feature; a scalar is one example.
      weights: weights of each feature, or None.
      checked: whether to check ids here too; needed for forms that are used without a lookup, which would check them.
    """
    forms = [
        _form(feature, tables[feature.table], value, weight, checked)
        for feature, value, weight in zip(features, values, weights, strict=True)
    ]
    parts = [form.weights for form in forms if form.weights is not None]
    if checked:
        parts += [form.ids for form in forms]
    if not parts:
        return forms
    with tf.control_dependencies(parts):  # if the ids or weights of one table are refused, no other table is trained
        return [dataclasses.replace(form, ids=tf.identity(form.ids)) for form in forms]


def _form(feature: FeatureSpec, table: tf.Variable, value: Ids, weight: Weights, checked: bool) -> NormalForm:
    form = normal_form(feature, tf.reshape(value, [1]) if _is_scalar(value) else value, weight)
    if feature.invalid_id == "error" and not checked and "GPU" not in table.device:  # on CPU the lookup itself fails
        return form
    return with_valid_ids(feature, form)


def _is_scalar(value: Ids) -> bool:
    return kind_of(value) == "dense" and value.shape.rank == 0


def look_up_forms(
    features: Sequence[FeatureSpec],
    tables: Mapping[str, tf.Variable],
    forms: Sequence[NormalForm],
    values: Sequence[Ids],
) -> list[tf.Tensor]:
    """Return the activations of each feature, float32 [*leading, dim]; [dim] for a scalar id.

    Raises:
      tf.errors.InvalidArgumentError: an id is outside its table.
    """
    activations = [
        _combined(tables[feature.table], form, feature) for feature, form in zip(features, forms, strict=True)
    ]
    return [tf.squeeze(rows, 0) if _is_scalar(value) else rows for rows, value in zip(activations, values, strict=True)]


def _combined(table: tf.Variable, form: NormalForm, feature: FeatureSpec) -> tf.Tensor:
    try:
        return combine(table, form, feature.combiner, feature.quantization, _operation(feature))
    except tf.errors.InvalidArgumentError as error:  # in eager mode; in a graph, the operation's name has the feature
        if "is not in [0," not in error.message:
            raise
        message = (
            f"An id of feature {feature.path!r} is outside table {feature.table!r}: correct the ids. {error.message}"
        )
        raise tf.errors.InvalidArgumentError(None, None, message) from error


def _operation(feature: FeatureSpec) -> str:
    """Return the name of the lookup's operation, which the message about an id outside the table contains."""
    letters = f"feature_{feature.path}_in_table_{feature.table}"
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in letters)
