"""Builds FinalMLP (Mao et al., 2023): two MLPs over gated inputs, whose outputs are multiplied with each other.

Copy this file to write your own model; `model.arguments` in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from pipelines.models.parts import ONE_OUTPUT, inputs_vector, joined, mlp, model_of

_layers = tf_keras.layers


class BilinearHeads(tf_keras.layers.Layer):
    """Multiplies two vectors head by head: each head computes ``x W y`` from its parts x and y of the vectors."""

    def __init__(self, heads: int, name: str | None = None) -> None:
        """Take the number of heads, which must divide the widths of both vectors."""
        super().__init__(name=name)
        self._heads = heads

    def build(self, input_shape: Sequence[tf.TensorShape]) -> None:
        """Create the matrices of the heads."""
        first, second = (shape[-1] // self._heads for shape in input_shape)
        self._kernel = self.add_weight(
            name="kernel", shape=(self._heads, first, second), initializer="glorot_uniform", trainable=True
        )
        super().build(input_shape)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `[B, heads]` for `[B, n]` and `[B, m]`."""
        first, second = (tf.reshape(vector, [-1, self._heads, vector.shape[-1] // self._heads]) for vector in inputs)
        return tf.einsum("bhi,hij,bhj->bh", first, self._kernel, second)


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    first_units: Sequence[int] = (64, 32),
    second_units: Sequence[int] = (64, 32),
    gate_units: Sequence[int] = (32,),
    heads: int = 4,
    dropout: float = 0.1,
    l2: float = 1e-5,
    seed: int = 0,
    tasks: Mapping[str, int] = ONE_OUTPUT,
) -> tf_keras.Model:
    """Build the model.

    Each stream reads the inputs times a gate of its own (between 0 and 2, as in the paper, computed from all inputs).

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature, `[B, dim]`, or `[B, L, dim]` for a sequence, which is averaged over `L`.
      dense: dense features by name, `[B, 1]`.
      first_units: widths of the layers of the first stream; `heads` must divide the last one.
      second_units: widths of the layers of the second stream; `heads` must divide the last one.
      gate_units: widths of the layers of the gates.
      heads: number of products of the two streams.
      dropout: share of the values of the streams to drop while training.
      l2: weight decay of the kernels, as a penalty in the loss.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]` for each task.

    Raises:
      ConfigError: `heads` is 0 or does not divide the last width of a stream, or a stream has no layer.
    """
    del config
    for name, units in (("first_units", first_units), ("second_units", second_units)):
        if heads < 1 or not units or units[-1] % heads:
            raise ConfigError(
                f"`{name}` is {list(units)!r} and `heads` is {heads!r}: `heads` must be at least 1, and the last width "
                "a multiple of it."
            )
    inputs = inputs_vector(embeddings, dense)
    streams = []
    for index, units in enumerate((first_units, second_units)):
        gate = _layers.Dense(inputs.shape[-1], activation="sigmoid")(mlp(inputs, gate_units, l2=l2))
        gated = _layers.Multiply()([inputs, _layers.Rescaling(2.0)(gate)])
        streams.append(mlp(gated, units, l2=l2, dropout=dropout, seed=seed + 1000 * index))
    top = joined([*streams, BilinearHeads(heads)(streams)])
    return model_of([embeddings, dense], dict.fromkeys(tasks, top), tasks)
