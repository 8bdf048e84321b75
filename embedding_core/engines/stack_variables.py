"""Creates the variables that emulate the memory of SparseCores: stacks of tables, and views of tables in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.engines.tables import Trackable, blocks_of_rows, unmirrored
from embedding_core.engines.variables import PARAMETERS, ShardInfo, Variables
from embedding_core.sparsecore import Slice, Stack, StackedTable
from embedding_core.translate import TableSpec

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
