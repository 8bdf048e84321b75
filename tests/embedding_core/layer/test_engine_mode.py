"""With table_update="engine", the backward pass updates tables on a CPU by the TPU's optimizer rules."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.errors import ConfigError, EngineError
from embedding_core.layer import TPUEmbedding
from tests.support.layers import data_of, functional_model, gradient_step, layer_of, rows_of, slots_of, table_of

tpu = tf.tpu.experimental.embedding
GENERATIONS = pytest.mark.parametrize("generation", [tf_keras.optimizers.legacy, tf_keras.optimizers])


def test_adam_is_the_tpus_and_keras_adam_is_keras():
    layer = layer_of(tpu.Adam(0.1))
    assert [gradient.numpy().tolist() for gradient in gradient_step(layer, tf.constant([1]))] == [[0.0]]
    np.testing.assert_allclose(rows_of(layer), [1, 0.684, 1, 1], atol=5e-4)
    keras = tf_keras.optimizers.legacy.Adam(0.1)
    layer = layer_of(keras, "keras")
    keras.apply_gradients(zip(gradient_step(layer, tf.constant([1])), layer.trainable_variables, strict=True))
    np.testing.assert_allclose(rows_of(layer), [1, 0.9, 1, 1], atol=5e-4)


def test_tables_have_their_own_optimizers():
    tables = [table_of(name=name) for name in ("a", "b")]
    tables[1].optimizer = tf_keras.optimizers.SGD(0.5)
    features = {table.name: tpu.FeatureConfig(table) for table in tables}
    layer = TPUEmbedding(features, tpu.Adagrad(0.1), table_update="engine")
    with tf.GradientTape() as tape:
        found = layer({"a": tf.constant([0]), "b": tf.constant([0])})
        loss = tf.reduce_sum(found["a"] + found["b"])
    tape.gradient(loss, layer.trainable_variables)
    assert sorted(slots_of(layer)) == ["a", "a/accumulators", "b"]
    np.testing.assert_allclose(layer.embedding_tables[tables[1]][0], [0.5])


@GENERATIONS
def test_learning_rate_follows_a_schedule(generation):
    """The first documented way: a Keras schedule, which follows `iterations` of the optimizer that the caller steps."""
    optimizer = generation.SGD(tf_keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25]))
    layer, found = layer_of(optimizer), []
    for _ in range(3):
        gradients = gradient_step(layer, tf.constant([1]))
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        found.append(float(rows_of(layer)[1]))
    assert found == [0.0, -0.5, -0.75]


@pytest.mark.parametrize("kind", ["callable", "assigned"])
def test_learning_rate_is_read_in_every_step(kind):
    """The second documented way is a callable that reads a variable of the user."""
    rate = tf.Variable(1.0)
    keras = tf_keras.optimizers.legacy.SGD(1.0)
    layer = layer_of(tpu.SGD(lambda: 1.0 * rate) if kind == "callable" else keras)
    train = tf.function(lambda: gradient_step(layer, tf.constant([1])))
    train()
    rate.assign(0.25)
    keras.learning_rate = 0.25
    train()
    assert rows_of(layer)[1] == -0.25


def in_cond(look_up):
    return tf.cond(tf.constant(True), look_up, lambda: 0.0)


def in_while(look_up):
    return tf.while_loop(lambda turn, _: turn < 2, lambda turn, total: (turn + 1, total + look_up()), (0, 0.0))[1]


def in_function(look_up):
    return tf.function(look_up)()


@pytest.mark.parametrize(
    ("inside", "traced"), [(in_cond, True), (in_while, True), (in_function, True), (in_function, False)]
)
def test_gradient_from_outside_is_refused(inside, traced):
    layer = layer_of("sgd")
    layer.build(None)

    def train():
        with tf.GradientTape() as tape:
            loss = inside(lambda: tf.reduce_sum(layer({"f": tf.constant([1])})["f"]))
        return tape.gradient(loss, layer.trainable_variables)

    with pytest.raises(tf.errors.InvalidArgumentError, match="pass its activations in"):
        (tf.function(train) if traced else train)()
    assert rows_of(layer)[1] == 1


def test_activations_may_go_into_control_flow():
    layer = layer_of(tpu.SGD(0.5))
    layer.build(None)

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            activations = layer({"f": tf.constant([1])})["f"]
            loss = tf.cond(tf.constant(True), lambda: 2 * tf.reduce_sum(activations), lambda: 0.0)
        return tape.gradient(loss, layer.trainable_variables)

    train()
    assert rows_of(layer)[1] == 0


def test_batches_of_any_size_through_a_long_concatenation():
    """TensorFlow gives no static shape to the gradients of a concatenation's inputs if there are more than 16."""
    table = table_of()
    features = {f"f{number:02}": tpu.FeatureConfig(table) for number in range(17)}
    layer = TPUEmbedding(features, tpu.SGD(0.01), table_update="engine")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.concat(list(layer(dict.fromkeys(features, ids)).values()), 1))
        return tape.gradient(loss, layer.trainable_variables)

    train(tf.constant([1], tf.int64))
    train(tf.constant([1, 2, 2], tf.int64))
    np.testing.assert_allclose(rows_of(layer), [1, 0.66, 0.66, 1], rtol=1e-5)


def test_without_an_optimizer_tables_cannot_be_trained():
    with pytest.raises(EngineError, match="has no optimizer"):
        gradient_step(layer_of(None), tf.constant([1]))


@pytest.mark.parametrize("traced", [True, False])
def test_loss_scale_is_taken_out_of_gradients(traced):
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(1.0), dynamic=False, initial_scale=128.0
    )
    layer = layer_of(tpu.SGD(0.5), dtype="mixed_float16")

    def train(scale):
        step = tf.function(gradient_step) if traced else gradient_step
        step(layer, tf.constant([1]), scale)

    with pytest.raises(EngineError, match="loss_scale_optimizer"):
        train(128.0)
    layer.loss_scale_optimizer = scaled
    train(128.0)
    assert rows_of(layer)[1] == 0.5
    train(np.inf)
    assert rows_of(layer)[1] == 0.5
    with pytest.raises(ConfigError, match="LossScaleOptimizer"):
        layer.loss_scale_optimizer = tf_keras.optimizers.SGD()


def test_bfloat16_activations_train_float32_tables():
    layer = layer_of(tpu.SGD(0.5), dtype="mixed_bfloat16")
    gradient_step(layer, tf.constant([1]))
    assert rows_of(layer).dtype == np.float32
    assert rows_of(layer)[1] == 0.5


def mirrored_model(replicas, *layer):
    devices = [f"CPU:{core}" for core in range(1, replicas + 1)]
    with tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice()).scope():
        return functional_model(layer_of(*layer), tf_keras.optimizers.legacy.SGD(0.5))


def test_mirrored_replicas_update_one_table():
    model = mirrored_model(3, tpu.Adagrad(0.1))
    model.fit(data_of([1, 1, 2]).batch(3), epochs=1, verbose=0)
    gradients = np.array([0, 4 / 3, 2 / 3, 0])
    found = slots_of(model.layers[1])
    np.testing.assert_allclose(found["t/accumulators"], 0.1 + gradients**2, rtol=1e-6)
    np.testing.assert_allclose(found["t"], 1 - 0.1 * gradients / np.sqrt(0.1 + gradients**2), rtol=1e-6)


@pytest.mark.slow
def test_mirrored_replicas_train_with_keras():
    model = mirrored_model(2, tf_keras.optimizers.legacy.SGD(0.5), "keras")
    model.fit(data_of([1, 2]).batch(2), epochs=1, verbose=0)
    np.testing.assert_allclose(rows_of(model.layers[1]), [1, 0.5, 0.5, 1])
