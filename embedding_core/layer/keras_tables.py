"""Holds tables as trainable variables, which the Keras optimizer of the model updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from embedding_core.engines.engine import Engine, Lookup
from embedding_core.engines.host_lookup import look_up_forms, normal_forms
from embedding_core.engines.variables import Variables, keyed_variables, plain_variables
from embedding_core.feature_specs import AnyTable, Ids, Weights
from embedding_core.layer.slot_views import SlotView, TablesWithSlots
from embedding_core.translate import Model


class KerasTables(Engine):
    """Tables as trainable variables, replicated by the current strategy; lookups are differentiable.

    The slots belong to the Keras optimizer. Those of a legacy Keras optimizer (see `translate.KerasSlots`) are also
    saved under the TPU's checkpoint keys, so that training can continue on a TPU.
    """

    trains_itself = False

    def __init__(self, model: Model, seed: int):
        self.tables = TablesWithSlots()
        self._model = model
        self._seed = seed
        self._variables: Variables = {}

    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; shapes are not needed."""
        if self._variables:
            return
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if context is not None:  # together, the replicas create each variable once
            context.merge_call(lambda strategy: self._create())
            return
        self._create()

    def _create(self) -> None:
        specs = [
            table if table.slot_creator else dataclasses.replace(table, optimizer=None) for table in self._model.tables
        ]
        with tf.init_scope():
            self._variables = plain_variables(specs, self._seed)
        for key, variable in keyed_variables(self._model.tables, self._variables).items():
            self.tables._add(key, variable if key in self._variables else SlotView(variable))

    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """See `Engine`."""
        features = self._model.features
        tables = {name: own["parameters"] for name, own in self._variables.items()}
        forms = normal_forms(features, tables, values, weights)
        return Lookup(lambda: look_up_forms(features, tables, forms, values), None)

    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the tables by the caller's TableConfig; create them if needed."""
        self.build()
        return {table.key: self._variables[table.name]["parameters"] for table in self._model.tables}
