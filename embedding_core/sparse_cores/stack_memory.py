"""Emulates the memory of SparseCores, with lookup and update: one variable per stack of tables and per slot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.engines.queues import checked_gradient
from embedding_core.engines.simulated_strategy import SimulatedTPUStrategy
from embedding_core.engines.table_updates import EarlierRows, optimizer_of, train_table
from embedding_core.engines.tables import (
    PARAMETERS,
    ShardInfo,
    Trackable,
    Variables,
    blocks_of_rows,
    new_iterations,
    step_rates,
    unmirrored,
)
from embedding_core.errors import DataError
from embedding_core.feature_specs import Ids, Weights
from embedding_core.lookup import quantized
from embedding_core.sparse_cores import Slice, SparseCoreEmbeddingConfig, Stack, StackedTable
from embedding_core.sparse_cores.stack_feeding import StackFeeder, StackIds, layouts_of, within_limits
from embedding_core.structures import Nested
from embedding_core.translate import Model, TableSpec

# Creates the variables that emulate the memory of SparseCores: stacks of tables, and views of tables in them.

_VALUE = "VARIABLE_VALUE"  # TensorFlow's name for the value of a variable in a checkpoint


class Place(NamedTuple):
    """The place of a table in its stack, and its shape.

    Attributes:
      stack: the stack.
      table: the table in it.
      shards: number of SparseCores.
      dim: number of columns of the table.
    """

    stack: Stack
    table: StackedTable
    shards: int
    dim: int

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Compute the rows of the stack's variable that rows of the table are in, int64 [N].

        Raises:
          tf.errors.InvalidArgumentError: a row is outside the table.
        """
        count, ids = self.table.rows, tf.cast(ids, tf.int64)
        message = f"an index of table {self.table.name!r} is not in [0, {count})"
        check = tf.debugging.assert_less(tf.cast(ids, tf.uint64), tf.cast(count, tf.uint64), message)
        with tf.control_dependencies([] if check is None else [check]):
            return self.stack.places_of(self.table, tf.identity(ids), self.shards)


class TableView(Trackable):
    """A table, or a slot of one, within the variable of its stack: reads, writes and saves it as [rows, dim].

    It has the methods of a tf.Variable that checkpoints, warm starts and lookups call. Checkpoints save it like the
    variable of a table on other engines.
    """

    def __init__(self, variable: tf.Variable, place: Place, name: str):
        self._stacked: Callable[[], tf.Variable] = lambda: variable  # an attribute that is a variable would be tracked
        self._place: Callable[[], Place] = lambda: place
        self.name = name
        self.dtype = tf.float32

    @property
    def shape(self) -> tf.TensorShape:
        """[rows, dim]."""
        return tf.TensorShape([self._place().table.rows, self._place().dim])

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Return some rows; `tf.gather` calls this."""
        return tf.gather(self._stacked(), self._place().rows(indices), name=name)[..., : self._place().dim]

    def read_value(self) -> tf.Tensor:
        """Return all rows, [rows, dim]."""
        return self.sparse_read(tf.range(self.shape[0], dtype=tf.int64))

    def numpy(self) -> Any:
        """Return all rows as an array."""
        return self.read_value().numpy()

    def assign(self, value: tf.Tensor) -> tf.Operation:
        """Write all rows, [rows, dim]."""
        values = tf.ensure_shape(tf.cast(tf.convert_to_tensor(value), tf.float32), self.shape)
        return self.scatter_update(tf.IndexedSlices(values, tf.range(self.shape[0], dtype=tf.int64)))

    def scatter_update(self, sparse_delta: tf.IndexedSlices) -> tf.Operation:
        """Write some rows; the columns of the padding do not change."""
        stacked, places = self._stacked(), self._place().rows(sparse_delta.indices)
        padding = tf.gather(stacked, places)[:, self._place().dim :]
        return stacked.scatter_update(tf.IndexedSlices(tf.concat([sparse_delta.values, padding], 1), places))

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {_VALUE: self.read_value()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> tf.Operation:
        return self.assign(restored[_VALUE])

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        if self not in object_map:
            copy = unmirrored(lambda: tf.Variable(self._stacked().read_value(), trainable=False))
            object_map[self] = TableView(copy, self._place(), self.name)
        object_map[self]._stacked().assign(self._stacked().read_value())


tf.register_tensor_conversion_function(
    TableView, lambda view, dtype=None, name=None, as_ref=False: tf.cast(view.read_value(), dtype or tf.float32)
)


def views_of(
    tables: Sequence[TableSpec], stacks: Sequence[Stack], slice_: Slice, variables: Variables
) -> dict[str, TableView]:
    """Return a view of every table and slot, by checkpoint key, in the order of `variables.keyed_variables`."""
    of_table = {table.name: (stack, table) for stack in stacks for table in stack.tables}
    views = {}
    for spec in tables:
        stack, table = of_table[spec.name]
        place = Place(stack, table, slice_.shards, spec.dim)
        for slot, variable in variables[stack.name].items():
            key = spec.name if slot == PARAMETERS else f"{spec.name}/{slot}"
            views[key] = TableView(variable, place, key)
    return views


def stack_variables(tables: Sequence[TableSpec], stacks: Sequence[Stack], slice_: Slice, seed: int) -> Variables:
    """Create the variables of stacks and their slots, not mirrored, with the first rows of the tables.

    Returns:
      By name of the stack, then "parameters" or the name of the slot; each float32 [shards * rows per shard, dim], with
      one shard after the other. Padding is 0, in slots their first value.
    """
    specs = {table.name: table for table in tables}
    return unmirrored(lambda: {stack.name: _variables_of(stack, specs, slice_, seed) for stack in stacks})


def _variables_of(stack: Stack, specs: dict[str, TableSpec], slice_: Slice, seed: int) -> dict[str, tf.Variable]:
    shape = [slice_.shards * stack.rows_per_shard, stack.dim]
    parameters = tf.Variable(tf.zeros(shape), trainable=False, name=stack.name)
    for table in stack.tables:
        _fill(parameters, Place(stack, table, slice_.shards, specs[table.name].dim), specs[table.name], slice_, seed)
    optimizer = specs[stack.tables[0].name].optimizer
    slots = {
        slot.name: tf.Variable(tf.fill(shape, float(slot.initial)), trainable=False, name=f"{stack.name}/{slot.name}")
        for slot in (optimizer.slots if optimizer else ())
    }
    return {PARAMETERS: parameters, **slots}


def _fill(variable: tf.Variable, place: Place, table: TableSpec, slice_: Slice, seed: int) -> None:
    """Write the first rows of a table, which are those of every other engine."""
    view, initializer = TableView(variable, place, table.name), table.initializer
    if isinstance(initializer, InitializerConfig):
        blocks = blocks_of_rows(initializer, seed=seed, table=table.name, rows=table.rows, dim=table.dim)
        for start, values in blocks:
            view.scatter_update(tf.IndexedSlices(values, tf.range(start, start + len(values))))
    elif "shard_info" not in inspect.signature(initializer).parameters:
        view.assign(initializer((table.rows, table.dim), dtype=tf.float32))
    else:
        view.assign(_rows_by_chip(initializer, place, slice_))


def _rows_by_chip(initializer: Callable[..., tf.Tensor], place: Place, slice_: Slice) -> tf.Tensor:
    """Return the rows that a sharding-aware initializer makes, called for the shards of each chip, as by TensorFlow.

    Each block is in the order of the shards, without rotation and with padding.
    """
    table, shape = place.table, (place.table.padded_rows, place.stack.dim)
    per_shard = table.padded_rows // slice_.shards
    blocks = []
    for chip in range(slice_.chips):
        first = (chip * slice_.per_chip - table.rotation) % slice_.shards
        block = ShardInfo((slice_.per_chip * per_shard, shape[1]), (first * per_shard, 0))
        blocks.append(initializer(shape, dtype=tf.float32, shard_info=block))
    alone = place.stack._replace(tables=(table._replace(first_row=0),), rows_per_shard=per_shard)
    places = alone.places_of(alone.tables[0], tf.range(table.rows), slice_.shards)
    return tf.gather(tf.concat(blocks, 0), places)[:, : place.dim]


# Emulates the memory of SparseCores, with lookup and update: one variable per stack of tables and per slot.

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
        self._slice = Slice(strategy.hosts * strategy.cores_per_host, strategy.sparse_cores)
        self.feeder = StackFeeder(model, self._slice, config)
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
        self.layouts = layouts_of(self.feeder.stacks, dims, self._slice)

    def build(self) -> None:
        """Create the variables and their views."""
        tables, stacks = self.model.tables, self.feeder.stacks
        self.iterations = new_iterations([table.optimizer for table in tables])
        self.variables = stack_variables(tables, stacks, self._slice, self._seed)
        self.views = views_of(tables, stacks, self._slice, self.variables)
        if self._pipelined:
            self._earlier = {stack.name: EarlierRows(stack.dim) for stack in stacks}

    def sorted_ids(self, values: Sequence[Ids], weights: Sequence[Weights]) -> ChipIds:
        """Return the entries of one chip that are within the limits; count the others."""
        entries = {}
        for name, found in self.feeder.sorted_ids(values, weights).items():
            entries[name], dropped = within_limits(found, self._limits[name], self._slice)
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
        found = [[self._activations(stack, entries) for stack in self.feeder.stacks] for entries in _all_ready(chips)]
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
            tf.reshape(checked_gradient(gradient, feature, shape), [-1, feature.dim])
            for gradient, feature, shape in zip(gradients, features, shapes, strict=True)
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
        entries = _all_ready([ids for ids, _ in chips])
        optimizers = [optimizer_of(self._first_table(stack)) for stack in self.feeder.stacks]
        rates = step_rates(optimizers, self.iterations)
        for turn, (stack, optimizer) in enumerate(zip(self.feeder.stacks, optimizers, strict=True)):
            rows = tf.concat([entry[stack.name].rows for entry in entries], 0)
            gradients = [
                tf.gather(stacked[turn], entry[stack.name].samples) * entry[stack.name].gains[:, tf.newaxis]
                for entry, (_, stacked) in zip(entries, chips, strict=True)
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
    with tf.control_dependencies([part for chip in chips for entries in chip.values() for part in entries]):
        return [
            {name: StackIds(*(tf.identity(part) for part in found)) for name, found in chip.items()} for chip in chips
        ]
