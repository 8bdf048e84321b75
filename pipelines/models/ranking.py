"""Builds a ranking model: a first-order term, explicit crosses (DCN-v2), an MLP, and one output per task.

With `first_order`, the first column of each row is its token's first-order term: as in a logistic regression, it is
added to the output. The crosses and the MLP read the other columns and the dense features.

Copy this file to write your own model: any module is a model if it has a function `build` with the same first
three arguments. `model.arguments` in the configuration sets its keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from pipelines.models.parts import ONE_OUTPUT, FirstColumn, inputs_vector, joined, mlp, model_of, one_vector

_layers = tf_keras.layers
# Adagrad moves the output by the square of this, so first-order terms learn four times as fast as other columns.
_FIRST_ORDER_SCALE = 2.0


def _cross(
    start: tf.Tensor, current: tf.Tensor, rank: int, regularizer: tf_keras.regularizers.Regularizer
) -> tf.Tensor:
    """Apply a cross of DCN-v2 (Wang et al., 2021): ``x0 * (U V x + b) + x``, with U V of low rank."""
    narrow = _layers.Dense(rank, use_bias=False, kernel_regularizer=regularizer)(current)
    wide = _layers.Dense(start.shape[-1], kernel_regularizer=regularizer)(narrow)
    return _layers.Add()([_layers.Multiply()([start, wide]), current])


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    hidden_units: Sequence[int] = (64, 32),
    cross_layers: int = 2,
    cross_rank: int = 16,
    dropout: float = 0.1,
    l2: float = 1e-5,
    first_order: bool = False,
    seed: int = 0,
    tasks: Mapping[str, int] = ONE_OUTPUT,
) -> tf_keras.Model:
    """Build the model; several tasks share all layers but the last (a shared bottom).

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature, `[B, dim]`, or `[B, L, dim]` for a sequence.
      dense: dense features by name, `[B, 1]`.
      hidden_units: widths of the MLP's layers.
      cross_layers: number of crosses; 0 for none.
      cross_rank: rank of a cross's matrix.
      dropout: share of the MLP's values to drop while training.
      l2: weight decay of the kernels of the crosses and the MLP, as a penalty in the loss; 1e-4 by default in the
        configuration.
      first_order: whether the first column of each row is its first-order term; true by default in the configuration.
        If false, the crosses and the MLP read this column, as in models trained by previous releases. If a row has
        only this column, they read it in any case. The classes of a multiclass label have no first-order term.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]`: a logit for a binary label, a logit for each class of a
      multiclass label, the value of a regression label, or the logarithm of an expected count. With several tasks, it
      returns a mapping of such outputs.
    """
    del config
    regularizer = tf_keras.regularizers.L2(l2)
    vectors = {name: one_vector(value) for name, value in embeddings.items()}
    first = None
    if first_order and vectors and 1 in tasks.values():
        parts = {name: FirstColumn()(vector) for name, vector in vectors.items()}
        columns = [column for column, _ in parts.values()]
        first = _layers.Add()(columns) if len(columns) > 1 else columns[0]
        vectors = {name: rest if rest.shape[-1] else column for name, (column, rest) in parts.items()}
    start = inputs_vector(vectors, dense)
    crossed = start
    for _ in range(cross_layers):
        crossed = _cross(start, crossed, cross_rank, regularizer)
    deep = mlp(start, hidden_units, l2=l2, dropout=dropout, seed=seed)
    tops = dict.fromkeys(tasks, joined([crossed, deep]))
    return model_of([embeddings, dense], tops, tasks, first, scale=_FIRST_ORDER_SCALE)
