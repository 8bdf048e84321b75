"""Builds DLRM (Naumov et al., 2019): dot products of all pairs of feature vectors, and an MLP over them.

Copy this file to write your own model; `model.arguments` in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from pipelines.models.parts import ONE_OUTPUT, joined, mlp, model_of, of_one_width, one_vector

_layers = tf_keras.layers


class PairwiseDots(tf_keras.layers.Layer):
    """Computes the dot products of all pairs of different vectors: `[B, n, dim]` -> `[B, n (n - 1) / 2]`."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the products of (1, 0), (2, 0), (2, 1), (3, 0) and so on."""
        count = inputs.shape[1]
        rows, columns = np.tril_indices(count, -1)
        products = tf.reshape(tf.matmul(inputs, inputs, transpose_b=True), [-1, count * count])
        return tf.gather(products, rows * count + columns, axis=1)


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    bottom_units: Sequence[int] = (64,),
    top_units: Sequence[int] = (64, 32),
    width: int | None = None,
    dropout: float = 0.1,
    l2: float = 1e-5,
    seed: int = 0,
    tasks: Mapping[str, int] = ONE_OUTPUT,
) -> tf_keras.Model:
    """Build the model.

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature, `[B, dim]`, or `[B, L, dim]` for a sequence, which is averaged over `L`.
      dense: dense features by name, `[B, 1]`.
      bottom_units: widths of the MLP of the dense features.
      top_units: widths of the MLP of the products.
      width: dim of the vectors that are multiplied; a linear layer maps vectors of another dim to it. None takes the
        largest dim.
      dropout: share of the values of the upper MLP to drop while training.
      l2: weight decay of the kernels, as a penalty in the loss.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]` for each task.
    """
    del config
    vectors = [one_vector(value) for value in embeddings.values()]
    width = width or max([vector.shape[-1] for vector in vectors], default=16)
    vectors = of_one_width(vectors, width)
    bottom = []
    if dense:
        bottom = [_layers.Dense(width, activation="relu")(mlp(joined(list(dense.values())), bottom_units, l2=l2))]
    every = [*bottom, *vectors]
    products = []
    if len(every) > 1:
        products = [PairwiseDots()(_layers.Reshape((len(every), width))(_layers.Concatenate()(every)))]
    top = mlp(joined([*(bottom or vectors), *products]), top_units, l2=l2, dropout=dropout, seed=seed)
    return model_of([embeddings, dense], dict.fromkeys(tasks, top), tasks)
