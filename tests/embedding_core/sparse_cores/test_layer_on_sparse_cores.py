"""The Keras layer on simulated SparseCores: the values of the host engine, sequences, limits, export and weights."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError
from embedding_core.layer import TPUEmbedding
from embedding_core.optimizers import Adagrad
from embedding_core.sparse_cores import SparseCoreEmbeddingConfig

simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation
CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="user", vocabulary_size=12, dim=3), TableConfig(name="item", vocabulary_size=30, dim=4)),
    features=(
        FeatureConfig(name="user", table="user"),
        FeatureConfig(name="past", table="item", max_sequence_length=2),
        FeatureConfig(name="item", table="item"),
    ),
)
USERS = tf.constant([1, 2, 3, 1, 4, 5, 6, 7])
PAST = tf.ragged.constant([[0, 1, 1], [], [5], [2, 29], [1], [2], [3], [4, 4]])
WEIGHTED = PAST.with_values(tf.linspace(0.5, 2.0, tf.size(PAST.values)))
CHIPS = 2


def new_layer(strategy, **arguments):
    with strategy.scope():
        layer = TPUEmbedding(CONFIG, Adagrad(learning_rate=0.1), table_update="engine", batch_size=4, **arguments)
        layer.build(None)
    return layer


def trained(strategy, parts, kind, **arguments):
    """Train two steps; return the layer and the activations of the second one."""
    layer, size = new_layer(strategy, **arguments), len(USERS) // parts

    def on_core():
        core = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) if parts > 1 else 0
        rows = slice(core * size, (core + 1) * size)
        ids = {"user": USERS[rows], "past": PAST[rows], "item": PAST[rows]}
        if kind == "sparse":
            ids = {name: tokens.to_sparse() if name != "user" else tokens for name, tokens in ids.items()}
        weights = {"user": None, "past": None, "item": WEIGHTED[rows] if kind == "ragged" else None}
        with tf.GradientTape() as tape:
            activations = layer(ids, weights)
            loss = tf.add_n([tf.reduce_sum(tf.square(value)) for value in activations.values()])
        tape.gradient(loss, layer.trainable_variables)
        return activations

    step = tf.function(lambda: strategy.run(on_core) if parts > 1 else on_core(), autograph=False)
    for _ in range(2):
        found = step()
    local = {name: strategy.experimental_local_results(value) for name, value in found.items()}
    return layer, {name: np.concatenate([replica.numpy() for replica in values]) for name, values in local.items()}


@pytest.fixture(scope="module", params=["ragged", "sparse"])
def both(request):
    strategy = simulated_tpu(cores_per_host=CHIPS, embedding_feature="V2", sparse_cores=2)
    return trained(tf.distribute.get_strategy(), 1, request.param), trained(strategy, CHIPS, request.param)


def test_activations_tables_and_slots_equal_the_host_engines(both):
    (host, expected), (layer, found) = both
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert list(layer.table_variables) == list(host.table_variables)
    for key, variable in host.table_variables.items():
        np.testing.assert_allclose(layer.table_variables[key].numpy(), variable.numpy(), rtol=1e-5, atol=1e-6)


def test_weights_of_keras_have_the_order_of_every_engine(both):
    (host, _), (layer, _) = both
    for weights, other in zip(host.get_weights(), layer.get_weights(), strict=True):
        np.testing.assert_allclose(other, weights, rtol=1e-5, atol=1e-6)
    layer.set_weights(host.get_weights())
    for key, variable in host.table_variables.items():
        np.testing.assert_array_equal(layer.table_variables[key].numpy(), variable.numpy())


def test_tables_are_stacks_as_on_a_tpu_and_overwritten_by_name(both):
    _, (layer, _) = both
    assert list(layer.embedding_tables) == ["item_user"]
    layer.update_embedding_table(CONFIG.tables[0], np.full([12, 3], 7.0))
    assert (layer.table_variables["user"].numpy() == 7).all()


def test_exported_model_looks_up_the_tables(both, tmp_path):
    _, (layer, _) = both
    model = tf_keras.Sequential()
    model.embedding = layer
    signature = [tf.TensorSpec([None], tf.int64, "user"), tf.TensorSpec([None], tf.int64, "past")]

    @tf.function(input_signature=signature)
    def serve(user, past):
        rows = tf.RaggedTensor.from_row_lengths(past, [tf.size(past)])
        return layer({"user": user, "past": rows, "item": rows})

    tf.saved_model.save(model, str(tmp_path), signatures={"serving": serve})
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving"]
    found = signature(user=tf.constant([1], tf.int64), past=tf.constant([3, 4], tf.int64))
    tables = {name: layer.table_variables[name].numpy() for name in ("user", "item")}
    np.testing.assert_allclose(found["user"], tables["user"][[1]], rtol=1e-6)
    np.testing.assert_allclose(found["past"][0], tables["item"][[3, 4]], rtol=1e-6)
    np.testing.assert_allclose(found["item"], tables["item"][[3, 4]].mean(0, keepdims=True), rtol=1e-6)


def test_limits_are_enforced_and_kept_in_the_configuration():
    limits = SparseCoreEmbeddingConfig(max_ids_per_table={"item_user": 1})
    strategy = simulated_tpu(cores_per_host=1, embedding_feature="V2", sparse_cores=2)
    layer = new_layer(strategy, sparse_core_embedding_config=limits)
    with strategy.scope():
        same = TPUEmbedding.from_config(layer.get_config())
    assert same.get_config()["sparse_core_embedding_config"]["max_ids_per_table"] == {"item_user": 1}
    ids = {"user": USERS[:4], "past": PAST[:4], "item": PAST[:4]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="may have at most 1 ids in one partition"):
        tf.function(lambda: strategy.run(lambda: same(ids)), autograph=False)()


def test_batch_size_is_needed_from_the_start():
    with simulated_tpu(embedding_feature="V2").scope(), pytest.raises(ConfigError, match="give the layer `batch_size`"):
        TPUEmbedding(CONFIG, Adagrad())
