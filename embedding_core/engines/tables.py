"""Creates, names and fills the tables and slots of an engine."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import Optimizer

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
