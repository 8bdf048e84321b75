"""Defines the training step to trace: a caller's step, or the pipeline's step over a model's `build`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.hardware_configs import embedding_feature
from embedding_core.layer import TPUEmbedding
from embedding_core.model_inputs import build_model
from embedding_core.schema import Json
from embedding_core.training.learning_rate_decay import config_with_rates, dense_optimizer
from embedding_core.training.replicated_tables import config_without_slots, keras_optimizers
from embedding_core.training.step import Trainable, new_step
from embedding_core.training_config import TrainingConfig


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
"""Called in the strategy's scope with the embedding (`tf.tpu.experimental.embedding.TPUEmbedding`, on V0
`TPUEmbeddingV0`, on V2 `TPUEmbeddingV2`; with `own_tables` the EmbeddingConfig) and the rows of a core's batch."""


class PipelineStep:
    """The pipeline's training step: the Keras layer of tables, the model of `build`, the loss, the optimizers.

    Pass it to `preflight` with `own_tables=True`.
    """

    def __init__(
        self,
        *,
        model: str,
        dense: Sequence[str],
        arguments: Json,
        training: TrainingConfig,
        steps: int = 1000,
    ) -> None:
        """Describe the step.

        Args:
          model: dotted module with `build`.
          dense: names of the dense features.
          arguments: arguments of `build`.
          training: optimizers, rates and weights of the loss.
          steps: number of steps of the run, over which rates fall.
        """
        self._model = model
        self._dense = tuple(dense)
        self._arguments = dict(arguments)
        self._training = training
        self._steps = training.steps or steps

    def __call__(self, config: EmbeddingConfig, rows: int) -> Step:
        """Make layer, model and optimizer, as training does; see `MakeStep`."""
        training, steps, done = self._training, self._steps, new_step()
        replicated = embedding_feature(tf.distribute.get_strategy()) == "V0"
        given = config_without_slots(config) if replicated else config_with_rates(config, training, done, steps)
        layer = TPUEmbedding(given, None, batch_size=rows, table_update="engine", seed=training.seed, name="embedding")
        model = build_model(self._model, config, self._dense, self._arguments)
        for_tables = keras_optimizers(config, training, steps) if replicated else None
        trainable = Trainable(layer, model, dense_optimizer(training, steps), training, done, for_tables)
        return Step(trainable.train_replica, self._inputs(config, rows))

    def _inputs(self, config: EmbeddingConfig, rows: int) -> dict[str, object]:
        """Specify a `training_inputs.Batch` of one core."""
        column = tf.TensorSpec([rows, 1], tf.float32)
        return {
            "ids": {feature.name: tf.RaggedTensorSpec([rows, None], tf.int64) for feature in config.features},
            "dense": dict.fromkeys(self._dense, column),
            "label": column,
            "weight": column,
            "rows": tf.TensorSpec([], tf.int32),
        }
