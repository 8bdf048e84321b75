"""Computes the update of rows by each of the five table optimizers, as pure functions.

Each function takes rows [N, dim], their slots (each [N, dim], in the order of `Optimizer.slots`), the
accumulated gradients [N, dim] and the learning rate, and returns the new rows and slots. The order is:
clip the gradient, decay the weight, update, clip the weight. Clipping, decay and their order follow this
project's interpretation of the TPU's documentation, which is still to be confirmed on a TPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam, Optimizer

Rows: TypeAlias = tf.Tensor  # float [N, dim]
Slots: TypeAlias = tuple[tf.Tensor, ...]  # float [N, dim] each
Rate: TypeAlias = "float | tf.Tensor"
Rule: TypeAlias = Callable[[Any, Rows, Slots, Rows, Rate], tuple[Rows, Slots]]


def updated(optimizer: Optimizer, rows: Rows, slots: Slots, gradient: Rows, rate: Rate) -> tuple[Rows, Slots]:
    """Compute rows and slots after one step of the optimizer, clipping and decay included.

    Args:
      optimizer: the optimizer, whose `learning_rate` is not read.
      rows: [N, dim] rows.
      slots: the rows' slots, each [N, dim].
      gradient: [N, dim] gradients, already accumulated.
      rate: the learning rate of this step, a float or a float32 scalar.

    Raises:
      ConfigError: there is no rule for the optimizer's class.
    """
    rule = _RULES.get(type(optimizer))
    if rule is None:
        raise ConfigError(f"{optimizer!r} has no update rule: it must be one of {[cls.__name__ for cls in _RULES]}.")
    gradient = clipped(gradient, *optimizer.gradient_bounds)
    rows, slots = rule(optimizer, _decayed(optimizer, rows, rate), slots, gradient, rate)
    return clipped(rows, optimizer.clip_weight_min, optimizer.clip_weight_max), slots


def clipped(values: Rows, low: float | None, high: float | None) -> Rows:
    """Clip values to the bounds; None means unbounded."""
    if low is not None:
        values = tf.maximum(values, tf.cast(low, values.dtype))
    if high is not None:
        values = tf.minimum(values, tf.cast(high, values.dtype))
    return values


def _decayed(optimizer: Optimizer, rows: Rows, rate: Rate) -> Rows:
    factor = optimizer.weight_decay_factor
    if factor is None:
        return rows
    scaled = factor * rate if optimizer.multiply_weight_decay_factor_by_learning_rate else factor
    return rows - scaled * rows


def sgd(optimizer: SGD, rows: Rows, slots: Slots, gradient: Rows, rate: Rate) -> tuple[Rows, Slots]:
    """Update rows by stochastic gradient descent: ``w -= lr * g``."""
    del optimizer
    return rows - rate * gradient, slots


def adagrad(optimizer: Adagrad, rows: Rows, slots: Slots, gradient: Rows, rate: Rate) -> tuple[Rows, Slots]:
    """Update rows by Adagrad (Duchi et al., 2011), without an epsilon: ``a += g^2; w -= lr * g / sqrt(a)``."""
    del optimizer
    accumulator = slots[0] + tf.square(gradient)
    return rows - rate * gradient / tf.sqrt(accumulator), (accumulator,)


def adagrad_momentum(
    optimizer: AdagradMomentum, rows: Rows, slots: Slots, gradient: Rows, rate: Rate
) -> tuple[Rows, Slots]:
    """Update rows by Adagrad with momentum, where k is the exponent.

    ``a = beta2 a + (1-beta2) g^2`` (``a + g^2`` if beta2 is 1); ``m = momentum m + g (a+eps)^(-1/k)``.
    """
    square = tf.square(gradient)
    accumulator, momentum = slots
    if optimizer.beta2 == 1.0:
        accumulator = accumulator + square
    else:
        accumulator = optimizer.beta2 * accumulator + (1.0 - optimizer.beta2) * square
    scaled = gradient * tf.pow(accumulator + optimizer.epsilon, -1.0 / optimizer.exponent)
    momentum = optimizer.momentum * momentum + scaled
    step = optimizer.momentum * momentum + scaled if optimizer.use_nesterov else momentum
    return rows - rate * step, (accumulator, momentum)


def adam(optimizer: Adam, rows: Rows, slots: Slots, gradient: Rows, rate: Rate) -> tuple[Rows, Slots]:
    """Update rows by Adam without bias correction.

    ``m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr m / sqrt(v + eps^2)``.
    """
    momentum = optimizer.beta_1 * slots[0] + (1.0 - optimizer.beta_1) * gradient
    velocity = optimizer.beta_2 * slots[1] + (1.0 - optimizer.beta_2) * tf.square(gradient)
    if optimizer.sum_inside_sqrt:
        root = tf.sqrt(velocity + optimizer.epsilon**2)
    else:
        root = tf.sqrt(velocity) + optimizer.epsilon
    return rows - rate * momentum / root, (momentum, velocity)


def ftrl(optimizer: FTRL, rows: Rows, slots: Slots, gradient: Rows, rate: Rate) -> tuple[Rows, Slots]:
    """Compute rows by FTRL-proximal (McMahan et al., 2013) from the accumulator and the linear term.

    With ``p = a^(-power)`` before and ``p'`` after ``a += g^2``: ``l += g - (p' - p) / lr * w`` and
    ``w = (clip(l, -l1, l1) - l) / ((p' + beta) / lr + 2 l2)``; `multiply_linear_by_learning_rate` keeps lr * l.
    If beta and l2 are zero, a row whose accumulator is still zero becomes zero.
    """
    accumulator, linear = slots
    power, l1, l2 = (
        -optimizer.learning_rate_power,
        optimizer.l1_regularization_strength,
        optimizer.l2_regularization_strength,
    )
    grown = accumulator + tf.square(gradient)
    before, after = tf.pow(accumulator, power), tf.pow(grown, power)
    if optimizer.multiply_linear_by_learning_rate:
        linear = linear + rate * gradient - (after - before) * rows
        bound = rate * l1
        denominator = after + 2.0 * rate * l2 + optimizer.beta
    else:
        linear = linear + gradient - (after - before) / rate * rows
        bound = l1
        denominator = (after + optimizer.beta) / rate + 2.0 * l2
    rows = tf.math.divide_no_nan(tf.clip_by_value(linear, -bound, bound) - linear, denominator)
    return rows, (grown, linear)


_RULES: Mapping[type[Optimizer], Rule] = {
    SGD: sgd,
    Adagrad: adagrad,
    AdagradMomentum: adagrad_momentum,
    Adam: adam,
    FTRL: ftrl,
}
