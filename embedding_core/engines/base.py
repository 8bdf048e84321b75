"""What every engine behind `TPUEmbedding` does, and when.

The life of an engine, as of `tf.tpu.experimental.embedding.TPUEmbedding`:

    made ──build──► built ──enqueue──► a batch waits ──dequeue──► activations ──apply_gradients──► built
      │                        └─ training=False: the batch is looked up and needs no gradients ─┘
      └── enqueue builds by itself, from the shapes of its inputs

Off a TPU only `build` and `embedding_tables` are there.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.engines.rates import is_schedule
from embedding_core.engines.tables import new_slots, new_table, unmirrored
from embedding_core.errors import EngineError
from embedding_core.topology import row_blocks
from embedding_core.translate import Model, TableSpec

__all__ = ["Engine", "ShardInfo", "TablesOnly", "Track", "Variables", "make_variables"]

Track = Callable[[str, tf.Variable], None]
Variables = dict[str, dict[str, tf.Variable]]


class Engine(abc.ABC):
    """Tables of a model, and what looks them up and updates them."""

    def __init__(self, model: Model, track: Track, seed: int):
        self.model = model
        self.variables: Variables = {}
        self.iterations: tf.Variable | None = None
        self._track = track
        self._seed = seed

    @property
    def built(self) -> bool:
        """Whether the variables exist."""
        return bool(self.variables)

    @abc.abstractmethod
    def build(self, per_replica_input_shapes: Any = None, per_replica_batch_size: Any = None) -> None:
        """Create the variables; see `TPUEmbedding.build`."""

    @abc.abstractmethod
    def enqueue(self, features: Any, weights: Any, training: Any, name: str | None, device: str | None) -> None:
        """Hand over the ids of a batch; see `TPUEmbedding.enqueue`."""

    @abc.abstractmethod
    def dequeue(self, name: str | None) -> Any:
        """The activations of the oldest batch; see `TPUEmbedding.dequeue`."""

    @abc.abstractmethod
    def apply_gradients(self, gradients: Any, name: str | None) -> None:
        """Update the tables; see `TPUEmbedding.apply_gradients`."""

    @abc.abstractmethod
    def embedding_tables(self) -> dict[Any, tf.Variable]:
        """The tables by the caller's TableConfig."""

    def _create(self, hosts: int = 1) -> None:
        made = make_variables(self.model.tables, self._seed, hosts)
        if any(table.optimizer and is_schedule(table.optimizer.learning_rate) for table in self.model.tables):
            self.iterations = unmirrored(lambda: tf.Variable(0, trainable=False, dtype=tf.int64, name="iterations"))
            self._track("learning_rate/iterations", self.iterations)
        for table, own in made.items():
            for slot, variable in own.items():
                self._track(table if slot == "parameters" else f"{table}/{slot}", variable)
        self.variables = made

    def _by_config(self) -> dict[Any, tf.Variable]:
        return {table.key: self.variables[table.name]["parameters"] for table in self.model.tables}


class TablesOnly(Engine):
    """Where there is no TPU: the tables and their slots, for lookups on CPU, and to save and restore."""

    def build(self, per_replica_input_shapes: Any = None, per_replica_batch_size: Any = None) -> None:
        """Create the variables; shapes are not needed."""
        if not self.built:
            with tf.init_scope():
                self._create()

    def embedding_tables(self) -> dict[Any, tf.Variable]:
        """The tables by the caller's TableConfig; builds them where that was not done."""
        self.build()
        return self._by_config()

    def enqueue(self, features: Any, weights: Any, training: Any, name: str | None, device: str | None) -> None:
        """Refused."""
        raise _only_on_tpu("enqueue")

    def dequeue(self, name: str | None) -> Any:
        """Refused."""
        raise _only_on_tpu("dequeue")

    def apply_gradients(self, gradients: Any, name: str | None) -> None:
        """Refused."""
        raise _only_on_tpu("apply_gradients")


def _only_on_tpu(method: str) -> EngineError:
    return EngineError(
        f"{method} is not valid when TPUEmbedding object is not created under a TPUStrategy: create it in the scope of "
        "tf.distribute.TPUStrategy, or of embedding_core.engines.simulated_tpu(), or look up on CPU with "
        "embedding_core.lookup.cpu_embedding_lookup."
    )


class ShardInfo(NamedTuple):
    """What a sharding-aware initializer is told: the block of the table that it fills.

    Attributes:
      shape: (rows, dim) of the block.
      offset: (first row, 0).
    """

    shape: tuple[int, int]
    offset: tuple[int, int]


def make_variables(tables: tuple[TableSpec, ...], seed: int, hosts: int) -> Variables:
    """Single, unmirrored variables of tables and slots, at their first values.

    Args:
      tables: the tables.
      seed: of default rows.
      hosts: how many blocks of rows a sharding-aware initializer (one with an argument `shard_info`) fills.

    Returns:
      By table name, then "parameters" or the name of the slot; each float32 [rows, dim].
    """
    return unmirrored(lambda: {table.name: _variables_of(table, seed, hosts) for table in tables})


def _variables_of(table: TableSpec, seed: int, hosts: int) -> dict[str, tf.Variable]:
    own = {"parameters": _parameters(table, seed, hosts)}
    if table.optimizer is not None:
        slots = new_slots(table.optimizer, table=table.name, rows=table.rows, dim=table.dim)
        own |= {key[len(table.name) + 1 :]: variable for key, variable in slots}
    return own


def _parameters(table: TableSpec, seed: int, hosts: int) -> tf.Variable:
    initializer = table.initializer
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
