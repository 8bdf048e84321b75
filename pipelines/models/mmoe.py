"""Builds a multi-gate mixture of experts (MMoE; Ma et al., 2018): each task weighs shared experts by its own gate.

Copy this file to write your own model; `model.arguments` in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from pipelines.models.parts import ONE_OUTPUT, inputs_vector, mlp, model_of

_layers = tf_keras.layers


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    experts: int = 4,
    expert_units: Sequence[int] = (64, 32),
    tower_units: Sequence[int] = (16,),
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
      experts: number of experts, each an MLP of all inputs.
      expert_units: widths of an expert's layers.
      tower_units: widths of the layers of a task's tower.
      dropout: share of the values of experts to drop while training.
      l2: weight decay of the kernels, as a penalty in the loss.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]` for each task.

    Raises:
      ConfigError: there is no expert.
    """
    del config
    if experts < 1:
        raise ConfigError(f"`experts` is {experts!r}: it must be at least 1.")
    inputs = inputs_vector(embeddings, dense)
    made = [mlp(inputs, expert_units, l2=l2, dropout=dropout, seed=seed + 100 * index) for index in range(experts)]
    tops = {}
    for task in tasks:
        gate = _layers.Dense(experts, activation="softmax", use_bias=False, name=f"gate_{task}")(inputs)
        tops[task] = mlp(mixed(made, gate), tower_units, l2=l2)
    return model_of([embeddings, dense], tops, tasks)


def mixed(experts: Sequence[tf.Tensor], gate: tf.Tensor) -> tf.Tensor:
    """Add up experts `[B, n]` with the weights of a gate `[B, experts]`."""
    stacked = _layers.Reshape((len(experts), experts[0].shape[-1]))(_layers.Concatenate()(experts))
    return _layers.Dot(axes=1)([gate, stacked])
