"""The host engine: initial rows, missing gradients and errors."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import SGD, Adagrad, EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.engines import HostEngine


def config_of(rows=6, dim=2, **table):
    tables = (TableConfig(name="t", vocabulary_size=rows, dim=dim, **table),)
    return EmbeddingConfig(tables=tables, features=(FeatureConfig(name="f", table="t"),))


def test_first_rows_depend_on_seed_and_name_and_not_on_the_size():
    small = HostEngine(config_of(5000), seed=1, with_slots=False).embedding_tables["t"].numpy()
    large = HostEngine(config_of(9000), seed=1, with_slots=False).embedding_tables["t"].numpy()
    other = HostEngine(config_of(5000), seed=2, with_slots=False).embedding_tables["t"].numpy()
    np.testing.assert_array_equal(large[:5000], small)
    assert not np.array_equal(other, small)
    assert abs(large.std() - 0.88 / np.sqrt(2)) < 0.02
    assert len(np.unique(large)) > 17_000


def test_initializers_keep_their_range():
    uniform = HostEngine(config_of(initializer=InitializerConfig(name="uniform", scale=0.5)), with_slots=False)
    assert np.abs(uniform.embedding_tables["t"].numpy()).max() <= 0.5
    constant = HostEngine(config_of(initializer=InitializerConfig(name="constant", scale=0.5)), with_slots=False)
    np.testing.assert_array_equal(constant.embedding_tables["t"].numpy(), np.full([6, 2], 0.5))


def test_none_gradient_is_zero():
    engine = HostEngine(config_of(), optimizer=Adagrad())
    before = engine.embedding_tables["t"].numpy()
    engine.apply_gradients({"f": tf.constant([0])}, {"f": None})
    np.testing.assert_array_equal(engine.embedding_tables["t"].numpy(), before)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e.lookup({"g": tf.constant([0])}), ValueError, "unknown feature 'g'"),
        (lambda e: e.lookup({"f": tf.constant([9])}), tf.errors.InvalidArgumentError, "is outside table 't'"),
        (lambda e: e.apply_gradients({"f": tf.constant([0])}, {}), ValueError, "same features"),
        (lambda e: e.apply_gradients({"f": tf.constant([0])}, {"f": tf.ones([1, 3])}), ValueError, "gradient of shape"),
        (
            lambda e: e.lookup({"f": tf.ragged.constant([[0]])}, {"f": tf.ragged.constant([[float("nan")]])}),
            tf.errors.InvalidArgumentError,
            "NaN",
        ),
    ],
)
def test_wrong_use_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(HostEngine(config_of(), optimizer=SGD()))


def test_engine_without_optimizer_or_slots_is_refused():
    with pytest.raises(ValueError, match="`optimizer` of table 't' is None"):
        HostEngine(config_of())
    with pytest.raises(RuntimeError, match="with_slots"):
        HostEngine(config_of(), with_slots=False).apply_gradients({"f": tf.constant([0])}, {"f": tf.ones([1, 2])})
