"""Builds a model of progressive layered extraction (PLE; Tang et al., 2020): experts of each task beside shared ones.

Copy this file to write your own model; `model.arguments` in the configuration sets the keyword arguments of `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from pipelines.models.mmoe import mixed
from pipelines.models.parts import ONE_OUTPUT, inputs_vector, mlp, model_of

_layers = tf_keras.layers
_SHARED = ""  # key of the shared experts; the name of a task is never empty


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    levels: int = 2,
    task_experts: int = 1,
    shared_experts: int = 2,
    expert_units: Sequence[int] = (32,),
    tower_units: Sequence[int] = (16,),
    dropout: float = 0.1,
    l2: float = 1e-5,
    seed: int = 0,
    tasks: Mapping[str, int] = ONE_OUTPUT,
) -> tf_keras.Model:
    """Build the model.

    At each level, a task's gate weighs the task's experts and the shared ones, and the shared gate weighs all experts.
    At the next level, a task's experts read the output of the task's gate, and the shared experts read that of the
    shared gate. The last level has no shared gate.

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature, `[B, dim]`, or `[B, L, dim]` for a sequence, which is averaged over `L`.
      dense: dense features by name, `[B, 1]`.
      levels: number of levels of experts.
      task_experts: number of experts of each task, at each level.
      shared_experts: number of shared experts, at each level.
      expert_units: widths of an expert's layers.
      tower_units: widths of the layers of a task's tower.
      dropout: share of the values of experts to drop while training.
      l2: weight decay of the kernels, as a penalty in the loss.
      seed: seed of the dropout masks.
      tasks: width of each task's output by name, which the trainer gives.

    Returns:
      A model from all inputs to an output `[B, width]` for each task.

    Raises:
      ConfigError: a task has no expert to read.
    """
    del config
    if task_experts + shared_experts < 1:
        raise ConfigError(
            f"`task_experts` is {task_experts!r} and `shared_experts` is {shared_experts!r}: one must be at least 1."
        )
    inputs = inputs_vector(embeddings, dense)
    read = dict.fromkeys([*tasks, _SHARED], inputs)
    for level in range(levels):
        experts = {}
        for at, owner in enumerate(read):
            count = shared_experts if owner == _SHARED else task_experts
            first = seed + 10_000 * level + 1000 * at
            experts[owner] = [
                mlp(read[owner], expert_units, l2=l2, dropout=dropout, seed=first + 100 * index)
                for index in range(count)
            ]
        owners = [*tasks, _SHARED] if level < levels - 1 else list(tasks)
        read = {owner: _chosen(owner, experts, read[owner], level) for owner in owners}
    return model_of([embeddings, dense], {task: mlp(read[task], tower_units, l2=l2) for task in tasks}, tasks)


def _chosen(owner: str, experts: Mapping[str, Sequence[tf.Tensor]], inputs: tf.Tensor, level: int) -> tf.Tensor:
    """Sum the experts that the owner (a task, or the shared part) may use, weighted by a gate that reads `inputs`."""
    used = [expert for name, made in experts.items() if owner in (_SHARED, name) or name == _SHARED for expert in made]
    name = f"gate_{owner}_{level}" if owner else None
    gate = _layers.Dense(len(used), activation="softmax", use_bias=False, name=name)(inputs)
    return mixed(used, gate)
