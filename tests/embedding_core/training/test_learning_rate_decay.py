import numpy as np
import pytest
import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.optimizers import DEFAULT_OPTIMIZER, FTRL, SGD
from embedding_core.training import TrainingConfig
from embedding_core.training.step import LinearDecay, config_with_decay, dense_optimizer
from tests.support.tables import config_of

OTHER = {"optimizer": DEFAULT_OPTIMIZER}
CONFIG = config_of(own={"optimizer": SGD(learning_rate=0.5)}, other=OTHER, third=OTHER)


def test_rates_reach_zero_and_equal_ones_are_one_callable():
    step = tf.Variable(0, dtype=tf.int64)
    made = config_with_decay(CONFIG, LinearDecay(step, 10))
    rate = made.table("own").optimizer.learning_rate
    falling = []
    for done in (0, 5, 10):
        step.assign(done)
        falling.append(float(rate()))
    assert falling == [0.5, 0.25, 0.0]
    assert made.table("other").optimizer.learning_rate is made.table("third").optimizer.learning_rate


def test_rate_that_scales_rows_may_not_fall():
    falling = LinearDecay(tf.Variable(0, dtype=tf.int64), 10)
    config_with_decay(config_of(own={"optimizer": FTRL(multiply_linear_by_learning_rate=True)}), falling)
    with pytest.raises(ConfigError, match="`optimizer` of table 'own' is 'ftrl', and `decay`"):
        config_with_decay(config_of(own={"optimizer": FTRL()}), falling)
    with pytest.raises(ConfigError, match="`dense_optimizer` is 'ftrl', and `decay`"):
        dense_optimizer(TrainingConfig(epochs=1, dense_optimizer="ftrl"), falling)


@pytest.mark.parametrize("name", ["adagrad", "adam", "adamw", "ftrl", "nadam", "rmsprop", "sgd"])
def test_dense_optimizer_has_the_rate(name):
    optimizer = dense_optimizer(TrainingConfig(epochs=1, dense_optimizer={"name": name, "learning_rate": 0.25}), None)
    assert float(optimizer.learning_rate) == 0.25


def test_dense_rate_falls_to_zero():
    variable, step = tf.Variable(1.0), tf.Variable(0, dtype=tf.int64)
    training = TrainingConfig(epochs=1, dense_optimizer={"name": "sgd", "learning_rate": 0.5})
    optimizer = dense_optimizer(training, LinearDecay(step, 2))
    values = []
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        step.assign_add(1)
        values.append(float(variable))
    assert values == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("times", [1, 2, 4, 7])
def test_repeated_steps_have_the_mean_rate_and_fall(times):
    """The last 4 of 10 steps had 0.4, 0.3, 0.2 and 0.1 of the rate."""
    step = tf.Variable(10, dtype=tf.int64)
    decay = LinearDecay(step, 10)
    decay.repeat(last=10, number=4, times=times)
    rates = []
    for _ in range(times):
        rates.append(float(decay.falling(1.0)()))
        step.assign_add(1)
    np.testing.assert_allclose(np.mean(rates), 0.25, rtol=1e-6)
    assert rates == sorted(rates, reverse=True)
    if times == 4:
        np.testing.assert_allclose(rates, [0.4, 0.3, 0.2, 0.1], rtol=1e-6)
