"""Declares the one interface of what holds embedding tables, looks them up and trains them.

The layer, the trainer and the proof before a push use engines through it; `host.HostEngine` is the one that trains on
this process, and the contract test holds every engine to the same oracle.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.feature_specs import AnyTable, Ids, Weights

Gradients: TypeAlias = Sequence[tf.Tensor]
Tables: TypeAlias = Any  # a trackable: `tables.Tables`, or one of TensorFlow's embedding classes


class Lookup(NamedTuple):
    """The lookup of one batch.

    Attributes:
      activations: runs the lookup; returns float32 activations in the order of the features.
      update: trains the tables with the gradients of those activations, [*activation]; None if the tables are
        trainable variables, which a Keras optimizer updates.
    """

    activations: Callable[[], list[tf.Tensor]]
    update: Callable[[Gradients], None] | None


class Engine(abc.ABC):
    """The tables of a model, with their lookup and their training.

    Attributes:
      trains_itself: whether `Lookup.update` updates the tables.
      on_tpu: whether it runs under a TPU's strategy, real or simulated.
      tables: the trackable with the checkpoint keys `<table>` and `<table>/<slot>`.
    """

    trains_itself = True
    on_tpu = False
    tables: Tables

    @abc.abstractmethod
    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; may be called again, and by every replica.

        An engine that needs to know the shapes of a batch leaves it to the first lookup if neither argument gives them.

        Args:
          input_shapes: per-replica shapes of the flat inputs, or None if unknown.
          batch_size: rows per replica, in place of shapes.
        """

    @abc.abstractmethod
    def look_up(self, values: Sequence[Ids], weights: Sequence[Weights]) -> Lookup:
        """Prepare the lookup of one batch.

        Args:
          values: ids of each feature, in the order of the features.
          weights: weights of each feature, or None.
        """

    @abc.abstractmethod
    def tables_by_config(self) -> dict[AnyTable, tf.Variable]:
        """Return the float32 [rows, dim] tables by the caller's TableConfig."""

    @property
    def table_variables(self) -> Mapping[str, tf.Variable]:
        """Tables and slots that the engine trains, float32 [rows, dim], by `<table>` and `<table>/<slot>`.

        Empty before `build`, if Keras trains the tables, and if they are in a real TPU's memory.
        """
        return {}


class Box:
    """Carries a replica's value through a merge_call untouched."""

    def __init__(self, value: Any):
        self.value = value
