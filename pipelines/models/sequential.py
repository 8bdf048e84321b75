"""Builds a sequential retrieval model (SASRec; Kang and McAuley, 2018): a history, read by causal self-attention.

The query vector is that of the history's last position; the candidate vector is the row of the candidate's token. Give
history and candidate one table, so that an item has one vector in both. Train the model with `training.softmax`. Copy
this file to write your own model; `model.arguments` in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import length_name
from pipelines.models.attention import last_of_causal_blocks
from pipelines.models.two_tower import TwoTower, UnitLength

_layers = tf_keras.layers


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    history: str,
    candidate: str,
    blocks: int = 2,
    heads: int = 1,
    dropout: float = 0.2,
    normalize: bool = False,
    seed: int = 0,
    lengths: Mapping[str, tf.Tensor],
) -> TwoTower:
    """Build the model.

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature.
      dense: dense features; unused here.
      history: name of the sequence feature with the earlier candidates in the order of time.
      candidate: name of the candidate's feature; its dim must be that of the history.
      blocks: number of blocks of attention, at least 1.
      heads: number of heads of the attention.
      dropout: share of the values to drop while training.
      normalize: whether query and candidate vectors are scaled to the length 1, as in `two_tower`; true by default in a
        configuration with `training.softmax`.
      seed: seed of the dropout masks.
      lengths: lengths of the sequence features `[B, 1]`, which the trainer gives.

    Returns:
      A model from the history, its length and the candidate to logits `[B, 1]`.

    Raises:
      ConfigError: a feature is unknown, the history is not a sequence, `blocks` is 0, or `heads` does not fit.
    """
    del config, dense
    if history not in lengths:
        raise ConfigError(
            f"`history` is {history!r}: it must be a feature with `max_sequence_length`, {list(lengths)}."
        )
    if candidate not in embeddings or len(embeddings[candidate].shape) != 2:
        raise ConfigError(f"`candidate` is {candidate!r}: it must be a feature of one vector, of {list(embeddings)}.")
    if blocks < 1:
        raise ConfigError(f"`blocks` is {blocks!r}: it must be at least 1.")
    sequence, length, target = embeddings[history], lengths[history], embeddings[candidate]
    dim = target.shape[-1]
    if heads < 1 or sequence.shape[-1] != dim or dim % heads:
        raise ConfigError(
            f"`history` has dim {sequence.shape[-1]}, `candidate` {dim}, and `heads` is {heads!r}: the dims must be "
            "equal, as in one table, and `heads` must divide them and be at least 1."
        )
    query = last_of_causal_blocks(sequence, length, blocks=blocks, heads=heads, dropout=dropout, seed=seed)
    vector = target
    if normalize:
        query, vector = UnitLength()(query), UnitLength()(target)
    logit = _layers.Dot(axes=1, name="logit")([query, vector])
    read_by_query = {history: sequence, length_name(history): length}
    model = TwoTower([read_by_query, {candidate: target}], logit)
    model.query_features, model.candidate_features = (history,), (candidate,)
    model.query_tower = tf_keras.Model(read_by_query, query)
    model.candidate_tower = tf_keras.Model({candidate: target}, vector)
    return model
