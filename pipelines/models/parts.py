"""Provides the parts that several models are built of: vectors of features, MLPs, dropout, and one output per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf
import tf_keras

_layers = tf_keras.layers

ONE_OUTPUT: Mapping[str, int] = MappingProxyType({"label": 1})
"""The argument `tasks` of a model of one task, whose output has one column."""


def one_vector(activation: tf.Tensor) -> tf.Tensor:
    """Return `[B, dim]` unchanged, and a sequence `[B, L, dim]` as the mean over its positions."""
    return activation if len(activation.shape) == 2 else _layers.GlobalAveragePooling1D()(activation)


def joined(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenate the columns of one or more tensors `[B, n]`."""
    return _layers.Concatenate()(tensors) if len(tensors) > 1 else tensors[0]


def inputs_vector(embeddings: Mapping[str, tf.Tensor], dense: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Concatenate the vectors of all features and the dense values, `[B, n]`."""
    return joined([*map(one_vector, embeddings.values()), *dense.values()])


def of_one_width(vectors: Sequence[tf.Tensor], width: int) -> list[tf.Tensor]:
    """Map each vector `[B, n]` of another width to `[B, width]` by a linear layer without a bias."""
    return [vector if vector.shape[-1] == width else _layers.Dense(width, use_bias=False)(vector) for vector in vectors]


def mlp(inputs: tf.Tensor, units: Sequence[int], *, l2: float = 0.0, dropout: float = 0.0, seed: int = 0) -> tf.Tensor:
    """Apply dense layers with ReLU, each followed by dropout; without `units` return the inputs.

    Args:
      inputs: `[B, n]`.
      units: widths of the layers.
      l2: weight decay of the kernels, as a penalty in the loss.
      dropout: share of the values to drop while training.
      seed: seed of the first layer's dropout; each further layer takes the next number.
    """
    regularizer = tf_keras.regularizers.L2(l2) if l2 else None
    for index, width in enumerate(units):
        inputs = _layers.Dense(width, activation="relu", kernel_regularizer=regularizer)(inputs)
        inputs = SeededDropout(dropout, seed=seed + index)(inputs) if dropout else inputs
    return inputs


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


class FirstColumn(tf_keras.layers.Layer):
    """Splits `[B, n]` into the first column, `[B, 1]`, and the others, `[B, n - 1]`."""

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return both parts."""
        return inputs[:, :1], inputs[:, 1:]


def model_of(
    inputs: Sequence[Mapping[str, tf.Tensor]],
    tops: Mapping[str, tf.Tensor],
    tasks: Mapping[str, int],
    first_order: tf.Tensor | None = None,
    *,
    scale: float = 1.0,
) -> tf_keras.Model:
    """Make the model that computes one output `[B, width]` for each task.

    Args:
      inputs: activations by feature, dense features by name, and lengths of sequences if the model reads them.
      tops: by task name, the tensor `[B, n]` from which a linear layer computes the task's output.
      tasks: by task name, the width of the task's output.
      first_order: `[B, 1]`; its product with a trained number is added to each output of width 1. None adds nothing.
      scale: initial value of the trained number.
    """

    def output(task: str, top: tf.Tensor, name: str, first_name: str) -> tf.Tensor:
        value = _layers.Dense(tasks[task], name=name)(top)
        if first_order is None or tasks[task] > 1:
            return value
        start = tf_keras.initializers.Constant(scale)
        times = _layers.Dense(1, use_bias=False, kernel_initializer=start, name=first_name)
        return _layers.Add()([value, times(first_order)])

    if len(tops) == 1:
        ((task, top),) = tops.items()
        return tf_keras.Model([dict(part) for part in inputs], output(task, top, "logit", "first_order"))
    outputs = {task: output(task, top, f"output_{task}", f"first_order_{task}") for task, top in tops.items()}
    return tf_keras.Model([dict(part) for part in inputs], outputs)
