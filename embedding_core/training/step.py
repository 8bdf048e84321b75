"""One training step, and many of them in one call of a graph; predictions for the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.state import TableHolder
from embedding_core.model_inputs import call_model
from embedding_core.training.config import TrainingConfig
from embedding_core.training.inputs import Batch

__all__ = ["Engine", "StepsDone", "Trainable", "new_step", "weighted_loss"]


class Engine(TableHolder, Protocol):
    """What training needs of an embedding engine."""

    def lookup(self, ids: Mapping[str, tf.RaggedTensor]) -> dict[str, tf.Tensor]:
        """Activations by feature."""

    def apply_gradients(self, ids: Mapping[str, tf.RaggedTensor], gradients: Mapping[str, tf.Tensor]) -> None:
        """Update the tables once."""


class StepsDone(NamedTuple):
    """What a number of steps saw.

    Attributes:
      losses: float32 [steps].
      rows: rows read, drawn negatives not counted.
      positives: how many of them have label 1.
      finite: bool [dense features + 2]: whether each dense feature, the label and the weight were finite throughout.
    """

    losses: tf.Tensor
    rows: tf.Tensor
    positives: tf.Tensor
    finite: tf.Tensor


def weighted_loss(
    label: tf.Tensor, logit: tf.Tensor, weight: tf.Tensor, class_weights: tuple[float, float]
) -> tf.Tensor:
    """Binary cross-entropy of each row times its weight and its class's weight, float32 [B, 1]."""
    negative, positive = class_weights
    by_class = tf.where(label > 0.5, positive, negative)
    return tf.nn.sigmoid_cross_entropy_with_logits(label, logit) * weight * by_class


def _finite(batch: Batch) -> tf.Tensor:
    values = [*batch["dense"].values(), batch["label"], batch["weight"]]
    return tf.reduce_all(tf.math.is_finite(tf.concat(values, 1)), 0)


def new_step() -> tf.Variable:
    """A counter of steps."""
    return tf.Variable(0, dtype=tf.int64, trainable=False, name="step")


class Trainable:
    """Tables, dense model and its optimizer, with the functions that train and apply them."""

    def __init__(
        self,
        engine: Engine,
        model: tf_keras.Model,
        optimizer: tf_keras.optimizers.Optimizer,
        config: TrainingConfig,
        step: tf.Variable | None = None,
    ) -> None:
        """Put the parts together; the optimizer's slots are created here, so that a restore finds them."""
        self.engine = engine
        self.model = model
        self.optimizer = optimizer
        self.step = new_step() if step is None else step
        self._config = config
        optimizer.build(model.trainable_variables)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def run(self, batches: tf.data.Iterator, steps: tf.Tensor, dense: tf.Tensor) -> StepsDone:
        """Train on the next batches.

        Args:
          batches: of `Batch`, at least `steps` of them left.
          steps: int32 scalar, how many.
          dense: int32 scalar, number of dense features.
        """
        losses = tf.TensorArray(tf.float32, size=steps)
        positives = rows = tf.constant(0, tf.int64)
        finite = tf.ones([dense + 2], tf.bool)
        for index in tf.range(steps):
            batch = next(batches)
            losses = losses.write(index, self._train(batch))
            finite = tf.logical_and(finite, _finite(batch))
            rows += tf.size(batch["label"], tf.int64)
            positives += tf.math.count_nonzero(batch["label"] > 0.5)
        return StepsDone(losses.stack(), rows, positives, finite)

    def _train(self, batch: Batch) -> tf.Tensor:
        activations = self.engine.lookup(batch["ids"])
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(activations)
            logit = call_model(self.model, activations, batch["dense"], training=True)
            loss = self._loss(batch, logit, activations)
        for_tables, for_model = tape.gradient(loss, (activations, variables))
        self.engine.apply_gradients(batch["ids"], for_tables)
        if variables:
            self.optimizer.apply_gradients(zip(for_model, variables, strict=True))
        self.step.assign_add(1)
        return loss

    def _loss(self, batch: Batch, logit: tf.Tensor, activations: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The mean of the rows' losses, and the penalties."""
        rows = weighted_loss(batch["label"], logit, batch["weight"], self._config.class_weights)
        loss = tf.reduce_mean(rows) + tf.add_n(self.model.losses or [0.0])
        if self._config.embedding_l2:
            count = tf.cast(tf.size(batch["label"]), tf.float32)
            squares = tf.add_n([tf.reduce_sum(tf.square(activation)) for activation in activations.values()])
            loss += self._config.embedding_l2 * squares / count
        return loss

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def predict(self, batch: Batch) -> tf.Tensor:
        """Logits [B, 1]."""
        return call_model(self.model, self.engine.lookup(batch["ids"]), batch["dense"])
