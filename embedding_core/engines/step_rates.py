"""Evaluates the learning rates of a step (constants, callables and Keras schedules), each once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import tensorflow as tf

from embedding_core.engines.tables import unmirrored
from embedding_core.optimizers import LearningRate, Optimizer
from embedding_core.update_rules import Rate

ITERATIONS = "learning_rate/iterations"  # checkpoint key of the counter of steps, which schedules follow


def is_schedule(rate: LearningRate) -> bool:
    """Return whether a learning rate is a function that takes the step, as Keras' schedules do."""
    if not callable(rate):
        return False
    try:
        parameters = inspect.signature(rate).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def distinct_rates(optimizers: Iterable[Optimizer]) -> list[Callable[..., tf.Tensor]]:
    """Return the distinct callable learning rates in the order of their first use: the index of each is its tag."""
    rates: list[Callable[..., tf.Tensor]] = []
    for optimizer in optimizers:
        if callable(optimizer.learning_rate) and not any(optimizer.learning_rate is rate for rate in rates):
            rates.append(optimizer.learning_rate)
    return rates


def new_iterations(optimizers: Iterable[Optimizer | None]) -> tf.Variable | None:
    """Create a counter of the steps done, int64, if a learning rate is a function of it; else None."""
    if not any(optimizer is not None and is_schedule(optimizer.learning_rate) for optimizer in optimizers):
        return None
    return unmirrored(lambda: tf.Variable(0, trainable=False, dtype=tf.int64, name="iterations"))


def step_rates(optimizers: Iterable[Optimizer], iterations: tf.Variable | None) -> list[Rate]:
    """Return the learning rate of each optimizer at this step; every distinct callable is called once.

    Args:
      optimizers: one per table.
      iterations: number of steps done, for schedules; None if there are no schedules.

    Returns:
      A float or a float32 scalar tensor per optimizer.
    """
    optimizers = list(optimizers)
    rates = distinct_rates(optimizers)
    values = [tf.cast(rate(iterations) if is_schedule(rate) else rate(), tf.float32) for rate in rates]
    return [
        values[next(tag for tag, rate in enumerate(rates) if rate is optimizer.learning_rate)]
        if callable(optimizer.learning_rate)
        else optimizer.learning_rate
        for optimizer in optimizers
    ]
