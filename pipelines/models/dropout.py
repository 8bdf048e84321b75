"""Dropout whose masks are a function of a seed and of the number of calls so far."""

from __future__ import annotations

import tensorflow as tf
import tf_keras

__all__ = ["SeededDropout"]


class SeededDropout(tf_keras.layers.Layer):
    """Dropout that a resumed training continues where it was.

    Keras keeps the state of its random numbers outside of checkpoints; here it is a counter among the
    layer's weights, so that a run that was killed and resumed draws the masks it would have drawn.
    """

    def __init__(self, rate: float, seed: int = 0, name: str | None = None) -> None:
        """Drop a share `rate` of the values while training, in [0, 1); `seed` tells layers apart."""
        super().__init__(name=name)
        self._rate = rate
        self._seed = seed
        self._calls = self.add_weight(
            name="calls", shape=(), dtype=tf.int64, initializer="zeros", trainable=False, experimental_autocast=False
        )

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """`inputs`, while training with a share of the values zero and the others scaled up to make up for it."""
        if not training or self._rate == 0:
            return inputs
        calls = self._calls.assign_add(1)
        return tf.nn.experimental.stateless_dropout(inputs, self._rate, seed=tf.stack([self._seed, calls]))
