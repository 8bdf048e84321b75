"""Builds DeepFM (Guo et al., 2017): a factorization machine (Rendle, 2010) and an MLP over the same vectors.

Without `hidden_units` it is the factorization machine alone. Copy this file to write your own model; `model.arguments`
in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from pipelines.models.parts import ONE_OUTPUT, inputs_vector, joined, mlp, model_of, of_one_width, one_vector

_layers = tf_keras.layers


class PairwiseSum(tf_keras.layers.Layer):
    """Adds up the dot products of all pairs of vectors: `[B, n, dim]` -> `[B, 1]`, in time linear in n."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return ``((sum of vectors)^2 - sum of vectors^2) / 2``, summed over dim (Rendle, 2010, lemma 3.1)."""
        whole = tf.square(tf.reduce_sum(inputs, 1)) - tf.reduce_sum(tf.square(inputs), 1)
        return 0.5 * tf.reduce_sum(whole, 1, keepdims=True)


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    hidden_units: Sequence[int] = (64, 32),
    width: int | None = None,
    dropout: float = 0.1,
    l2: float = 1e-5,
    seed: int = 0,
    tasks: Mapping[str, int] = ONE_OUTPUT,
) -> tf_keras.Model:
    """Build the model.

    The output is a linear function of three parts: the inputs, the sum of the products of all pairs of vectors, and the
    MLP's values. A token has no first-order weight of its own: its first-order term is a linear function of its row.

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature, `[B, dim]`, or `[B, L, dim]` for a sequence, which is averaged over `L`.
      dense: dense features by name, `[B, 1]`.
      hidden_units: widths of the MLP's layers; empty for no MLP.
      width: dim of the vectors that are multiplied; a linear layer maps vectors of another dim to it. None takes the
        largest dim.
      dropout: share of the MLP's values to drop while training.
      l2: weight decay of the kernels, as a penalty in the loss.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]` for each task.
    """
    del config
    vectors = [one_vector(value) for value in embeddings.values()]
    width = width or max([vector.shape[-1] for vector in vectors], default=1)
    every = of_one_width([*vectors, *dense.values()], width)
    inputs = inputs_vector(embeddings, dense)
    parts = [inputs]
    if len(every) > 1:
        parts.append(PairwiseSum()(_layers.Reshape((len(every), width))(_layers.Concatenate()(every))))
    if hidden_units:
        parts.append(mlp(inputs, hidden_units, l2=l2, dropout=dropout, seed=seed))
    return model_of([embeddings, dense], dict.fromkeys(tasks, joined(parts)), tasks)
