"""The training step that is traced: the caller's own, or the pipeline's over a model's `build`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import build_model, call_model
from embedding_core.optimizers import FTRL, SGD, Adagrad, Adam, Optimizer
from embedding_core.training.config import TrainingConfig
from embedding_core.training.rates import config_with_rates, dense_optimizer
from embedding_core.training.step import new_step, weighted_loss

__all__ = ["MakeStep", "PipelineStep", "Step"]

# The Keras optimizers that train tables on V0, and what of a table's optimizer they can be told by the same name.
_KERAS_NAMESAKES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    SGD: ("SGD", ()),
    Adagrad: ("Adagrad", ("initial_accumulator_value",)),
    Adam: ("Adam", ("beta_1", "beta_2", "epsilon")),
    FTRL: (
        "Ftrl",
        (
            *("learning_rate_power", "initial_accumulator_value", "beta"),
            *("l1_regularization_strength", "l2_regularization_strength"),
        ),
    ),
}


class Step(NamedTuple):
    """One core's part of a training step.

    Attributes:
      replica: what `strategy.run` calls, with one argument: the core's batch.
      inputs: the batch's structure of `tf.TypeSpec`, with a static number of rows.
      before: what is called before `strategy.run` with the batches of all cores, a `tf.distribute.DistributedValues`
        for each part; for steps that enqueue on the host.
    """

    replica: Callable[[Any], Any]
    inputs: Any
    before: Callable[[Any], Any] | None = None


MakeStep: TypeAlias = Callable[[Any, int], Step]
"""Called in the strategy's scope with the embedding (`tf.tpu.experimental.embedding.TPUEmbedding`, on V0
`TPUEmbeddingV0`, on V2 `TPUEmbeddingV2`) and the number of rows of a core's batch; makes model and optimizer."""


class PipelineStep:
    """What EmbeddingTrainer's step does on a TPU: enqueue, dequeue, the model, both optimizers."""

    def __init__(
        self,
        config: EmbeddingConfig,
        *,
        model: str,
        dense: Sequence[str],
        arguments: Mapping[str, Any],
        training: TrainingConfig,
        steps: int = 1000,
    ) -> None:
        """Describe the step.

        Args:
          config: tables and features.
          model: dotted module with `build`.
          dense: names of the dense features.
          arguments: of `build`.
          training: optimizers, rates and the loss' weights.
          steps: of the run, over which rates fall.
        """
        self._config = config
        self._build = (model, config, tuple(dense), dict(arguments))
        self._training = training
        self._steps = steps
        self._done: tf.Variable | None = None

    def with_rates(self, config: EmbeddingConfig) -> EmbeddingConfig:
        """The configuration with an optimizer in every table, whose rate follows the training's `decay`."""
        self._done = new_step()
        return config_with_rates(config, self._training, self._done, self._steps)

    def __call__(self, embedding: Any, rows: int) -> Step:
        """Make the model and the step; see `MakeStep`."""
        model = build_model(*self._build)
        optimizer = dense_optimizer(self._training, self._steps)
        optimizer.build(model.trainable_variables)
        core = _CoreStep(model, optimizer, embedding, self._training, self._done)
        if isinstance(embedding, tf.tpu.experimental.embedding.TPUEmbeddingV0):
            trained = core.with_replicated_tables(self._config)
        elif isinstance(embedding, tf.tpu.experimental.embedding.TPUEmbeddingV2):
            trained = core.with_sparse_cores
        else:
            trained = core.with_engine
        return Step(trained, self._inputs(rows))

    def _inputs(self, rows: int) -> dict[str, Any]:
        _, config, dense, _ = self._build
        column = tf.TensorSpec([rows, 1], tf.float32)
        return {
            "ids": {feature.name: tf.RaggedTensorSpec([rows, None], tf.int64) for feature in config.features},
            "dense": dict.fromkeys(dense, column),
            "label": column,
            "weight": column,
        }


class _CoreStep(NamedTuple):
    model: tf_keras.Model
    optimizer: Any
    embedding: Any
    training: TrainingConfig
    done: tf.Variable | None

    def with_engine(self, batch: Mapping[str, Any]) -> tf.Tensor:
        """One step with an embedding engine; the loss."""
        self.embedding.enqueue(batch["ids"])
        activations = self.embedding.dequeue()
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(activations)
            loss = self._loss(activations, batch)
        for_tables, for_model = tape.gradient(loss, (activations, variables))
        self.embedding.apply_gradients(for_tables)
        self._update(for_model, variables)
        return loss

    def with_sparse_cores(self, batch: Mapping[str, Any]) -> tf.Tensor:
        """One step with SparseCores; the loss."""
        activations, looked_up = self.embedding(batch["ids"])
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(activations)
            loss = self._loss(activations, batch)
        for_tables, for_model = tape.gradient(loss, (activations, variables))
        self.embedding.apply_gradients(for_tables, looked_up)
        self._update(for_model, variables)
        return loss

    def with_replicated_tables(self, config: EmbeddingConfig) -> Callable[[Mapping[str, Any]], tf.Tensor]:
        """One step with whole tables on every core, trained by Keras' namesakes of their optimizers."""
        tables = {key.name: table for key, table in self.embedding.embedding_tables.items()}
        optimizers = {table.name: _keras_namesake(table.optimizer) for table in config.tables}
        for name, table in tables.items():
            optimizers[name].build([table])

        def step(batch: Mapping[str, Any]) -> tf.Tensor:
            variables = self.model.trainable_variables
            with tf.GradientTape() as tape:
                loss = self._loss(self.embedding(batch["ids"]), batch)
            for_tables, for_model = tape.gradient(loss, (tables, variables))
            for name, table in tables.items():
                optimizers[name].apply_gradients([(for_tables[name], table)])
            self._update(for_model, variables)
            return loss

        return step

    def _loss(self, activations: Mapping[str, tf.Tensor], batch: Mapping[str, Any]) -> tf.Tensor:
        logit = call_model(self.model, activations, batch["dense"], training=True)
        rows = weighted_loss(batch["label"], logit, batch["weight"], self.training.class_weights)
        loss = tf.reduce_mean(rows) + tf.add_n(self.model.losses or [0.0])
        if self.training.embedding_l2:
            squares = tf.add_n([tf.reduce_sum(tf.square(activation)) for activation in activations.values()])
            loss += self.training.embedding_l2 * squares / tf.cast(tf.size(batch["label"]), tf.float32)
        return loss

    def _update(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        if variables:
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if self.done is not None:
            self.done.assign_add(1)


def _keras_namesake(optimizer: Optimizer | None) -> Any:
    if optimizer is None or type(optimizer) not in _KERAS_NAMESAKES:
        raise ConfigError(
            f"{type(optimizer).__name__} as the optimizer of a table: a TPU without an embedding engine (V0) trains "
            "tables with Keras' optimizers, which have no namesake of it; choose SGD, Adagrad, Adam or FTRL."
        )
    name, told = _KERAS_NAMESAKES[type(optimizer)]
    given = {field: getattr(optimizer, field) for field in told}
    rate = optimizer.learning_rate
    return getattr(tf_keras.optimizers, name)(learning_rate=rate() if callable(rate) else rate, **given)
