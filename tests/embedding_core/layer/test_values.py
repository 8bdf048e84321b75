"""The same model, data and seed give the same tables, slots and losses under every strategy."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.layer import TPUEmbedding

tpu = tf.tpu.experimental.embedding
simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation

BATCH, ROWS, STEPS = 8, 11, 20
OPTIMIZERS = {
    "sgd": lambda: tpu.SGD(0.1),
    "adagrad": lambda: tpu.Adagrad(0.1, clipvalue=0.5),
    "momentum": lambda: tpu.AdagradMomentum(0.1, momentum=0.9, use_nesterov=True),
    "adam": lambda: tpu.Adam(0.05),
    "ftrl": lambda: tpu.FTRL(0.1, l1_regularization_strength=0.01),
    "keras adam": lambda: tf_keras.optimizers.Adam(0.05),
}
KINDS = ("dense", "sparse", "ragged", "weighted", "sequence")
TOPOLOGIES = ((1, 1), (2, 1), (2, 2), (4, 1))


def strategy_of(topology):
    if topology is None:
        return tf.distribute.get_strategy()
    return simulated_tpu(hosts=topology[0], cores_per_host=topology[1])


def batches(kind, seed=0):
    """Yield STEPS batches: the ids of two features, one list per example."""
    generator = np.random.default_rng(seed)
    for _ in range(STEPS):
        yield {
            name: [generator.integers(0, ROWS, 1 if kind == "dense" else 3).tolist() for _ in range(BATCH)]
            for name in ("a", "b")
        }


def tensors(kind, lists):
    """The ids and weights of a part of a batch; the weights are None unless the kind is "weighted"."""
    if kind == "dense":
        return {name: tf.constant(ids, tf.int64) for name, ids in lists.items()}, None
    ids = {name: tf.ragged.constant(rows, dtype=tf.int64, row_splits_dtype=tf.int64) for name, rows in lists.items()}
    weights = None
    if kind == "weighted":
        weights = {name: rows.with_values(0.5 + tf.cast(rows.values % 3, tf.float32)) for name, rows in ids.items()}
    if kind == "sparse":
        return {name: rows.to_sparse() for name, rows in ids.items()}, weights
    return ids, weights


class Run:
    """A layer over two features of one table and a dense head, trained under one strategy."""

    def __init__(self, topology, optimizer, kind="ragged", **arguments):
        self.strategy, self.kind = strategy_of(topology), kind
        with self.strategy.scope():
            table = tpu.TableConfig(ROWS, 4, optimizer=OPTIMIZERS[optimizer](), combiner="sqrtn", name="t")
            length = 2 if kind == "sequence" else 0
            features = {name: tpu.FeatureConfig(table, max_sequence_length=length) for name in ("a", "b")}
            self.layer = TPUEmbedding(features, None, **{"table_update": "engine", **arguments})
            self.head = tf_keras.layers.Dense(1, kernel_initializer="ones")
            self.dense = tf_keras.optimizers.legacy.SGD(0.05)
        self.checkpoint = tf.train.Checkpoint(layer=self.layer)
        self.step = tf.function(self._step, reduce_retracing=True)

    def _on_core(self, ids, weights):
        with tf.GradientTape() as tape:
            found = self.layer(ids, weights)
            joined = tf.concat([tf.reshape(values, [tf.shape(values)[0], -1]) for values in found.values()], 1)
            joined = tf.ensure_shape(joined, [None, 16 if self.kind == "sequence" else 8])
            loss = tf.reduce_sum(tf.square(self.head(joined) - 1.0)) / BATCH
        variables = self.layer.trainable_variables + self.head.trainable_variables
        self.dense.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def _step(self, ids, weights):
        losses = self.strategy.run(self._on_core, args=(ids, weights))
        return self.strategy.reduce("sum", losses, axis=None)

    def train(self, lists):
        cores = self.strategy.num_replicas_in_sync
        size = BATCH // cores
        parts = [
            tensors(self.kind, {name: rows[core * size : core * size + size] for name, rows in lists.items()})
            for core in range(cores)
        ]
        if cores == 1:
            return float(self.step(*parts[0]))
        given = self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        return float(self.step(*given))

    def variables(self):
        return {key: variable.numpy() for key, variable in self.layer.table_variables.items()}


def trained(topology, optimizer, kind):
    run = Run(topology, optimizer, kind)
    losses = [run.train(lists) for lists in batches(kind)]
    return run.variables(), losses


def compare(optimizer, kind, topologies):
    variables, losses = trained(None, optimizer, kind)
    assert losses[-1] < losses[0]
    for topology in topologies:
        found, found_losses = trained(topology, optimizer, kind)
        assert found.keys() == variables.keys()
        np.testing.assert_allclose(found_losses, losses, rtol=1e-4, atol=1e-6, err_msg=str(topology))
        for key, values in variables.items():
            np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=2e-6, err_msg=f"{topology} {key}")


def test_every_strategy_trains_the_same_numbers():
    compare("adam", "ragged", [(2, 2)])


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "kind"), itertools.product(OPTIMIZERS, KINDS))
def test_strategies_train_alike_for_every_optimizer_and_kind(optimizer, kind):
    compare(optimizer, kind, TOPOLOGIES)
