"""Divides the gradients that train tables by the scale of a LossScaleOptimizer.

A layer that trains its tables receives the gradients before the optimizer does, so they are those of the scaled loss.
No public API tells whether a loss was scaled: TensorFlow calls a gradient function with tensors only, a tape does not
know the optimizer, a Keras layer knows neither its model nor the model's optimizer, and LossScaleOptimizer does not
list its instances. So `model.fit` and `minimize` are recognized on the call stack (`call_stack`), and any other
training loop must set the layer's `loss_scale_optimizer`. If it remains unknown whether the loss is scaled, computing
the gradient raises an error: after a wrong guess, at the default initial scale, the tables would be trained 32,768
times too fast.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.engines.engine import Gradients
from embedding_core.errors import ConfigError, EngineError
from embedding_core.layer.call_stack import known_loss_scaler, running_loss_scaler

LossScaler: TypeAlias = Any  # a tf_keras.mixed_precision.LossScaleOptimizer, or None


class LossScale:
    """Finds the scale of one layer's loss, and removes it from gradients.

    Attributes:
      optimizer: the LossScaleOptimizer that the user set, or None.
    """

    def __init__(self) -> None:
        self.optimizer: LossScaler = None
        self._none_scales = False  # whether the user set the optimizer to None

    def name(self, optimizer: LossScaler) -> None:
        """Set the optimizer that scales the loss; None means that the loss is not scaled.

        Raises:
          ConfigError (ValueError): it is not a LossScaleOptimizer.
        """
        if optimizer is not None and not hasattr(optimizer, "loss_scale"):
            raise ConfigError(f"`loss_scale_optimizer` is {type(optimizer)}: it must be a Keras LossScaleOptimizer.")
        self.optimizer = optimizer
        self._none_scales = optimizer is None

    def unscaled(self, gradients: Gradients, layer: str, compute_dtype: str) -> Gradients:
        """Return the gradients of the unscaled loss; zeros if any is not finite, as the optimizer skips such a step.

        Args:
          gradients: gradients of the activations.
          layer: name of the layer, for messages.
          compute_dtype: compute dtype of the activations.

        Raises:
          EngineError (RuntimeError): it is unknown whether the loss is scaled.
        """
        optimizer = self._scaler(layer, compute_dtype)
        if optimizer is None:
            return gradients
        unscaled = [gradient / tf.cast(optimizer.loss_scale, gradient.dtype) for gradient in gradients]
        finite = _everywhere(tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in unscaled]))
        return [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in unscaled]

    def _scaler(self, layer: str, compute_dtype: str) -> LossScaler:
        """Return the LossScaleOptimizer that scaled the loss, or None."""
        named, running = self.optimizer, running_loss_scaler()
        if named is not None and running is not None and running is not named:
            raise EngineError(
                f"`loss_scale_optimizer` of layer {layer!r} is {named!r}, and gradients are computed by "
                f"{running!r}: set it to the one that the model is trained with."
            )
        if named is not None or running is not None:
            return running if named is None else named
        if self._none_scales or (compute_dtype != "float16" and known_loss_scaler() is None):
            return None
        raise EngineError(
            f"Layer {layer!r} trains its tables itself, and its gradients may be those of a scaled loss: the "
            "policy is 'mixed_float16', or the training step has a LossScaleOptimizer. Set the layer's "
            "`loss_scale_optimizer` to it, or to None if the loss is not scaled. `model.fit` and `minimize` need "
            "neither; the policy 'mixed_bfloat16' needs no LossScaleOptimizer."
        )


def _everywhere(condition: tf.Tensor) -> tf.Tensor:
    """Return whether a condition holds in every replica, as the optimizer skips a step in all replicas or in none."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return condition
    return tf.equal(context.all_reduce("sum", tf.cast(tf.logical_not(condition), tf.float32)), 0.0)
