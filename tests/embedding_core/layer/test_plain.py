"""The layer without a TPU, its tables trained by Keras' optimizers, as users of TensorFlow Recommenders expect it."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.layer import TPUEmbedding

tpu = tf.tpu.experimental.embedding
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def constant(values):
    return tf.constant_initializer(values)


def one_table(**feature):
    table = tpu.TableConfig(6, 2, constant(ROWS), combiner="sum", name="t")
    return table, {"f": tpu.FeatureConfig(table, **feature)}


def test_every_kind_of_input_is_looked_up():
    table = tpu.TableConfig(6, 2, constant(ROWS), combiner="sum", name="t")
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


def test_structure_is_the_configurations():
    table, features = one_table()
    nested = {"a": [features["f"], (features["f"],)], "b": features["f"]}
    ids = tf.constant([3])
    found = TPUEmbedding(nested, None)({"a": [ids, (ids,)], "b": ids})
    np.testing.assert_array_equal(found["a"][1][0], ROWS[[3]])
    lone = TPUEmbedding(tpu.FeatureConfig(table), None)(ids)
    np.testing.assert_array_equal(lone, ROWS[[3]])


def test_embedding_config_is_a_configuration_too():
    config = EmbeddingConfig(
        tables=(TableConfig(name="t", vocabulary_size=6, dim=2),), features=(FeatureConfig(name="f", table="t"),)
    )
    assert TPUEmbedding(config, "adagrad")({"f": tf.constant([1, 2])})["f"].shape == [2, 2]


@pytest.mark.parametrize("given", [{}, {"f": tf.constant([1]), "g": tf.constant([1])}, {"g": tf.constant([1])}])
def test_missing_or_unknown_feature_is_named(given):
    _, features = one_table()
    with pytest.raises(DataError, match=r"missing \['f'\]|not configured \['g'\]"):
        TPUEmbedding(features, None)(given)


def test_inputs_of_keras_3_are_refused():
    keras = pytest.importorskip("keras", minversion="3")
    with pytest.raises(ConfigError, match="TF_USE_LEGACY_KERAS=1"):
        TPUEmbedding(one_table()[1], "sgd")({"f": keras.Input(shape=(), dtype="int64")})


def test_invalid_id_fails():
    _, features = one_table()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 6\)"):
        TPUEmbedding(features, None)({"f": tf.constant([6])})


def test_functional_model_trains_as_a_subclassed_one():
    losses = {}
    for style in ("functional", "subclassed"):
        _, features = one_table()
        layer = TPUEmbedding(features, tf_keras.optimizers.legacy.Adagrad(0.1))
        head = tf_keras.layers.Dense(1, kernel_initializer="ones")
        if style == "functional":
            inputs = {"f": tf_keras.Input(shape=(None,), dtype=tf.int64, ragged=True)}
            model = tf_keras.Model(inputs, head(layer(inputs)["f"]))
        else:
            model = Subclassed(layer, head)
        model.compile(tf_keras.optimizers.legacy.Adagrad(0.1), "mse")
        data = tf.data.Dataset.from_tensors(({"f": tf.ragged.constant([[1, 2], [5]], dtype=tf.int64)}, [[1.0], [2.0]]))
        losses[style] = model.fit(data, epochs=3, verbose=0).history["loss"]
        assert len(model.trainable_variables) == 3
    assert losses["functional"] == losses["subclassed"]
    assert losses["functional"][-1] < losses["functional"][0]


class Subclassed(tf_keras.Model):
    def __init__(self, layer, head):
        super().__init__()
        self.layer = layer
        self.head = head

    def call(self, inputs):
        return self.head(self.layer(inputs)["f"])


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


def test_activations_have_compute_dtype_and_tables_stay_float32():
    _, features = one_table()
    layer = TPUEmbedding(features, "sgd", dtype="mixed_bfloat16")
    weights = {"f": tf.ragged.constant([[1.0, 0.1]])}
    found = layer({"f": tf.ragged.constant([[1, 2]])}, weights)["f"]
    assert found.dtype == tf.bfloat16
    assert layer.trainable_variables[0].dtype == tf.float32
    np.testing.assert_allclose(tf.cast(found, tf.float32), [ROWS[1] + ROWS[2] / 10], rtol=1e-2)


def test_sparse_gradients_only():
    _, features = one_table()
    layer = TPUEmbedding(features, "sgd")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"f": tf.ragged.constant([[1, 2], [2]])})["f"])
    assert isinstance(tape.gradient(loss, layer.trainable_variables)[0], tf.IndexedSlices)


def test_quantized_tables_are_trained():
    """Rounding has no gradient, so the gradient of the activations is passed through, as on a TPU."""
    table = tpu.TableConfig(2, 1, constant(0.3), quantization_config=tpu.QuantizationConfig(2, 0.0, 1.0), name="t")
    layer = TPUEmbedding({"f": tpu.FeatureConfig(table)}, "sgd")
    with tf.GradientTape() as tape:
        found = layer({"f": tf.constant([1])})["f"]
        loss = 3 * tf.reduce_sum(found)
    assert found.numpy() == [[0.0]]
    assert tape.gradient(loss, layer.trainable_variables)[0].values.numpy() == [[3.0]]


def test_two_tables_of_one_name_are_refused():
    features = {name: one_table()[1]["f"] for name in ("a", "b")}
    with pytest.raises(ConfigError, match="unique name"):
        TPUEmbedding(features, "sgd")


def test_unknown_table_update_is_refused():
    with pytest.raises(ConfigError, match="'keras' or 'engine'"):
        TPUEmbedding(one_table()[1], "sgd", table_update="tpu")


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
    _, features = one_table()
    inputs = {"f": tf_keras.Input(shape=(None,), dtype=tf.int64, ragged=True)}
    model = tf_keras.Model(inputs, TPUEmbedding(features, tf_keras.optimizers.legacy.Adagrad())(inputs))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
    def serve(ids):
        return model({"f": ids})

    tf.saved_model.save(model, str(tmp_path), signatures={"serving": serve})
    found = tf.saved_model.load(str(tmp_path)).signatures["serving"](
        ids=tf.constant([1, 2], tf.int64), ids_1=tf.constant([0, 2, 2], tf.int64)
    )
    np.testing.assert_array_equal(found["f"], [ROWS[1] + ROWS[2], [0, 0]])


def test_keras_file_holds_the_model(tmp_path):
    _, features = one_table()
    inputs = {"f": tf_keras.Input(shape=(), dtype=tf.int64)}
    model = tf_keras.Model(inputs, TPUEmbedding(features, "adam", table_update="engine")(inputs)["f"])
    model.layers[-1].update_embedding_table(features["f"].table, ROWS + 7)
    model.save(tmp_path / "model.keras")
    again = tf_keras.models.load_model(tmp_path / "model.keras", custom_objects={"TPUEmbedding": TPUEmbedding})
    ids = {"f": tf.constant([1, 2], tf.int64)}
    np.testing.assert_array_equal(again(ids), model(ids))
