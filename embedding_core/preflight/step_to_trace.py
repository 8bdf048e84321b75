"""Defines the training step to trace: a caller's step, or the pipeline's step over a model's `build`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.hardware_configs import embedding_feature
from embedding_core.model_inputs import length_name
from embedding_core.schema import Json
from embedding_core.tasks import Task
from embedding_core.training.softmax_candidates import CANDIDATE, COMPETES, LOG_Q
from embedding_core.training.step import new_trainable
from embedding_core.training_config import TrainingConfig

_STEPS = 1000  # steps over which learning rates decay if the training is given in epochs


class Step(NamedTuple):
    """One core's part of a training step.

    Attributes:
      replica: function that `strategy.run` calls with the core's batch.
      inputs: structure of the batch in `tf.TypeSpec`, with a static number of rows.
      before: function called before `strategy.run` with the batches of all cores, a `tf.distribute.DistributedValues`
        for each part; for steps that enqueue on the host.
    """

    replica: Callable[[Any], Any]
    inputs: Any
    before: Callable[[Any], Any] | None = None


MakeStep: TypeAlias = Callable[[Any, int], Step]
"""Called in the strategy's scope with the embedding and the batch size of a core. The embedding is TensorFlow's
`TPUEmbedding`, on V0 `TPUEmbeddingV0`, on V2 `TPUEmbeddingV2`; with `own_tables` it is the EmbeddingConfig."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """The pipeline's training step: the Keras layer of tables, the model of `build`, the loss, the optimizers.

    Pass it to `preflight` with `own_tables=True`.

    Attributes:
      model: dotted module with `build`.
      dense: names of the dense features.
      arguments: arguments of `build`.
      training: optimizers, rates and weights of the loss.
      tasks: what the model is trained for.
    """

    model: str
    dense: Sequence[str]
    arguments: Json
    training: TrainingConfig
    tasks: Sequence[Task] = (Task(),)

    def __call__(self, config: EmbeddingConfig, rows: int) -> Step:
        """Make layer, model and optimizer, as training does; see `MakeStep`."""
        trainable = new_trainable(
            config,
            self.training,
            model=self.model,
            dense=self.dense,
            arguments=self.arguments,
            tasks=self.tasks,
            rows=rows,
            steps=self.training.steps or _STEPS,
            replicated=embedding_feature(tf.distribute.get_strategy()) == "V0",
        )
        return Step(trainable.train_replica, self._inputs(config, rows))

    def _inputs(self, config: EmbeddingConfig, rows: int) -> dict[str, object]:
        """Specify a `training_inputs.Batch` of one core."""
        column = tf.TensorSpec([rows, 1], tf.float32)
        lengths = [length_name(feature.name) for feature in config.features if feature.max_sequence_length]
        number = tf.TensorSpec([rows, 1], tf.int32)
        softmax = {CANDIDATE: number, LOG_Q: column, COMPETES: number}
        return {
            **({"softmax": softmax} if self.training.softmax else {}),
            **({"lengths": dict.fromkeys(lengths, column)} if lengths else {}),
            "ids": {feature.name: tf.RaggedTensorSpec([rows, None], tf.int64) for feature in config.features},
            "dense": dict.fromkeys(self.dense, column),
            "label": tf.TensorSpec([rows, len(self.tasks)], tf.float32),
            "weight": column,
            "rows": tf.TensorSpec([], tf.int32),
        }
