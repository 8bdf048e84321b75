"""Completes `keras_package` for tf_keras: its optimizers of both generations, and refusals of Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.errors import ConfigError
from embedding_core.layer.call_stack import called_by_keras_3, running_loss_scaler
from embedding_core.layer.keras_package import Keras, LossScaler
from embedding_core.translate import OPTIMIZERS, GivenOptimizer, KerasSlots, OptimizerKind

legacy = tf_keras.optimizers.legacy
new = tf_keras.optimizers


class _TfKeras(Keras):
    """tf_keras, with two generations of optimizers."""

    name = "tf_keras"
    package = tf_keras
    kinds: Mapping[type, OptimizerKind] = {
        getattr(generation, kind.keras): kind for kind in OPTIMIZERS if kind.keras for generation in (legacy, new)
    }
    loss_scaler = tf_keras.mixed_precision.LossScaleOptimizer

    def is_optimizer(self, optimizer: GivenOptimizer) -> bool:
        return isinstance(optimizer, legacy.Optimizer | new.Optimizer)

    def rate_of(self, optimizer: GivenOptimizer, config: Mapping[str, Any]) -> Callable[[], tf.Tensor]:
        _ = optimizer.iterations  # older optimizers create it at the first use, which must not be inside a step
        if not isinstance(config["learning_rate"], dict):
            _ = optimizer.learning_rate
            return lambda: optimizer.learning_rate
        # the newer optimizers do not expose their schedule
        schedule = (
            optimizer.learning_rate
            if isinstance(optimizer, legacy.Optimizer)
            else _schedule_of(optimizer, config["learning_rate"])
        )
        return lambda: schedule(optimizer.iterations)

    def slots_of(self, optimizer: GivenOptimizer, kind: OptimizerKind) -> KerasSlots | None:
        return KerasSlots(optimizer, kind.slots) if kind.slots and isinstance(optimizer, legacy.Optimizer) else None

    def running_loss_scaler(self) -> LossScaler:
        return running_loss_scaler()

    def scale_of(self, scaler: LossScaler) -> Any:
        return scaler.loss_scale


TF_KERAS = _TfKeras()


def refuse_keras_3(layer: str, inputs: Sequence[Any]) -> None:
    """Refuse tensors of Keras 3, and calls from its models, which would not see the layer's variables.

    Raises:
      ConfigError (ValueError): an input is of Keras 3, or a model of Keras 3 calls the layer.
    """
    given = next((value for value in inputs if type(value).__module__.partition(".")[0] == "keras"), None)
    if given is None and not called_by_keras_3():
        return
    what = f"Layer {layer!r} is called by a model of Keras 3" if given is None else f"Input {given!r} is of Keras 3"
    raise ConfigError(
        f"{what}: this layer is for tf_keras; use that of `embedding_core.layer.keras3`, or set TF_USE_LEGACY_KERAS=1 "
        "before TensorFlow is imported, and import tf_keras."
    )


def translate_keras_optimizer(optimizer: GivenOptimizer) -> GivenOptimizer:
    """Translate a Keras optimizer to its namesake in `tf.tpu.experimental.embedding`, which follows the TPU's rules.

    The learning rate is read from the Keras optimizer at every step, so an assignment, a schedule or a callable takes
    effect. A schedule reads the optimizer's `iterations`, so the optimizer must be stepped.

    Args:
      optimizer: SGD, Adagrad, Adam or Ftrl of tf_keras or tf_keras.optimizers.legacy.

    Raises:
      ConfigError (ValueError): another class, or a hyperparameter that the TPU's optimizers do not have.
    """
    return TF_KERAS.translate(optimizer)


def _schedule_of(optimizer: GivenOptimizer, described: Mapping[str, Any]) -> Any:
    schedule, cause = None, None
    try:
        schedule = tf_keras.optimizers.schedules.deserialize(described)
    except (TypeError, ValueError) as error:
        cause = error
    if callable(schedule):  # for a class that is importable but not registered, Keras returns only the name
        return schedule
    raise ConfigError(
        f"`learning_rate` of {type(optimizer).__name__} is a {described.get('class_name')}, which Keras cannot "
        "create from its configuration: put @tf_keras.saving.register_keras_serializable() on the class, or use "
        f"tf_keras.optimizers.legacy.{type(optimizer).__name__}, which gives its schedule away."
    ) from cause
