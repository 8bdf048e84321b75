"""Creates, names and fills the tables and slots of an engine, and evaluates the learning rates of a step."""

from __future__ import annotations

import hashlib
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.optimizers import LearningRate, Optimizer
from embedding_core.planning.topology import row_blocks
from embedding_core.translate import TableSpec
from embedding_core.update_rules import Rate

_ROWS_PER_BLOCK = 4096  # part of the definition of a table's first rows: changing it changes every new table

Made = TypeVar("Made")


LAYOUTS = "_sparse_core_table_layouts"
"""Checkpoint key of TensorFlow (after 2.16) for the places of tables in stacks of SparseCores."""


class Trackable(tf.__internal__.tracking.AutoTrackable):
    """An object that checkpoints follow. `tf.Module`, which is public, does not let an object choose its `name`."""


class NamedTables(Trackable):
    """Tables and slots in checkpoints, each by its name.

    A stack with a single table may have the name and shape of the whole table, with its rows in another order.
    Therefore a checkpoint of stacks is not restored.
    """

    def _lookup_dependency(self, name: str, *arguments: Any, **kwargs: Any) -> Any:
        """Return the child of a name; TensorFlow calls this for all names in a checkpoint before it restores one.

        Raises:
          CheckpointError: the checkpoint has stacks of tables.
        """
        if name == LAYOUTS:
            raise CheckpointError(
                "the checkpoint holds tables as SparseCores stack them: write them by name with "
                "`embedding_core.checkpoint.retrieve`, and load that."
            )
        return super()._lookup_dependency(name, *arguments, **kwargs)


class Tables(NamedTables):
    """Holds variables under upstream's checkpoint keys, `<table>` and `<table>/<slot>`, and nothing else.

    Derives from AutoTrackable, as upstream's class does, and not from tf.Module: Keras collects the
    variables of modules, and would train, count and replicate these.
    """

    def _add(self, key: str, variable: tf.Variable) -> None:
        setattr(self, key, variable)

    def _get(self, table: str) -> tf.Variable:
        return getattr(self, table)

    def _slots(self, table: str, optimizer: Optimizer | None) -> list[tf.Variable]:
        return [] if optimizer is None else [getattr(self, f"{table}/{slot.name}") for slot in optimizer.slots]


def unmirrored(make: Callable[[], Made]) -> Made:
    """Call `make` outside of any distribution strategy, so that its variables are not mirrored.

    `make` runs in a new thread, which has no strategy; `tf.init_scope` alone would keep the caller's strategy.
    """
    results: list[Made] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with tf.init_scope():
                results.append(make())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def initial_rows(initializer: InitializerConfig, *, seed: int, table: str, dim: int, block: int) -> tf.Tensor:
    """Return the first values of one block of a table's rows.

    The values depend on the arguments alone, not on the topology or on the number of rows of the table.

    Args:
      initializer: the distribution.
      seed: seed of the run.
      table: name of the table.
      dim: length of a row.
      block: number of the block of rows.

    Returns:
      float32 [_ROWS_PER_BLOCK, dim].
    """
    shape = [_ROWS_PER_BLOCK, dim]
    scale = 1.0 / math.sqrt(dim) if initializer.scale is None else initializer.scale
    if initializer.name == "constant":
        return tf.fill(shape, tf.constant(scale, tf.float32))
    digest = hashlib.sha256(f"{seed}/{table}".encode()).digest()
    seeds = tf.constant([int.from_bytes(digest[:8], "little", signed=True), block], tf.int64)
    if initializer.name == "uniform":
        return tf.random.stateless_uniform(shape, seeds, -scale, scale, alg="philox")
    return tf.random.stateless_truncated_normal(shape, seeds, 0.0, scale, alg="philox")


def blocks_of_rows(
    initializer: InitializerConfig, *, seed: int, table: str, rows: int, dim: int
) -> Iterator[tuple[int, tf.Tensor]]:
    """Yield the `initial_rows` of a table block by block, to save memory: number of the first row, and rows."""
    for block in range(math.ceil(rows / _ROWS_PER_BLOCK)):
        start = block * _ROWS_PER_BLOCK
        values = initial_rows(initializer, seed=seed, table=table, dim=dim, block=block)
        yield start, values[: rows - start]


def new_table(
    initializer: InitializerConfig, *, seed: int, table: str, rows: int, dim: int, trainable: bool = False
) -> tf.Variable:
    """Create a float32 [rows, dim] variable with its `initial_rows`, written block by block."""
    variable = tf.Variable(tf.zeros([rows, dim]), trainable=trainable, name=table)
    for start, values in blocks_of_rows(initializer, seed=seed, table=table, rows=rows, dim=dim):
        variable.scatter_update(tf.IndexedSlices(values, tf.range(start, start + len(values))))
    return variable


def all_rows(initializer: InitializerConfig, *, seed: int, table: str, rows: int, dim: int) -> tf.Tensor:
    """Return the `initial_rows` of a whole small table, float32 [rows, dim]."""
    blocks = blocks_of_rows(initializer, seed=seed, table=table, rows=rows, dim=dim)
    return tf.concat([values for _, values in blocks], 0)


def new_slots(optimizer: Optimizer, *, table: str, rows: int, dim: int) -> Sequence[tuple[str, tf.Variable]]:
    """Return the keys and float32 [rows, dim] variables of a table's slots, at their initial values."""
    return [
        (
            f"{table}/{slot.name}",
            tf.Variable(tf.fill([rows, dim], float(slot.initial)), trainable=False, name=f"{table}/{slot.name}"),
        )
        for slot in optimizer.slots
    ]


# Creates the variables of tables and slots: those that emulate a device's memory, or the plain ones of a model.

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


# Evaluates the learning rates of a step (constants, callables and Keras schedules), each once.

ITERATIONS = "learning_rate/iterations"  # checkpoint key of the counter of steps, which schedules follow


def is_schedule(rate: LearningRate) -> bool:
    """Return whether a learning rate is a function that takes the step, as Keras' schedules do."""
    if not callable(rate):
        return False
    try:
        parameters = inspect.signature(rate).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def distinct_rates(optimizers: Iterable[Optimizer]) -> list[Callable[..., tf.Tensor]]:
    """Return the distinct callable learning rates in the order of their first use: the index of each is its tag."""
    rates: list[Callable[..., tf.Tensor]] = []
    for optimizer in optimizers:
        if callable(optimizer.learning_rate) and not any(optimizer.learning_rate is rate for rate in rates):
            rates.append(optimizer.learning_rate)
    return rates


def new_iterations(optimizers: Iterable[Optimizer | None]) -> tf.Variable | None:
    """Create a counter of the steps done, int64, if a learning rate is a function of it; else None."""
    if not any(optimizer is not None and is_schedule(optimizer.learning_rate) for optimizer in optimizers):
        return None
    return unmirrored(lambda: tf.Variable(0, trainable=False, dtype=tf.int64, name="iterations"))


def step_rates(optimizers: Iterable[Optimizer], iterations: tf.Variable | None) -> list[Rate]:
    """Return the learning rate of each optimizer at this step; every distinct callable is called once.

    Args:
      optimizers: one per table.
      iterations: number of steps done, for schedules; None if there are no schedules.

    Returns:
      A float or a float32 scalar tensor per optimizer.
    """
    optimizers = list(optimizers)
    rates = distinct_rates(optimizers)
    values = [tf.cast(rate(iterations) if is_schedule(rate) else rate(), tf.float32) for rate in rates]
    return [
        values[next(tag for tag, rate in enumerate(rates) if rate is optimizer.learning_rate)]
        if callable(optimizer.learning_rate)
        else optimizer.learning_rate
        for optimizer in optimizers
    ]
