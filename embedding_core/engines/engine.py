"""Declares the interface of engines, which hold embedding tables, look up their rows and train them.

The layer, the trainer and the parity check before a push use engines through this interface. `host.HostEngine` trains
in this process. The contract test compares every engine with the same reference implementation.
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
      update: trains the tables with the gradients of those activations, one per activation; None if the tables
        are trainable variables, which a Keras optimizer updates.
    """

    activations: Callable[[], list[tf.Tensor]]
    update: Callable[[Gradients], None] | None


class Engine(abc.ABC):
    """The tables of a model, with their lookup and their training.

    Attributes:
      trains_itself: whether `Lookup.update` updates the tables; otherwise a Keras optimizer does.
      on_tpu: whether the engine runs under the strategy of a real or simulated TPU.
      tables: the trackable with the checkpoint keys `<table>` and `<table>/<slot>`.
    """

    trains_itself = True
    on_tpu = False
    tables: Tables

    @abc.abstractmethod
    def build(self, input_shapes: Sequence[tf.TensorShape] | None = None, batch_size: int | None = None) -> None:
        """Create the variables; may be called several times, and by every replica.

        If an engine needs the shapes of a batch and neither argument gives them, the first lookup builds it.

        Args:
          input_shapes: per-replica shapes of the flat inputs, or None if unknown.
          batch_size: rows per replica, instead of shapes.
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

        Empty before `build`; always empty if Keras trains the tables or a real TPU's memory holds them.
        """
        return {}

    @property
    def table_blocks(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Tables and slots in blocks of consecutive rows, by the same names; empty if no table is partitioned."""
        return {}


class ReplicaValue:
    """Wraps a replica's value, so that merge_call passes it on unchanged."""

    def __init__(self, value: Any):
        self.value = value
