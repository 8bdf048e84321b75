"""Creates the variables of tables and slots: those that emulate a device's memory, or the plain ones of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.engines.tables import all_rows, new_slots, new_table, unmirrored
from embedding_core.errors import ConfigError
from embedding_core.planning.topology import row_blocks
from embedding_core.translate import TableSpec

Variables: TypeAlias = dict[str, dict[str, tf.Variable]]
Track: TypeAlias = Callable[[str, tf.Variable], None]
PARAMETERS = "parameters"


def keyed_variables(tables: Sequence[TableSpec], variables: Variables) -> dict[str, tf.Variable]:
    """Return variables by checkpoint key, `<table>` or `<table>/<slot>`; empty before they are created."""
    return {
        table.name if slot == PARAMETERS else f"{table.name}/{slot}": variable
        for table in tables
        for slot, variable in variables.get(table.name, {}).items()
    }


def track_variables(tables: Sequence[TableSpec], variables: Variables, track: Track) -> None:
    """Track variables under their checkpoint keys, except slots that another object made and saves."""
    for table in tables:
        for slot, variable in variables[table.name].items():
            if slot == PARAMETERS:
                track(table.name, variable)
            elif table.slot_creator is None:
                track(f"{table.name}/{slot}", variable)


class ShardInfo(NamedTuple):
    """The block of a table that a sharding-aware initializer fills.

    Attributes:
      shape: (rows, dim) of the block.
      offset: (first row, 0).
    """

    shape: tuple[int, int]
    offset: tuple[int, int]


def device_variables(tables: Sequence[TableSpec], seed: int, hosts: int) -> Variables:
    """Create the variables that emulate the memory of a device, not mirrored, with their initial values.

    Args:
      tables: the tables.
      seed: seed of the rows of tables with an InitializerConfig.
      hosts: how many blocks of rows a sharding-aware initializer (one with an argument `shard_info`) fills.

    Returns:
      By table name, then "parameters" or the name of the slot; each float32 [rows, dim].
    """

    def make() -> Variables:
        return {table.name: {PARAMETERS: _on_device(table, seed, hosts)} | _own_slots(table) for table in tables}

    return unmirrored(make)


def plain_variables(tables: Sequence[TableSpec], seed: int) -> Variables:
    """Create the variables of a model: trainable tables, replicated by the strategy in force.

    Args:
      tables: the tables; an optimizer's `slot_variable_creation_fn` makes their slots.
      seed: seed of the rows of tables with an InitializerConfig.

    Returns:
      By table name, then "parameters" or the name of the slot; each float32 [rows, dim].
    """
    return {table.name: _plain(table, seed) for table in tables}


def _plain(table: TableSpec, seed: int) -> dict[str, tf.Variable]:
    initializer: Any = table.initializer
    shape: dict[str, Any] = {"seed": seed, "table": table.name, "rows": table.rows, "dim": table.dim}
    if not isinstance(initializer, InitializerConfig):
        rows = initializer((table.rows, table.dim), dtype=tf.float32)
        parameters = tf.Variable(rows, name=table.name, dtype=tf.float32)
    elif tf.distribute.has_strategy():
        parameters = tf.Variable(all_rows(initializer, **shape), name=table.name)
    else:
        parameters = new_table(initializer, **shape, trainable=True)
    if table.optimizer is None or table.slot_creator is None:
        return {PARAMETERS: parameters} | _own_slots(table)
    initializers = [tf.constant_initializer(slot.initial) for slot in table.optimizer.slots]
    names = [slot.name for slot in table.optimizer.slots]
    made = table.slot_creator(parameters, names, initializers)
    if set(made) != set(names):
        raise ConfigError(
            f"`slot_variable_creation_fn` of the optimizer of table {table.name!r} made {sorted(made)}: it must return "
            f"a dict of the slots {names}."
        )
    return {PARAMETERS: parameters, **made}


def _own_slots(table: TableSpec) -> dict[str, tf.Variable]:
    if table.optimizer is None:
        return {}
    made = new_slots(table.optimizer, table=table.name, rows=table.rows, dim=table.dim)
    return {key[len(table.name) + 1 :]: variable for key, variable in made}


def _on_device(table: TableSpec, seed: int, hosts: int) -> tf.Variable:
    initializer: Any = table.initializer
    if isinstance(initializer, InitializerConfig):
        return new_table(initializer, seed=seed, table=table.name, rows=table.rows, dim=table.dim)
    if "shard_info" not in inspect.signature(initializer).parameters:
        rows = initializer((table.rows, table.dim), dtype=tf.float32)
        return tf.Variable(rows, trainable=False, name=table.name, dtype=tf.float32)
    variable = tf.Variable(tf.zeros([table.rows, table.dim]), trainable=False, name=table.name)
    start = 0
    for count in filter(None, row_blocks(table.rows, hosts)):
        block = ShardInfo((count, table.dim), (start, 0))
        values = initializer((table.rows, table.dim), dtype=tf.float32, shard_info=block)
        variable.scatter_update(tf.IndexedSlices(values, tf.range(start, start + count)))
        start += count
    return variable
