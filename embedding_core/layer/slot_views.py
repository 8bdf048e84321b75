"""Saves slots of a Keras optimizer under the checkpoint keys that a TPU's tables have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from embedding_core.engines.tables import Tables

KEY = "VARIABLE_VALUE"  # TensorFlow's name for the value of a variable in a checkpoint


class SlotView(Tables):
    """Saves and restores an optimizer's variable without tracking it: only the optimizer may track the variable."""

    def __init__(self, variable: tf.Variable):
        self._slot: Callable[[], tf.Variable] = lambda: variable  # an attribute that is a variable would be tracked

    def numpy(self) -> Any:
        """Return the slot's values."""
        return self._slot().numpy()

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {KEY: self._slot().read_value()}

    def _restore_from_tensors(self, restored: dict[str, Any]) -> Any:
        return self._slot().assign(restored[KEY])

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        if self not in object_map:
            object_map[self] = SlotView(tf.Variable(self._slot().read_value(), trainable=False))
        object_map[self]._slot().assign(self._slot().read_value())


class TablesWithSlots(Tables):
    """Holds tables as variables, and views of their slots, which an exported model leaves out."""

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":
            return children
        return {name: child for name, child in children.items() if not isinstance(child, SlotView)}
