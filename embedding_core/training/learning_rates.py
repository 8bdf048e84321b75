"""Learning rates that fall while training, of the dense part and of the tables alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.optimizers import Adagrad
from embedding_core.training.config import TrainingConfig

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
    """A decay by the steps of this run: the optimizer's own count goes on from that of an earlier run."""

    def __init__(self, rate: float, steps: int, step: tf.Variable) -> None:
        super().__init__(rate, decay_steps=steps, end_learning_rate=0.0)
        self._done = step

    def __call__(self, step: Any) -> tf.Tensor:
        return super().__call__(self._done)


def dense_optimizer(
    training: TrainingConfig, steps: int, step: tf.Variable | None = None
) -> tf_keras.optimizers.Optimizer:
    """The Keras optimizer of the dense part, for a run of so many steps.

    Args:
      training: names the optimizer and its rate.
      steps: of the run.
      step: counts the steps of the run; None takes the optimizer's own count, right only if that starts at 0.
    """
    rate = scheduled(training.learning_rate, training, steps)
    if step is not None and training.decay == "linear":
        rate = _OfRun(training.learning_rate, steps, step)
    return getattr(tf_keras.optimizers, _CLASSES[training.optimizer])(learning_rate=rate)


def scheduled(rate: Any, training: TrainingConfig, steps: int) -> Any:
    """A learning rate for a Keras optimizer, which follows the training's `decay` where it is a number."""
    if training.decay != "linear" or callable(rate):
        return rate
    return tf_keras.optimizers.schedules.PolynomialDecay(rate, decay_steps=steps, end_learning_rate=0.0)


def config_with_rates(
    config: EmbeddingConfig, training: TrainingConfig, step: tf.Variable, steps: int
) -> EmbeddingConfig:
    """The configuration with an optimizer in every table, whose rate follows the training's `decay`.

    Args:
      config: tables and features; a table without an optimizer gets Adagrad at `learning_rate_tables`.
      training: says how rates fall.
      step: counts the steps done.
      steps: of the whole run.
    """
    default = Adagrad(learning_rate=training.learning_rate_tables)
    optimizers = {table.name: table.optimizer or default for table in config.tables}
    if training.decay == "linear":
        starts = {one.learning_rate for one in optimizers.values()}
        rates = {start: start if callable(start) else _falling(start, step, steps) for start in starts}
        optimizers = {
            name: dataclasses.replace(one, learning_rate=rates[one.learning_rate]) for name, one in optimizers.items()
        }
    tables = (dataclasses.replace(table, optimizer=optimizers[table.name]) for table in config.tables)
    return dataclasses.replace(config, tables=tuple(tables))


def _falling(start: float, step: tf.Variable, steps: int) -> Callable[[], tf.Tensor]:
    return lambda: start * (1.0 - tf.cast(step, tf.float32) / steps)
