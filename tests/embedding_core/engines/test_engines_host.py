"""The host engine: initial rows, checkpoints, learning rates, missing gradients, empty batches and errors."""

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


def test_checkpoint_keys_are_upstreams(tmp_path):
    engine = HostEngine(config_of(), optimizer=Adagrad())
    path = tf.train.Checkpoint(embedding=engine.tables).write(str(tmp_path / "x"))
    keys = {name for name, _ in tf.train.list_variables(path)}
    assert "embedding/t/.ATTRIBUTES/VARIABLE_VALUE" in keys
    assert "embedding/t.Saccumulators/.ATTRIBUTES/VARIABLE_VALUE" in keys
    assert len(keys) == 3


def test_tensorflows_own_class_reads_the_checkpoint(tmp_path):
    engine = HostEngine(config_of(), optimizer=Adagrad(), seed=5)
    path = tf.train.Checkpoint(embedding=engine.tables).write(str(tmp_path / "x"))
    tpu = tf.tpu.experimental.embedding
    table = tpu.TableConfig(6, 2, name="t")
    upstream = tpu.TPUEmbedding(tpu.FeatureConfig(table), tpu.Adagrad())
    upstream.build()
    tf.train.Checkpoint(embedding=upstream).read(path).assert_consumed()
    np.testing.assert_array_equal(upstream.embedding_tables[table].numpy(), engine.embedding_tables["t"].numpy())


def test_variables_are_single_under_a_strategy():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        engine = HostEngine(config_of(), optimizer=SGD())
    assert not isinstance(engine.embedding_tables["t"], tf.distribute.DistributedValues)


def test_schedule_is_evaluated_every_step():
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.5])
    engine = HostEngine(config_of(), optimizer=SGD(learning_rate=schedule))
    step = tf.function(lambda: engine.apply_gradients({"f": tf.constant([0])}, {"f": tf.ones([1, 2])}))
    before = engine.embedding_tables["t"].numpy()[0, 0]
    step()
    middle = engine.embedding_tables["t"].numpy()[0, 0]
    step()
    after = engine.embedding_tables["t"].numpy()[0, 0]
    np.testing.assert_allclose([before - middle, middle - after], [1.0, 0.5], rtol=1e-5)


def test_none_gradient_is_zero():
    engine = HostEngine(config_of(), optimizer=Adagrad())
    before = engine.embedding_tables["t"].numpy()
    engine.apply_gradients({"f": tf.constant([0])}, {"f": None})
    np.testing.assert_array_equal(engine.embedding_tables["t"].numpy(), before)


def test_empty_batch_changes_nothing():
    engine = HostEngine(config_of(), optimizer=SGD(use_gradient_accumulation=False))
    before = engine.embedding_tables["t"].numpy()
    ids = {"f": tf.zeros([0], tf.int64)}
    engine.apply_gradients(ids, {"f": tf.zeros([0, 2])})
    np.testing.assert_array_equal(engine.embedding_tables["t"].numpy(), before)
    assert engine.lookup(ids)["f"].shape == [0, 2]


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
