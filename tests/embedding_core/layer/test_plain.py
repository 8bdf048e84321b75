"""The layer without a TPU, its tables trained by Keras' optimizers, as users of TensorFlow Recommenders expect it."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.errors import ConfigError, DataError
from embedding_core.layer import TPUEmbedding
from tests.support.layers import Subclassed

tpu = tf.tpu.experimental.embedding
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def one_table():
    table = tpu.TableConfig(6, 2, tf.constant_initializer(ROWS), combiner="sum", name="t")
    return table, {"f": tpu.FeatureConfig(table)}


def test_every_kind_of_input_is_looked_up():
    table, _ = one_table()
    features = {name: tpu.FeatureConfig(table) for name in ("dense", "column", "sparse", "ragged")}
    features["sequence"] = tpu.FeatureConfig(table, max_sequence_length=3)
    ids = {
        "dense": tf.constant([1, 5]),
        "column": tf.constant([[1], [5]]),
        "sparse": tf.sparse.from_dense([[1, 2], [0, 5]]),
        "ragged": tf.ragged.constant([[1, 2], []]),
        "sequence": tf.ragged.constant([[1], [2, 3, 4, 5]]),
    }
    weights = dict.fromkeys(features) | {"ragged": tf.ragged.constant([[2.0, 0.5], []])}
    found = TPUEmbedding(features, None)(ids, weights)
    np.testing.assert_array_equal(found["dense"], ROWS[[1, 5]])
    np.testing.assert_array_equal(found["column"], ROWS[[1, 5]])
    np.testing.assert_array_equal(found["sparse"], [ROWS[1] + ROWS[2], ROWS[5]])
    np.testing.assert_array_equal(found["ragged"], [2 * ROWS[1] + ROWS[2] / 2, [0, 0]])
    np.testing.assert_array_equal(found["sequence"], [[ROWS[1], [0, 0], [0, 0]], ROWS[2:5]])


def test_model_trains_its_tables_with_the_rest():
    model = Subclassed(TPUEmbedding(one_table()[1], tf_keras.optimizers.legacy.Adagrad(0.1)))
    model.compile(tf_keras.optimizers.legacy.Adagrad(0.1), "mse")
    data = tf.data.Dataset.from_tensors(({"f": tf.ragged.constant([[1, 2], [5]], dtype=tf.int64)}, [[1.0], [2.0]]))
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    assert len(model.trainable_variables) == 2
    assert losses[-1] < losses[0]
    moved = np.any(next(iter(model.layer.embedding_tables.values())) != ROWS, 1)
    assert moved.tolist() == [False, True, True, False, False, True]


def test_non_finite_weight_is_refused():
    layer = TPUEmbedding(one_table()[1], None)
    ids = tf.ragged.constant([[1, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="A weight of feature f is NaN or infinite"):
        layer({"f": ids}, {"f": tf.ragged.constant([[np.nan, 1.0]])})


def test_tables_are_trainable_variables_by_the_callers_config():
    table, features = one_table()
    layer = TPUEmbedding(features, "adam")
    layer({"f": tf.constant([1])})
    assert list(layer.embedding_tables) == [table]
    assert [variable.shape for variable in layer.trainable_variables] == [[6, 2]]
    assert table.optimizer is None


def test_update_embedding_table():
    table, features = one_table()
    layer = TPUEmbedding(features, "sgd")
    layer.update_embedding_table(table, tf.Variable(ROWS * 2))
    np.testing.assert_array_equal(layer({"f": tf.constant([1])})["f"], ROWS[[1]] * 2)
    with pytest.raises(DataError, match="shape"):
        layer.update_embedding_table(table, ROWS[:3])
    with pytest.raises(DataError, match="same object"):
        layer.update_embedding_table(one_table()[0], ROWS)


def test_serving_config_looks_up_part_of_the_features():
    table, features = one_table()
    layer = TPUEmbedding({**features, "g": tpu.FeatureConfig(table)}, None)
    found = layer({"only": tf.constant([2])}, serving_config={"only": tpu.FeatureConfig(table)})
    np.testing.assert_array_equal(found["only"], ROWS[[2]])
    with pytest.raises(DataError, match="does not match any of the TableConfigs"):
        layer({"x": tf.constant([2])}, serving_config={"x": tpu.FeatureConfig(one_table()[0])})


def test_activations_have_compute_dtype_and_gradients_are_sparse():
    layer = TPUEmbedding(one_table()[1], "sgd", dtype="mixed_bfloat16")
    weights = {"f": tf.ragged.constant([[1.0, 0.1]])}
    with tf.GradientTape() as tape:
        found = layer({"f": tf.ragged.constant([[1, 2]])}, weights)["f"]
    assert found.dtype == tf.bfloat16
    assert layer.trainable_variables[0].dtype == tf.float32
    np.testing.assert_allclose(tf.cast(found, tf.float32), [ROWS[1] + ROWS[2] / 10], rtol=1e-2)
    assert isinstance(tape.gradient(found, layer.trainable_variables)[0], tf.IndexedSlices)


def test_quantized_tables_are_trained():
    """Rounding has no gradient, so the gradient of the activations is passed through, as on a TPU."""
    quantized = tpu.QuantizationConfig(2, 0.0, 1.0)
    table = tpu.TableConfig(2, 1, tf.constant_initializer(0.3), quantization_config=quantized, name="t")
    layer = TPUEmbedding({"f": tpu.FeatureConfig(table)}, "sgd")
    with tf.GradientTape() as tape:
        found = layer({"f": tf.constant([1])})["f"]
        loss = 3 * tf.reduce_sum(found)
    assert found.numpy() == [[0.0]]
    assert tape.gradient(loss, layer.trainable_variables)[0].values.numpy() == [[3.0]]


@pytest.mark.parametrize("update", ["keras", "engine"])
def test_configuration_goes_through_json(update):
    table = tpu.TableConfig(6, 2, tf_keras.initializers.Constant(2.0), tpu.Adam(0.3, beta_1=0.5), "sqrtn", "t")
    nested = {"a": [tpu.FeatureConfig(table, 3, name="x")], "b": (tpu.FeatureConfig(table),)}
    layer = TPUEmbedding(nested, tf_keras.optimizers.legacy.Adagrad(0.2), table_update=update, seed=3, name="mine")
    again = TPUEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    ids = {"a": [tf.ragged.constant([[1, 2]])], "b": (tf.constant([1]),)}
    tf.nest.map_structure(np.testing.assert_array_equal, layer(ids), again(ids))


def test_function_as_learning_rate_is_not_written_to_json():
    layer = TPUEmbedding(one_table()[1], tpu.SGD(lambda: tf.constant(0.1)))
    with pytest.raises(ConfigError, match="callable"):
        layer.get_config()


def test_export_and_serve(tmp_path):
    inputs = {"f": tf_keras.Input(shape=(None,), dtype=tf.int64, ragged=True)}
    layer = TPUEmbedding(one_table()[1], tf_keras.optimizers.legacy.Adagrad())
    model = tf_keras.Model(inputs, layer(inputs))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
    def serve(ids):
        return model({"f": ids})

    tf.saved_model.save(model, str(tmp_path), signatures={"serving": serve})
    found = tf.saved_model.load(str(tmp_path)).signatures["serving"](
        ids=tf.constant([1, 2], tf.int64), ids_1=tf.constant([0, 2, 2], tf.int64)
    )
    np.testing.assert_array_equal(found["f"], [ROWS[1] + ROWS[2], [0, 0]])
