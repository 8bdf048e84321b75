"""Makes learning rates that fall during training, for the dense part and the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.training_config import TrainingConfig

Rate: TypeAlias = float | Callable[..., tf.Tensor]

_CLASSES = {
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "ftrl": "Ftrl",
    "nadam": "Nadam",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}


class _OfRun(tf_keras.optimizers.schedules.PolynomialDecay):
    """Decays by the step counter of this run: after a warm start the optimizer's own counter does not begin at 0."""

    def __init__(self, rate: float, steps: int, step: tf.Variable) -> None:
        super().__init__(rate, decay_steps=steps, end_learning_rate=0.0)
        self._done = step

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return super().__call__(self._done)


def dense_optimizer(
    training: TrainingConfig, steps: int, step: tf.Variable | None = None
) -> tf_keras.optimizers.Optimizer:
    """Make the Keras optimizer of the dense part.

    Args:
      training: settings with the optimizer's name and rate.
      steps: number of steps of the run.
      step: counter of the run's steps; None uses the optimizer's own counter, which is right only if it starts at 0.
    """
    rate = scheduled(training.dense_optimizer.learning_rate, training, steps)
    if step is not None and training.decay == "linear":
        rate = _OfRun(training.dense_optimizer.learning_rate, steps, step)
    return getattr(tf_keras.optimizers, _CLASSES[training.dense_optimizer.name])(learning_rate=rate)


def scheduled(rate: Rate, training: TrainingConfig, steps: int) -> Rate:
    """Make a learning rate for a Keras optimizer: a number follows the training's `decay`, a function is kept."""
    if training.decay != "linear" or callable(rate):
        return rate
    falling: Rate = tf_keras.optimizers.schedules.PolynomialDecay(rate, decay_steps=steps, end_learning_rate=0.0)
    return falling


def config_with_rates(
    config: EmbeddingConfig, training: TrainingConfig, step: tf.Variable, steps: int
) -> EmbeddingConfig:
    """Give every table an optimizer whose rate follows the training's `decay`.

    Args:
      config: tables and features; a table without an optimizer gets the default one of `training`.
      training: settings of the training, with its decay.
      step: counter of the steps done.
      steps: number of steps of the whole run.
    """
    default = training.table_optimizer
    optimizers = {table.name: table.optimizer or default for table in config.tables}
    if training.decay == "linear":
        starts = {one.learning_rate for one in optimizers.values()}
        rates = {start: start if callable(start) else _falling(start, step, steps) for start in starts}
        optimizers = {name: one.replace(learning_rate=rates[one.learning_rate]) for name, one in optimizers.items()}
    tables = (table.replace(optimizer=optimizers[table.name]) for table in config.tables)
    return config.replace(tables=tuple(tables))


def _falling(start: float, step: tf.Variable, steps: int) -> Callable[[], tf.Tensor]:
    return lambda: start * tf.maximum(0.0, 1.0 - tf.cast(step, tf.float32) / steps)
