"""What every engine behind `TPUEmbedding` does, and when.

The life of an engine, as of `tf.tpu.experimental.embedding.TPUEmbedding`:

    made ──build──► built ──enqueue──► a batch waits ──dequeue──► activations ──apply_gradients──► built
      │                        └─ training=False: the batch is looked up and needs no gradients ─┘
      └── enqueue builds by itself, from the shapes of its inputs

Off a TPU only `build` and `embedding_tables` are there.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from embedding_core.engines.variables import Variables, plain_variables
from embedding_core.errors import EngineError
from embedding_core.translate import Model

Track = Callable[[str, tf.Variable], None]


class Engine(abc.ABC):
    """Tables of a model, and what looks them up and updates them.

    Attributes:
      on_tpu: whether the engine looks up and updates by itself.
      model: tables and features.
      variables: by table name, then "parameters" or the name of a slot; empty before `build`.
    """

    on_tpu = True

    def __init__(self, model: Model, track: Track, seed: int):
        self.model = model
        self.variables: Variables = {}
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

    def _adopt(self, variables: Variables) -> None:
        """Hold variables, and have them saved under upstream's keys; slots that another object made are its own."""
        for table in self.model.tables:
            for slot, variable in variables[table.name].items():
                if slot == "parameters":
                    self._track(table.name, variable)
                elif table.slot_creator is None or self.on_tpu:
                    self._track(f"{table.name}/{slot}", variable)
        self.variables = variables

    def _by_config(self) -> dict[Any, tf.Variable]:
        return {table.key: self.variables[table.name]["parameters"] for table in self.model.tables}


class TablesOnly(Engine):
    """Where there is no TPU: the tables and their slots, for lookups on CPU, and to save and restore.

    The tables are trainable, as upstream: a Keras optimizer may train them.
    """

    on_tpu = False

    def build(self, per_replica_input_shapes: Any = None, per_replica_batch_size: Any = None) -> None:
        """Create the variables; shapes are not needed."""
        if not self.built:
            with tf.init_scope():
                self._adopt(plain_variables(self.model.tables, self._seed))

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
