"""Tables on this process' own devices: trained by a Keras optimizer, or by the TPU's rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.engines.hardware_configs import refuse_ignored
from embedding_core.engines.learning_rates import is_schedule, step_rates
from embedding_core.engines.table_updates import apply_to_table
from embedding_core.engines.tables import Tables, unmirrored
from embedding_core.engines.variables import Variables, device_variables, plain_variables
from embedding_core.errors import EngineError
from embedding_core.features import FeatureSpec, NormalForm, kind_of, normal_form, policed
from embedding_core.layer.backends import Backend, Trap, keyed_variables
from embedding_core.layer.slot_views import SlotView, TablesWithSlots
from embedding_core.lookup import combine, row_gradients
from embedding_core.translate import Model


class KerasTables(Backend):
    """Trainable variables, as replicated by the strategy in force; lookups are differentiable.

    The slots are the Keras optimizer's. Those that an older Keras optimizer creates for us are saved under the
    TPU's keys too, so that a TPU can go on with them.
    """

    trains_itself = False

    def __init__(self, model: Model, seed: int):
        self.holder = TablesWithSlots()
        self._model = model
        self._seed = seed
        self._variables: Variables = {}

    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """See `Backend`."""
        if self._variables:
            return
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is not None:  # the replicas meet to create one variable for all
            context.merge_call(lambda strategy: self._create())
            return
        self._create()

    def _create(self) -> None:
        specs = [table if table.slot_creator else dataclasses.replace(table, optimizer=None) for table in self._tables]
        with tf.init_scope():
            self._variables = plain_variables(specs, self._seed)
        for key, variable in keyed_variables(self._model, self._variables).items():
            self.holder._add(key, variable if key in self._variables else SlotView(variable))

    @property
    def _tables(self) -> tuple[Any, ...]:
        return self._model.tables

    def look_up(self, values: list[Any], weights: list[Any], trap: Trap) -> list[Any]:
        """See `Backend`."""
        parameters = {name: own["parameters"] for name, own in self._variables.items()}
        return _activations(parameters, self._model.features, _forms(self._model, parameters, values, weights), values)

    def tables(self) -> dict[Any, tf.Variable]:
        """See `Backend`."""
        self.build(None, None)
        return {table.key: self._variables[table.name]["parameters"] for table in self._tables}

    def variables(self) -> Mapping[str, tf.Variable]:
        """None: the tables are weights of the layer, and the slots are the Keras optimizer's."""
        return {}


class EngineTables(Backend):
    """One copy of each table, updated by the TPU's rules in the backward pass: touched rows only, each once a step."""

    def __init__(self, model: Model, seed: int):
        refuse_ignored(model, "engine")
        self.holder = Tables()
        self._model = model
        self._seed = seed
        self._variables: Variables = {}
        self._iterations: tf.Variable | None = None

    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """See `Backend`."""
        if self._variables:
            return
        optimizers = [table.optimizer for table in self._model.tables if table.optimizer is not None]
        with tf.init_scope():
            if any(is_schedule(optimizer.learning_rate) for optimizer in optimizers):
                self._iterations = unmirrored(lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
                self.holder._add("learning_rate/iterations", self._iterations)
            self._variables = device_variables(self._model.tables, self._seed, hosts=1)
        for key, variable in keyed_variables(self._model, self._variables).items():
            self.holder._add(key, variable)

    def look_up(self, values: list[Any], weights: list[Any], trap: Trap) -> list[Any]:
        """See `Backend`."""
        parameters = {name: own["parameters"] for name, own in self._variables.items()}
        forms = _forms(self._model, parameters, values, weights)
        return trap(
            lambda: _activations(parameters, self._model.features, forms, values),
            lambda gradients: self._train(forms, gradients),
        )

    def _train(self, forms: Sequence[NormalForm], gradients: Sequence[Any]) -> None:
        for table in self._model.tables:
            if table.optimizer is None:
                raise EngineError(
                    f"table {table.name!r} has no optimizer, so it cannot be trained: give it one, or give one to "
                    "the layer."
                )
        parts = {table.name: self._part(table.name, forms, gradients) for table in self._model.tables}
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            self._apply([parts])
            return
        context.merge_call(
            lambda strategy, boxes: self._apply(_of_all(strategy, [box.parts for box in _local(strategy, boxes)])),
            args=(_Box(parts),),
        )

    def _part(self, table: str, forms: Sequence[NormalForm], gradients: Sequence[Any]) -> tuple[Any, Any]:
        """The ids of a table's features and the gradients of their rows, in this replica."""
        ids, rows = [], []
        for place in self._model.features_of(table):
            ids.append(forms[place].ids)
            rows.append(row_gradients(forms[place], self._model.features[place].combiner, gradients[place]))
        return _joined([tf.cast(values, tf.int64) for values in ids]) if len(ids) > 1 else ids[0], _joined(rows)

    def _apply(self, replicas: Sequence[Mapping[str, tuple[Any, Any]]]) -> None:
        optimizers = [table.optimizer for table in self._model.tables if table.optimizer is not None]
        rates = step_rates(optimizers, self._iterations)
        for table, optimizer, rate in zip(self._model.tables, optimizers, rates, strict=True):
            ids, gradients = (_joined([parts[table.name][turn] for parts in replicas]) for turn in range(2))
            own = self._variables[table.name]
            with tf.device(own["parameters"].device):
                slots = [own[slot.name] for slot in optimizer.slots]
                apply_to_table(optimizer, own["parameters"], slots, ids, gradients, rate)
        if self._iterations is not None:
            self._iterations.assign_add(1)

    def tables(self) -> dict[Any, tf.Variable]:
        """See `Backend`."""
        self.build(None, None)
        return {table.key: self._variables[table.name]["parameters"] for table in self._model.tables}

    def variables(self) -> Mapping[str, tf.Variable]:
        """See `Backend`."""
        return keyed_variables(self._model, self._variables)


class _Box:
    """Carries a replica's values through a merge_call untouched."""

    def __init__(self, parts: Mapping[str, tuple[Any, Any]]):
        self.parts = parts


def _local(strategy: Any, boxes: Any) -> Sequence[_Box]:
    found: Sequence[_Box] = strategy.experimental_local_results(boxes)
    return found


def _of_all(strategy: Any, parts: list[Any]) -> list[Any]:
    """The parts, if they are those of all replicas: workers of other processes would train tables of their own."""
    if len(parts) != strategy.num_replicas_in_sync:
        raise EngineError(
            f"table_update='engine' under {type(strategy).__name__}, of which {len(parts)} of "
            f"{strategy.num_replicas_in_sync} replicas are in this process: each process would train tables of its "
            "own. Use table_update='keras', or one process."
        )
    return parts


def _joined(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tf.concat(values, 0)


def _forms(
    model: Model, parameters: Mapping[str, tf.Variable], values: Sequence[Any], weights: Sequence[Any]
) -> list[NormalForm]:
    forms = [
        _form(feature, parameters[feature.table], value, weight)
        for feature, value, weight in zip(model.features, values, weights, strict=True)
    ]
    checked = [form.weights for form in forms if form.weights is not None]
    if not checked:
        return forms
    with tf.control_dependencies(checked):  # no table is trained when the weights of another one are refused
        return [dataclasses.replace(form, ids=tf.identity(form.ids)) for form in forms]


def _form(feature: FeatureSpec, table: tf.Variable, value: Any, weight: Any) -> NormalForm:
    form = normal_form(feature, tf.reshape(value, [1]) if _is_scalar(value) else value, weight)
    if feature.invalid_id == "error" and "GPU" not in table.device:  # on CPU the lookup itself fails
        return form
    return policed(feature, form)


def _is_scalar(value: Any) -> bool:
    return kind_of(value) == "dense" and value.shape.rank == 0


def _combined(table: tf.Variable, form: NormalForm, feature: FeatureSpec) -> tf.Tensor:
    try:
        return combine(table, form, feature.combiner, feature.quantization, _operation(feature))
    except tf.errors.InvalidArgumentError as error:  # eagerly; in a graph the operation's name tells
        if "is not in [0," not in error.message:
            raise
        message = (
            f"An id of feature {feature.path!r} lies outside table {feature.table!r}: correct the ids. {error.message}"
        )
        raise tf.errors.InvalidArgumentError(None, None, message) from error


def _operation(feature: FeatureSpec) -> str:
    """What the lookup is called in the message about an id outside the table."""
    letters = f"feature_{feature.path}_in_table_{feature.table}"
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in letters)


def _activations(
    parameters: Mapping[str, tf.Variable],
    features: Sequence[FeatureSpec],
    forms: Sequence[NormalForm],
    values: Sequence[Any],
) -> list[Any]:
    found = [_combined(parameters[feature.table], form, feature) for feature, form in zip(features, forms, strict=True)]
    return [tf.squeeze(rows, 0) if _is_scalar(value) else rows for rows, value in zip(found, values, strict=True)]
