"""The tables of a model on this process' own device, looked up and updated by the TPU's rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.engines.learning_rates import is_schedule, step_rates
from embedding_core.engines.table_updates import apply_to_table
from embedding_core.engines.tables import Tables, new_slots, new_table, unmirrored
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.features import FeatureSpec, NormalForm, normal_form, policed, specs_of
from embedding_core.lookup import combine, row_gradients
from embedding_core.optimizers import Optimizer
from embedding_core.tracing import as_written


class HostEngine:
    """Tables in this process: lookup, gradients to rows, and the five TPU optimizers.

    Works eagerly and inside tf.function. Only rows that a batch touched are read and written.

        engine = HostEngine(config, optimizer=Adagrad(learning_rate=0.05))
        with tf.GradientTape() as tape:
            activations = engine.lookup(ids)
            tape.watch(activations)
            loss = loss_of(model(activations))
        engine.apply_gradients(ids, tape.gradient(loss, activations))

    Attributes:
      config: the tables and features.
      tables: the trackable holder of the variables; its checkpoint keys are `<table>` and
        `<table>/<slot>`, as those of `tf.tpu.experimental.embedding.TPUEmbedding`.
    """

    def __init__(
        self, config: EmbeddingConfig, *, optimizer: Optimizer | None = None, seed: int = 0, with_slots: bool = True
    ):
        """Create the tables, and their slots.

        Args:
          config: the tables and features.
          optimizer: of the tables that have none of their own.
          seed: of the first rows: the same seed gives a table of the same name the same rows everywhere.
          with_slots: False leaves out the slots, for lookups only.

        Raises:
          ConfigError: a table has no optimizer, and none was given, with `with_slots`.
        """
        self.config = config
        self.tables = Tables()
        self._specs: dict[str, FeatureSpec] = specs_of(config, {table.name: table for table in config.tables})
        self._optimizers: dict[str, Optimizer] = {}
        if with_slots:
            self._optimizers = {table.name: _optimizer_of(table, optimizer) for table in config.tables}
        unmirrored(lambda: self._create(seed))

    def _create(self, seed: int) -> None:
        for table in self.config.tables:
            name, rows, dim = table.name, table.vocabulary_size, table.dim
            self.tables._add(name, new_table(table.initializer, seed=seed, table=name, rows=rows, dim=dim))
            optimizer = self._optimizers.get(name)
            for key, slot in new_slots(optimizer, table=name, rows=rows, dim=dim) if optimizer else ():
                self.tables._add(key, slot)
        self._iterations: tf.Variable | None = None
        if any(is_schedule(optimizer.learning_rate) for optimizer in self._optimizers.values()):
            self._iterations = tf.Variable(0, trainable=False, dtype=tf.int64, name="iterations")
            self.tables._add("learning_rate/iterations", self._iterations)

    @property
    def embedding_tables(self) -> dict[str, tf.Variable]:
        """The float32 [rows, dim] variable of each table, by name."""
        return {table.name: self.tables._get(table.name) for table in self.config.tables}

    @property
    def table_variables(self) -> dict[str, tf.Variable]:
        """Tables and slots, float32 [rows, dim], by `<table>` and `<table>/<slot>`."""
        slots = {f"{table}/{name}": variable for table, own in self.slots.items() for name, variable in own.items()}
        return {**self.embedding_tables, **slots}

    @property
    def slots(self) -> dict[str, dict[str, tf.Variable]]:
        """The float32 [rows, dim] slot variables, by table and slot name."""
        return {
            name: {
                slot.name: variable
                for slot, variable in zip(optimizer.slots, self.tables._slots(name, optimizer), strict=True)
            }
            for name, optimizer in self._optimizers.items()
        }

    @as_written
    def lookup(self, ids: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> dict[str, tf.Tensor]:
        """The activations of the features given.

        Args:
          ids: by feature name: dense [B] or [B, 1], sparse or ragged integer ids. Features may be left out.
          weights: by feature name, of the kind and indices of the ids; features may be left out.

        Returns:
          float32 [B, dim] per feature, or [B, max_sequence_length, dim] for a sequence.

        Raises:
          DataError (ValueError): an unknown feature, or a kind of input that its feature cannot have.
          tf.errors.InvalidArgumentError: an id lies outside its table, or a weight is not finite.
        """
        forms = self._forms(ids, weights)
        return {
            name: combine(self.tables._get(spec.table), form, spec.combiner, spec.quantization)
            for name, (spec, form) in forms.items()
        }

    @as_written
    def apply_gradients(
        self, ids: Mapping[str, Any], gradients: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> None:
        """One optimizer step: every row that `ids` name is updated once with its accumulated gradient.

        Args:
          ids: as given to `lookup`.
          gradients: of the activations, by feature name, in their shapes; None counts as zeros.
          weights: as given to `lookup`.

        Raises:
          EngineError (RuntimeError): the engine was made without slots.
          DataError (ValueError): features of `ids` and `gradients` differ, or a gradient has another shape.
          tf.errors.InvalidArgumentError: an id lies outside its table, or a weight is not finite; no table or slot
            was changed.
        """
        if not self._optimizers:
            raise EngineError(
                "apply_gradients on an engine made with with_slots=False: make it with with_slots=True to train."
            )
        if set(ids) != set(gradients):
            raise DataError(
                f"gradients are given for {sorted(gradients)}, ids for {sorted(ids)}: both must name the same features."
            )
        forms = self._forms(ids, weights)
        checked = [part for _, form in forms.values() for part in (form.ids, form.weights) if part is not None]
        with tf.control_dependencies(checked):
            self._apply(forms, gradients)

    def _apply(self, forms: Mapping[str, tuple[FeatureSpec, NormalForm]], gradients: Mapping[str, Any]) -> None:
        rates = dict(zip(self._optimizers, step_rates(self._optimizers.values(), self._iterations), strict=True))
        for table in dict.fromkeys(spec.table for spec, _ in forms.values()):
            self._update(
                table, {name: item for name, item in forms.items() if item[0].table == table}, gradients, rates
            )
        if self._iterations is not None:
            self._iterations.assign_add(1)

    def _update(
        self,
        table: Any,
        forms: Mapping[str, tuple[FeatureSpec, NormalForm]],
        gradients: Mapping[str, Any],
        rates: Mapping[str, Any],
    ) -> None:
        flat_ids = tf.concat([tf.cast(form.ids, tf.int64) for _, form in forms.values()], 0)
        parts = [_gradient_of(spec, form, gradients[name]) for name, (spec, form) in forms.items()]
        optimizer = self._optimizers[table]
        slots = self.tables._slots(table, optimizer)
        apply_to_table(optimizer, self.tables._get(table), slots, flat_ids, tf.concat(parts, 0), rates[table])

    def _forms(
        self, ids: Mapping[str, Any], weights: Mapping[str, Any] | None
    ) -> dict[str, tuple[FeatureSpec, NormalForm]]:
        weights = weights or {}
        for given in (ids, weights):
            unknown = sorted(set(given) - set(self._specs))
            if unknown:
                raise DataError(f"{unknown[0]!r} is no feature: the features are {sorted(self._specs)}.")
        return {
            name: (spec, policed(spec, normal_form(spec, ids[name], weights.get(name))))
            for name, spec in self._specs.items()
            if name in ids
        }


def _optimizer_of(table: TableConfig, default: Optimizer | None) -> Optimizer:
    optimizer = table.optimizer or default
    if optimizer is None:
        raise ConfigError(
            f"`optimizer` of table {table.name!r} is None: give the table one, give the engine one for all, or make "
            "the engine with with_slots=False."
        )
    return optimizer


def _gradient_of(spec: FeatureSpec, form: NormalForm, gradient: Any) -> tf.Tensor:
    if gradient is None:
        return tf.zeros([tf.size(form.ids), spec.dim])
    gradient = tf.convert_to_tensor(gradient)
    if gradient.shape.rank is None or gradient.shape[-1] != spec.dim:
        raise DataError(
            f"Found gradient of shape {gradient.shape} for feature {spec.path}: its last dimension must be {spec.dim}."
        )
    return row_gradients(form, spec.combiner, gradient)
