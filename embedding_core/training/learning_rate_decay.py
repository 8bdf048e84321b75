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


class LinearDecay:
    """The step of a run that learning rates are computed for: they fall to 0 over the planned steps.

    This is the number of steps done, until `repeat` goes through earlier steps once more. No optimizer's own counter is
    used: after a warm start it does not begin at 0.

    Attributes:
      steps: number of planned steps.
    """

    def __init__(self, step: tf.Variable, steps: int) -> None:
        """Follow `step`, the number of steps done of `steps`; create variables in the scope of the strategy."""
        self.steps = steps
        self._done = step
        self._first = tf.Variable(0.0, trainable=False, name="first_of_rates")
        self._pace = tf.Variable(1.0, trainable=False, name="pace_of_rates")

    def position(self) -> tf.Tensor:
        """Return the step, float32 scalar."""
        return self._first + self._pace * tf.cast(self._done, tf.float32)

    def falling(self, rate: float) -> Callable[[], tf.Tensor]:
        """Make the function that returns what `rate` has fallen to."""
        return lambda: rate * tf.maximum(0.0, 1.0 - self.position() / self.steps)

    def repeat(self, last: int, number: int, times: int) -> None:
        """Let the next `times` steps have, together, the mean rate of the `number` steps that end after `last` steps.

        The rates fall as they did then. With as many steps as `number`, each has the rate that it had then.
        """
        pace = number / times
        self._pace.assign(pace)
        self._first.assign(last - number + (pace - 1) / 2 - pace * last)


class _OfRun(tf_keras.optimizers.schedules.PolynomialDecay):
    """Decays a rate of a Keras optimizer by the steps of a run."""

    def __init__(self, rate: float, decay: LinearDecay) -> None:
        super().__init__(rate, decay_steps=decay.steps, end_learning_rate=0.0)
        self._decay = decay

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return super().__call__(self._decay.position())


def dense_optimizer(training: TrainingConfig, decay: LinearDecay | None) -> tf_keras.optimizers.Optimizer:
    """Make the Keras optimizer of the dense part.

    Args:
      training: settings with the optimizer's name and rate.
      decay: the decay of the rate; None keeps it.
    """
    rate = scheduled(training.dense_optimizer.learning_rate, decay)
    return getattr(tf_keras.optimizers, _CLASSES[training.dense_optimizer.name])(learning_rate=rate)


def scheduled(rate: Rate, decay: LinearDecay | None) -> Rate:
    """Make a learning rate for a Keras optimizer: a number follows the decay, if there is one; a function is kept."""
    return rate if decay is None or callable(rate) else _OfRun(rate, decay)


def config_with_decay(config: EmbeddingConfig, decay: LinearDecay) -> EmbeddingConfig:
    """Let the rate of every table's optimizer follow the decay; a rate that is a function is kept."""
    optimizers = {table.name: table.optimizer for table in config.tables if table.optimizer is not None}
    starts = {optimizer.learning_rate for optimizer in optimizers.values()}
    rates = {start: start if callable(start) else decay.falling(start) for start in starts}
    falling = {
        name: optimizer.replace(learning_rate=rates[optimizer.learning_rate]) for name, optimizer in optimizers.items()
    }
    return config.replace(tables=tuple(table.replace(optimizer=falling.get(table.name)) for table in config.tables))
