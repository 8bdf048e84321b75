"""Tables replicated on every core: the simulated TPU without an embedding engine."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import Adagrad, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, TPUEmbeddingV0, simulated_tpu

tpu = tf.tpu.experimental.embedding

CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=7, dim=2),), features=(FeatureConfig(name="f", table="t"),)
)


def test_checkpoint_moves_to_the_embedding_engine(tmp_path):
    with simulated_tpu(hosts=1, cores_per_host=2, embedding_feature="V0").scope():
        embedding = TPUEmbeddingV0(CONFIG, Adagrad(), seed=3)
    embedding.build()
    path = tf.train.Checkpoint(e=embedding).write(str(tmp_path / "x"))
    with simulated_tpu().scope():
        other = TPUEmbedding(CONFIG, Adagrad(), seed=4)
    other.build(2)
    tf.train.Checkpoint(e=other).read(path).assert_consumed()
    (table,) = embedding.embedding_tables.values()
    np.testing.assert_array_equal(other._engine.variables["t"]["parameters"].numpy(), table.numpy())
    host = HostEngine(CONFIG, seed=3, with_slots=False).embedding_tables["t"]
    np.testing.assert_array_equal(table.numpy(), host.numpy())


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
