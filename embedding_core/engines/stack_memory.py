"""Emulates the memory of SparseCores, with lookup and update: one variable per stack of tables and per slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from embedding_core.engines.core_vectors import checked_gradient
from embedding_core.engines.pipelining import EarlierRows, optimizer_of, train_table
from embedding_core.engines.simulated_strategy import SimulatedTPUStrategy
from embedding_core.engines.stack_feeding import StackFeeder
from embedding_core.engines.stack_ids import StackIds, within_limits
from embedding_core.engines.stack_layouts import layouts_of
from embedding_core.engines.stack_variables import TableView, stack_variables, views_of
from embedding_core.engines.step_rates import new_iterations, step_rates
from embedding_core.engines.tables import unmirrored
from embedding_core.engines.variables import PARAMETERS, Variables
from embedding_core.errors import DataError
from embedding_core.feature_specs import Ids, Weights
from embedding_core.lookup import quantized
from embedding_core.sparsecore import SparseCoreEmbeddingConfig, Stack
from embedding_core.structures import Nested
from embedding_core.translate import Model, TableSpec

ChipIds: TypeAlias = Mapping[str, StackIds]
"""The entries of one chip, by name of the stack."""


class StackMemory:
    """The stacks of a model on a simulated TPU.

    Attributes:
      model: tables and features.
      strategy: the simulated TPU.
      feeder: sorts ids by stack.
      variables: stacks and slots by name of the stack; empty before `build`.
      views: tables and slots by checkpoint key; empty before `build`.
      iterations: number of steps done, if a learning rate is a function of it.
      dropped: number of dropped ids by name of the stack.
      layouts: place of each table.
    """

    def __init__(
        self,
        model: Model,
        strategy: SimulatedTPUStrategy,
        config: SparseCoreEmbeddingConfig,
        seed: int,
        *,
        pipelined: bool,
    ):
        self.model, self.strategy = model, strategy
        self.feeder = StackFeeder(model, strategy.slice, config)
        self.variables: Variables = {}
        self.views: dict[str, TableView] = {}
        self.iterations: tf.Variable | None = None
        self._seed, self._pipelined = seed, pipelined
        self._earlier: dict[str, EarlierRows] = {}
        self._limits = self.feeder.limits(config)
        self.dropped: dict[str, tf.Variable] = unmirrored(
            lambda: {name: tf.Variable(0, trainable=False, dtype=tf.int64) for name in self._limits}
        )
        dims = {table.name: table.dim for table in model.tables}
        self.layouts = layouts_of(self.feeder.stacks, dims, strategy.slice)

    def build(self) -> None:
        """Create the variables and their views."""
        tables, stacks = self.model.tables, self.feeder.stacks
        self.iterations = new_iterations([table.optimizer for table in tables])
        self.variables = stack_variables(tables, stacks, self.strategy.slice, self._seed)
        self.views = views_of(tables, stacks, self.strategy.slice, self.variables)
        if self._pipelined:
            self._earlier = {stack.name: EarlierRows(stack.dim) for stack in stacks}

    def sorted_ids(self, values: Sequence[Ids], weights: Sequence[Weights]) -> ChipIds:
        """Return the entries of one chip that are within the limits; count the others."""
        entries = {}
        for name, found in self.feeder.sorted_ids(values, weights).items():
            entries[name], dropped = within_limits(found, self._limits[name], self.strategy.slice)
            if self._limits[name].drops:
                self.dropped[name].assign_add(dropped)
        return entries

    def check(self, given: ChipIds) -> None:
        """Refuse what `sorted_ids` of an object with these stacks did not return.

        Raises:
          DataError (ValueError): the entries are not of these stacks.
        """
        names = sorted(given) if isinstance(given, Mapping) else type(given).__name__
        if names != sorted(self._limits) or not all(isinstance(entries, StackIds) for entries in given.values()):
            raise DataError(
                f"the partitioned ids are of {names}: give what enqueue of this object returned, with the entries of "
                f"the stacks {sorted(self._limits)}."
            )

    def look_up(self, chips: Sequence[ChipIds]) -> list[list[tf.Tensor]]:
        """Return the activations of each stack, [samples, dim], for each chip; no chip sees a later update."""
        found = [[self._activations(stack, one) for stack in self.feeder.stacks] for one in _all_ready(chips)]
        for earlier in self._earlier.values():
            earlier.forget()
        return found

    def _activations(self, stack: Stack, entries: ChipIds) -> tf.Tensor:
        samples, ids, gains = entries[stack.name]
        rows = tf.gather(self.variables[stack.name][PARAMETERS], ids)
        if self._pipelined:
            rows = self._earlier[stack.name].applied_to(rows, ids)
        quantization = self._first_table(stack).quantization
        if quantization is not None:
            rows = quantized(rows, quantization)
        return tf.math.unsorted_segment_sum(rows * gains[:, tf.newaxis], samples, self.feeder.samples_of(stack))

    def _first_table(self, stack: Stack) -> TableSpec:
        """Return a table of a stack, all of which have one optimizer and quantization."""
        return next(table for table in self.model.tables if table.name == stack.tables[0].name)

    def unstacked(self, activations: Sequence[tf.Tensor]) -> Nested:
        """Return the activations of the features of one chip from those of its stacks."""
        features, found = self.model.features, {}
        for stack, values in zip(self.feeder.stacks, activations, strict=True):
            places = self.feeder.features[stack.name]
            parts = tf.split(values, [self.feeder.rows_of(place) for place in places])
            for place, part in zip(places, parts, strict=True):
                shape, dim = self.feeder.output_shapes[place].as_list(), features[place].dim
                found[place] = tf.reshape(part[:, :dim], [*shape, dim])
        return tf.nest.pack_sequence_as(self.model.structure, [found[place] for place in range(len(features))])

    def stacked(self, gradients: Sequence[tf.Tensor | None]) -> list[tf.Tensor]:
        """Return the gradients of the stacks of one chip, [samples, dim], from those of its features."""
        features, shapes = self.model.features, self.feeder.output_shapes
        flat = [
            tf.reshape(checked_gradient(*one), [-1, one[1].dim])
            for one in zip(gradients, features, shapes, strict=True)
        ]
        return [
            tf.concat(
                [
                    tf.pad(flat[place], [[0, 0], [0, stack.dim - features[place].dim]])
                    for place in self.feeder.features[stack.name]
                ],
                0,
            )
            for stack in self.feeder.stacks
        ]

    def update(self, chips: Sequence[tuple[ChipIds, Sequence[tf.Tensor]]]) -> list[None]:
        """Update every stack with the gradients of all chips."""
        entries = _all_ready([one for one, _ in chips])
        optimizers = [optimizer_of(self._first_table(stack)) for stack in self.feeder.stacks]
        rates = step_rates(optimizers, self.iterations)
        for turn, (stack, optimizer) in enumerate(zip(self.feeder.stacks, optimizers, strict=True)):
            rows = tf.concat([one[stack.name].rows for one in entries], 0)
            gradients = [
                tf.gather(stacked[turn], one[stack.name].samples) * one[stack.name].gains[:, tf.newaxis]
                for one, (_, stacked) in zip(entries, chips, strict=True)
            ]
            train_table(
                optimizer,
                self.variables[stack.name],
                rows,
                tf.concat(gradients, 0),
                rates[turn],
                self._earlier.get(stack.name),
            )
        if self.iterations is not None:
            self.iterations.assign_add(1)
        return [None] * len(chips)


def _all_ready(chips: Sequence[ChipIds]) -> list[ChipIds]:
    """Return the entries of all chips; if one input is refused, no stack is looked up or updated."""
    with tf.control_dependencies([part for one in chips for entries in one.values() for part in entries]):
        return [
            {name: StackIds(*(tf.identity(part) for part in found)) for name, found in one.items()} for one in chips
        ]
