import pytest
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import DEFAULT_OPTIMIZER, SGD
from embedding_core.training import TrainingConfig
from embedding_core.training.learning_rate_decay import config_with_rates, dense_optimizer

CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="own", vocabulary_size=2, dim=1, optimizer=SGD(learning_rate=0.5)),
        TableConfig(name="other", vocabulary_size=2, dim=1),
        TableConfig(name="third", vocabulary_size=2, dim=1),
    ),
    features=tuple(FeatureConfig(name=name, table=name) for name in ("own", "other", "third")),
)


def test_tables_without_optimizer_get_adagrad_and_constant_rates_stay_numbers():
    made = config_with_rates(
        CONFIG, TrainingConfig(epochs=1, table_optimizer={"learning_rate": 0.2}), tf.Variable(0), 10
    )
    assert made.table("own").optimizer == SGD(learning_rate=0.5)
    assert made.table("other").optimizer == DEFAULT_OPTIMIZER.replace(learning_rate=0.2)


def test_linear_decay_reaches_zero_at_the_last_step():
    step = tf.Variable(0, dtype=tf.int64)
    made = config_with_rates(CONFIG, TrainingConfig(epochs=1, decay="linear"), step, 10)
    rate = made.table("own").optimizer.learning_rate
    falling = []
    for done in (0, 5, 10):
        step.assign(done)
        falling.append(float(rate()))
    assert falling == [0.5, 0.25, 0.0]


def test_equal_rates_are_one_callable():
    made = config_with_rates(CONFIG, TrainingConfig(epochs=1, decay="linear"), tf.Variable(0), 10)
    assert made.table("other").optimizer.learning_rate is made.table("third").optimizer.learning_rate


@pytest.mark.parametrize("name", ["adagrad", "adam", "adamw", "ftrl", "nadam", "rmsprop", "sgd"])
def test_dense_optimizer_has_the_rate(name):
    optimizer = dense_optimizer(TrainingConfig(epochs=1, dense_optimizer={"name": name, "learning_rate": 0.25}), 10)
    assert float(optimizer.learning_rate) == 0.25


def test_dense_rate_falls_to_zero():
    variable = tf.Variable(1.0)
    optimizer = dense_optimizer(
        TrainingConfig(epochs=1, dense_optimizer={"name": "sgd", "learning_rate": 0.5}, decay="linear"), 2
    )
    values = []
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        values.append(float(variable))
    assert values == [0.5, 0.25, 0.25]
