"""Provides dropout whose masks depend only on a seed and on the number of previous calls."""

from __future__ import annotations

import tensorflow as tf
import tf_keras


class SeededDropout(tf_keras.layers.Layer):
    """Dropout that draws the same masks after a resume.

    Keras keeps the state of its random numbers outside of checkpoints. Here the state is a counter among the layer's
    weights, so a run that was killed and resumed draws the same masks as an undisturbed one.
    """

    def __init__(self, rate: float, seed: int = 0, name: str | None = None) -> None:
        """Drop a share `rate`, in [0, 1), of the values while training; layers need different seeds."""
        super().__init__(name=name)
        self._rate = rate
        self._seed = seed
        self._calls = self.add_weight(
            name="calls", shape=(), dtype=tf.int64, initializer="zeros", trainable=False, experimental_autocast=False
        )

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the inputs; while training, with a share of the values set to zero and the others scaled up."""
        if not training or self._rate == 0:
            return inputs
        calls = self._calls.assign_add(1)
        return tf.nn.experimental.stateless_dropout(inputs, self._rate, seed=tf.stack([self._seed, calls]))
