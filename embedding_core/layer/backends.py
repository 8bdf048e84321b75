"""What stands behind the layer: the tables where they are trained, by whom, and how they are looked up."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.engines.variables import Variables
from embedding_core.translate import Model

Unscale: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class Backend(abc.ABC):
    """Tables and slots of a layer.

    Attributes:
      trains_itself: whether the backend updates the tables, in the gradient of the layer's virtual variable;
        else they are trainable variables.
      on_tpu: whether it runs under a TPU's strategy, real or simulated.
      holder: the trackable with the checkpoint keys `<table>` and `<table>/<slot>`.
    """

    trains_itself = True
    on_tpu = False
    holder: Any

    @abc.abstractmethod
    def build(self, input_shapes: Sequence[Any] | None, batch_size: int | None) -> None:
        """Create the variables; may be called again, and by every replica.

        Args:
          input_shapes: per-replica shapes of the flat inputs, or None where they are not known.
          batch_size: per replica, in place of shapes.
        """

    @abc.abstractmethod
    def look_up(self, values: list[Any], weights: list[Any], trap: Trap) -> list[Any]:
        """Activations of the flat inputs, in their order; by `trap` where the backend trains itself."""

    @abc.abstractmethod
    def tables(self) -> dict[Any, Any]:
        """The [rows, dim] tables by the caller's TableConfig."""

    @abc.abstractmethod
    def variables(self) -> Mapping[str, tf.Variable]:
        """Tables and slots that are not Keras weights, by checkpoint key."""


Trap: TypeAlias = Callable[[Callable[[], list[Any]], Callable[[Sequence[Any]], None]], list[Any]]


def keyed_variables(model: Model, variables: Variables) -> dict[str, tf.Variable]:
    """Variables by checkpoint key: `<table>` and `<table>/<slot>`."""
    return {
        table.name if slot == "parameters" else f"{table.name}/{slot}": variable
        for table in model.tables
        for slot, variable in variables.get(table.name, {}).items()
    }
