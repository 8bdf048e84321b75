"""Training continues from a checkpoint under another strategy, slots included."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.layer import TPUEmbedding
from tests.support.layers import ids_of_cores, on_cores

tpu = tf.tpu.experimental.embedding


class Run:
    """A table trained by Adagrad; `way` is "keras" or "engine" off a TPU, or the number of hosts of a simulated TPU."""

    def __init__(self, way):
        on_tpu = isinstance(way, int)
        self.strategy = simulated_tpu(hosts=way, cores_per_host=2) if on_tpu else tf.distribute.get_strategy()
        with self.strategy.scope():
            self.optimizer = tf_keras.optimizers.legacy.Adagrad(0.1)
            features = {"f": tpu.FeatureConfig(tpu.TableConfig(5, 2, combiner="sum", name="t"))}
            self.layer = TPUEmbedding(features, self.optimizer, table_update="engine" if way == "engine" else "keras")
        self.checkpoint = tf.train.Checkpoint(layer=self.layer)
        self.run = on_cores(self.strategy, self._on_core)

    def build(self):
        with self.strategy.scope():
            self.layer.build([tf.TensorShape([4 // self.strategy.num_replicas_in_sync])])
        return self

    def _on_core(self, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self.layer({"f": ids})["f"]))
        variables = self.layer.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def train(self, ids):
        parts = np.split(np.array(ids), self.strategy.num_replicas_in_sync)
        self.run(ids_of_cores(self.strategy, *parts))

    def values(self):
        holder = self.layer._tpu_embedding
        return {key: getattr(holder, key).numpy() for key in ("t", "t/accumulators")}


@pytest.fixture(scope="module")
def straight():
    """Return the values after one and after two uninterrupted steps of the engine."""
    run = Run("engine").build()
    run.train([1, 1, 2, 3])
    first = run.values()
    run.train([1, 2, 4, 4])
    return first, run.values()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("keras", 2),
        ("engine", "keras"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [("keras", "engine"), ("engine", 1), (2, "engine"), (2, 1)]
        ),
    ],
)
def test_training_goes_on_under_another_strategy(before, after, straight, tmp_path):
    first, second = straight
    run = Run(before).build()
    run.train([1, 1, 2, 3])
    path = run.checkpoint.write(str(tmp_path / "checkpoint"))
    run = Run(after).build()
    run.checkpoint.read(path).assert_existing_objects_matched().assert_consumed()
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), run.values(), first)
    run.train([1, 2, 4, 4])
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), run.values(), second)


def test_keys_are_those_of_tensorflow_recommenders(tmp_path):
    path = Run("engine").build().checkpoint.write(str(tmp_path / "checkpoint"))
    keys = {key for key, _ in tf.train.list_variables(path)}
    value = ".ATTRIBUTES/VARIABLE_VALUE"
    assert {f"layer/_tpu_embedding/t/{value}", f"layer/_tpu_embedding/t.Saccumulators/{value}"} <= keys
    assert not [key for key in keys if "dummy" in key]


@pytest.mark.parametrize("way", ["engine", 1])
def test_restore_before_the_variables_are_there(way, straight, tmp_path):
    run, later = Run("engine").build(), Run(way)
    run.train([1, 1, 2, 3])
    status = later.checkpoint.read(run.checkpoint.write(str(tmp_path / "checkpoint")))
    later.build()
    status.assert_consumed()
    np.testing.assert_allclose(later.values()["t/accumulators"], straight[0]["t/accumulators"])


def test_tensorflow_recommenders_reads_ours_and_we_read_theirs(tmp_path):
    """Off a TPU, with a Keras optimizer in the checkpoint, as TensorFlow Recommenders documents it."""
    theirs = pytest.importorskip("tensorflow_recommenders").layers.embedding.TPUEmbedding
    made = []
    for layer_class in (TPUEmbedding, theirs):
        optimizer = tf_keras.optimizers.legacy.Adagrad(0.1)
        table = tpu.TableConfig(5, 2, combiner="sum", name="t")
        layer = layer_class({"f": tpu.FeatureConfig(table)}, optimizer)
        layer({"f": tf.constant([0])})
        checkpoint = tf.train.Checkpoint(layer=layer, optimizer=optimizer)
        made.append((layer, optimizer, checkpoint))
    for (layer, optimizer, checkpoint), (other, other_optimizer, other_checkpoint) in (made, reversed(made)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer({"f": tf.constant([1, 2])})["f"])
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        path = checkpoint.write(str(tmp_path / type(layer).__module__))
        other_checkpoint.read(path).expect_partial()
        tables = [next(iter(model.embedding_tables.values())) for model in (layer, other)]
        np.testing.assert_array_equal(*tables)
        slots = [
            owner.get_slot(table, "accumulator")
            for owner, table in zip((optimizer, other_optimizer), tables, strict=True)
        ]
        np.testing.assert_array_equal(*slots)
        assert np.max(slots[0]) > 0.5


def test_slots_are_left_out_without_an_optimizer(tmp_path):
    """Off a TPU, a TPU optimizer's slots are left out too: nothing updates them, so they have their initial values."""
    for optimizer in (None, tpu.Adagrad(0.1)):
        layer = TPUEmbedding({"f": tpu.FeatureConfig(tpu.TableConfig(5, 2, name="t"))}, optimizer)
        layer({"f": tf.constant([0])})
        path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "checkpoint"))
        assert [key for key, _ in tf.train.list_variables(path) if "accumulators" in key] == []
