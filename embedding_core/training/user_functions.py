"""Calls the functions that a user's module may have beside `build`: `row_loss`, and `eval_metrics`.

`row_loss(task, label, output)` replaces the loss of a task. It gets the task's name, the labels `[B, 1]` (0 if missing)
and the model's outputs `[B, width]`, both float32. It returns the loss of each row, `[B, 1]`, or None for the usual
loss. The trainer applies weights, leaves out missing labels and takes the mean over all replicas, so the loss does
not depend on the kind and number of devices.

`eval_metrics(task, label, prediction, weight)` computes figures of an evaluation from numpy arrays of the rows with a
label and a weight above 0. Labels and weights are `[n]`. Predictions are as the signatures return them: `[n]`, or
`[n, classes]` for a multiclass task. It returns numbers by name, or None.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.model_inputs import row_losses
from embedding_core.tasks import Task

Floats: TypeAlias = npt.NDArray[np.float64]

ARGUMENTS = {"row_loss": ("task", "label", "output"), "eval_metrics": ("task", "label", "prediction", "weight")}
"""The functions, and the names of their arguments."""


class UserFunctions:
    """The functions `row_loss` and `eval_metrics` of a user's module, if it has them."""

    def __init__(self, module: str) -> None:
        """Import the module.

        Args:
          module: dotted name of the module with `build`.

        Raises:
          ConfigError: a function does not have the arguments of `ARGUMENTS`.
        """
        self._module = module
        imported = importlib.import_module(module)
        self._row_loss = _function(imported, "row_loss")
        self._eval_metrics = _function(imported, "eval_metrics")

    @property
    def has_row_loss(self) -> bool:
        """Whether the module has a loss of its own."""
        return self._row_loss is not None

    def row_losses(self, task: Task, label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Compute the loss of each row, `[B, 1]`; see `embedding_core.model_inputs.row_losses`.

        Raises:
          ConfigError: the function of the user does not return a loss for each row.
        """
        missing = tf.math.is_nan(label)
        known = tf.where(missing, tf.zeros_like(label), label)
        given = (tf.cast(part, tf.float32) for part in (known, output))  # evaluations compute with float64
        losses = None if self._row_loss is None else self._row_loss(task.name, *given)
        if losses is None:
            return row_losses(task, label, output)
        losses = tf.convert_to_tensor(losses)
        if losses.shape.rank not in (1, 2) or losses.shape[1:] not in ([], [1]):
            raise ConfigError(
                f"`row_loss` of module {self._module!r} returned the shape {losses.shape}: it must return the loss of "
                "each row, (None, 1); the trainer computes the mean."
            )
        losses = tf.cast(tf.reshape(losses, [-1, 1]), output.dtype)
        return tf.where(missing, tf.zeros_like(losses), losses)

    def metrics(self, task: Task, label: Floats, prediction: Floats, weight: Floats) -> dict[str, float]:
        """Compute the figures of a task from the rows that have its label and a weight above 0.

        Args:
          task: the task.
          label: `[n]`; NaN for a row without the label.
          prediction: `[n, width]`; width is 1 unless the task is multiclass.
          weight: `[n]`.

        Raises:
          ConfigError: the function of the user does not return a number for each name.
        """
        chosen = ~np.isnan(label) & (weight > 0)
        if self._eval_metrics is None or not chosen.any():
            return {}
        given = prediction[chosen] if task.is_multiclass else prediction[chosen, 0]
        found = self._eval_metrics(task.name, label[chosen], given, weight[chosen])
        try:
            return {str(name): float(value) for name, value in dict(found or {}).items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`eval_metrics` of module {self._module!r} returned {found!r}: it must return a number for each name, "
                "in a mapping, or None."
            ) from error


def _function(module: Any, name: str) -> Callable[..., Any] | None:
    """Return the function of that name; None if the module has no such name, or it is not a function."""
    function = getattr(module, name, None)
    if not isinstance(function, FunctionType):
        return None
    taken = tuple(inspect.signature(function).parameters)
    if taken != ARGUMENTS[name]:
        raise ConfigError(
            f"`{name}` of module {module.__name__!r} has the arguments {', '.join(taken)}: it must have "
            f"{', '.join(ARGUMENTS[name])}; rename it if it is not for the trainer."
        )
    return function
