"""Builds a ranking model with target attention (DIN; Zhou et al., 2018): a history is weighed by the candidate.

Copy this file to write your own model; `model.arguments` in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from pipelines.models.attention import MaskedMean, TargetAttention
from pipelines.models.parts import ONE_OUTPUT, joined, mlp, model_of


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    histories: Sequence[str],
    target: str,
    attention_units: Sequence[int] = (32,),
    hidden_units: Sequence[int] = (64, 32),
    dropout: float = 0.1,
    l2: float = 1e-5,
    seed: int = 0,
    tasks: Mapping[str, int] = ONE_OUTPUT,
    lengths: Mapping[str, tf.Tensor],
) -> tf_keras.Model:
    """Build the model.

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature; sequences that are not among `histories` are averaged.
      dense: dense features by name, `[B, 1]`.
      histories: names of the sequence features that the target weighs; their dim must be the target's.
      target: name of the candidate's feature.
      attention_units: widths of the hidden layers that compute the weight of a position.
      hidden_units: widths of the MLP's layers.
      dropout: share of the MLP's values to drop while training.
      l2: weight decay of the MLP's kernels, as a penalty in the loss.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.
      lengths: lengths of the sequence features `[B, 1]`, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]` for each task.

    Raises:
      ConfigError: a history is not a sequence, or its dim is not that of the target.
    """
    del config
    if target not in embeddings or len(embeddings[target].shape) != 2:
        raise ConfigError(f"`target` is {target!r}: it must be a feature of one vector, of {list(embeddings)}.")
    dim = embeddings[target].shape[-1]
    for name in histories:
        if name not in lengths or embeddings[name].shape[-1] != dim:
            raise ConfigError(
                f"`histories` names {name!r}: it must be a feature with `max_sequence_length`, {list(lengths)}, and of "
                f"the dim of {target!r}, {dim}, as in one table."
            )

    def vector(name: str) -> tf.Tensor:
        if name in histories:
            return TargetAttention(attention_units)([embeddings[name], lengths[name], embeddings[target]])
        return MaskedMean()([embeddings[name], lengths[name]]) if name in lengths else embeddings[name]

    vectors = [*map(vector, embeddings), *dense.values()]
    top = mlp(joined(vectors), hidden_units, l2=l2, dropout=dropout, seed=seed)
    return model_of([embeddings, dense, lengths], dict.fromkeys(tasks, top), tasks)
