"""Tables replicated on every core: the simulated TPU without an embedding engine."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import Adagrad, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, TPUEmbeddingV0, simulated_tpu
from embedding_core.lookup import cpu_embedding_lookup

tpu = tf.tpu.experimental.embedding
simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation

CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=7, dim=2),), features=(FeatureConfig(name="f", table="t"),)
)
RAGGED = tf.ragged.constant([[1, 2], [], [2]], dtype=tf.int64)


def embedding_on_cores(**arguments):
    strategy = simulated_tpu(hosts=1, cores_per_host=2, embedding_feature="V0")
    with strategy.scope():
        return strategy, TPUEmbeddingV0(CONFIG, Adagrad(), **arguments)


def table_of(embedding):
    return next(iter(embedding.embedding_tables.values()))


def test_lookup_is_the_cpu_lookup_on_every_core():
    strategy, embedding = embedding_on_cores(seed=3)
    found = strategy.run(tf.function(lambda: embedding({"f": RAGGED})["f"]))
    rows = HostEngine(CONFIG, seed=3, with_slots=False).embedding_tables
    expected = cpu_embedding_lookup({"f": RAGGED}, None, rows, CONFIG)["f"]
    for one in strategy.experimental_local_results(found):
        np.testing.assert_allclose(one.numpy(), expected.numpy(), rtol=1e-6)


def test_keras_optimizer_trains_the_tables():
    strategy, embedding = embedding_on_cores()
    embedding.build()
    with strategy.scope():
        optimizer = tf.keras.optimizers.legacy.SGD(1.0)
    before = table_of(embedding).numpy()

    @tf.function
    def step():
        def on_core():
            variables = list(embedding.embedding_tables.values())
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding({"f": tf.constant([1, 1])})["f"])
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(on_core)

    step()
    expected = before - np.array([[0, 0], [4, 4], *[[0, 0]] * 5])
    np.testing.assert_allclose(table_of(embedding).numpy(), expected, rtol=1e-6)


def test_checkpoint_moves_to_the_embedding_engine(tmp_path):
    _, embedding = embedding_on_cores(seed=3)
    embedding.build()
    path = tf.train.Checkpoint(e=embedding).write(str(tmp_path / "x"))
    with simulated_tpu().scope():
        other = TPUEmbedding(CONFIG, Adagrad(), seed=4)
    other.build(2)
    tf.train.Checkpoint(e=other).read(path).assert_consumed()
    parameters = other._engine.variables["t"]["parameters"]
    np.testing.assert_array_equal(parameters.numpy(), table_of(embedding).numpy())


def test_optimizers_slots_may_be_the_callers():
    made = []

    def creator(table, names, initializers):
        made.append((table.shape.as_list(), list(names), float(initializers[0]([]))))
        return {name: tf.Variable(tf.zeros(table.shape)) for name in names}

    table = tpu.TableConfig(7, 2, name="t", optimizer=tpu.Adagrad(slot_variable_creation_fn=creator))
    strategy = simulated_tpu(embedding_feature="V0")
    with strategy.scope():
        TPUEmbeddingV0(tpu.FeatureConfig(table), None).build()
    TPUEmbedding(tpu.FeatureConfig(table), None).build()
    assert made == [([7, 2], ["accumulators"], pytest.approx(0.1))] * 2


def test_wrong_place_is_refused():
    with pytest.raises(RuntimeError, match="created under TPUStrategy"):
        TPUEmbeddingV0(CONFIG, None)
    with simulated_tpu(embedding_feature="V0").scope(), pytest.raises(RuntimeError, match="no embedding engine"):
        TPUEmbedding(CONFIG, Adagrad())
