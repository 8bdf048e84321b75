"""With table_update="engine", the backward pass updates tables on a CPU by the TPU's optimizer rules."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, EngineError
from embedding_core.layer import TPUEmbedding

tpu = tf.tpu.experimental.embedding
simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation


def layer_of(optimizer, rows=4, **arguments):
    table = tpu.TableConfig(rows, 1, tf.constant_initializer(1.0), combiner="sum", name="t")
    arguments = {"table_update": "engine"} | arguments
    return table, TPUEmbedding({"f": tpu.FeatureConfig(table)}, optimizer, **arguments)


def step(layer, ids, scale=1.0):
    with tf.GradientTape() as tape:
        loss = scale * tf.reduce_sum(layer({"f": ids})["f"])
    return tape.gradient(loss, layer.trainable_variables)


def rows(layer):
    return next(iter(layer.embedding_tables.values())).numpy()[:, 0]


def slots(layer):
    return {key: variable.numpy()[:, 0] for key, variable in layer.table_variables.items()}


def test_adam_is_the_tpus_and_keras_adam_is_keras():
    _, layer = layer_of(tpu.Adam(0.1))
    assert [gradient.numpy().tolist() for gradient in step(layer, tf.constant([1]))] == [[0.0]]
    np.testing.assert_allclose(rows(layer), [1, 0.684, 1, 1], atol=5e-4)
    keras = tf_keras.optimizers.legacy.Adam(0.1)
    _, layer = layer_of(keras, table_update="keras")
    keras.apply_gradients(zip(step(layer, tf.constant([1])), layer.trainable_variables, strict=True))
    np.testing.assert_allclose(rows(layer), [1, 0.9, 1, 1], atol=5e-4)


@pytest.mark.parametrize("generation", [tf_keras.optimizers.legacy, tf_keras.optimizers])
@pytest.mark.parametrize(
    ("name", "slot", "expected"), [("SGD", None, 0.8), ("Adagrad", "accumulators", 4.1), ("Adam", "momenta", 0.2)]
)
def test_keras_optimizers_become_the_tpus(generation, name, slot, expected):
    _, layer = layer_of(getattr(generation, name)(0.1))
    step(layer, tf.constant([1, 1]))  # duplicates accumulate: one gradient of 2
    found = slots(layer)
    np.testing.assert_allclose(found[f"t/{slot}"][1] if slot else found["t"][1], expected, rtol=1e-6)


def test_only_touched_rows_move():
    _, layer = layer_of("adam")
    step(layer, tf.constant([0, 2]))
    step(layer, tf.constant([2]))
    found = slots(layer)
    assert found["t/momenta"][[1, 3]].tolist() == [0, 0]
    assert (found["t"] != 1).tolist() == [True, False, True, False]


def test_tables_have_their_own_optimizers():
    tables = [tpu.TableConfig(3, 1, tf.ones_initializer(), name=name) for name in ("a", "b")]
    tables[1].optimizer = tf_keras.optimizers.SGD(0.5)
    layer = TPUEmbedding(
        {table.name: tpu.FeatureConfig(table) for table in tables}, tpu.Adagrad(0.1), table_update="engine"
    )
    with tf.GradientTape() as tape:
        found = layer({"a": tf.constant([0]), "b": tf.constant([0])})
        loss = tf.reduce_sum(found["a"] + found["b"])
    tape.gradient(loss, layer.trainable_variables)
    assert sorted(slots(layer)) == ["a", "a/accumulators", "b"]
    np.testing.assert_allclose(layer.embedding_tables[tables[1]][0], [0.5])


def test_learning_rate_follows_a_schedule():
    """The first documented way: a Keras schedule, which follows `iterations` of the optimizer that the caller steps."""
    schedule = tf_keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25])
    for generation in (tf_keras.optimizers.legacy, tf_keras.optimizers):
        optimizer = generation.SGD(schedule)
        _, layer = layer_of(optimizer)
        found = []
        for _ in range(3):
            gradients = step(layer, tf.constant([1]))
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            found.append(float(rows(layer)[1]))
        assert found == [0.0, -0.5, -0.75]


def test_learning_rate_follows_a_callable():
    """The second documented way: a callable that reads a variable of the user."""
    count = tf.Variable(1.0)
    _, layer = layer_of(tpu.SGD(lambda: 1.0 / count))
    train = tf.function(lambda: step(layer, tf.constant([1])))
    train()
    count.assign(4.0)
    train()
    assert rows(layer)[1] == -0.25


def test_learning_rate_follows_assignment_to_a_keras_optimizer():
    optimizer = tf_keras.optimizers.legacy.SGD(1.0)
    _, layer = layer_of(optimizer)
    train = tf.function(lambda: step(layer, tf.constant([1])))
    train()
    optimizer.learning_rate = 0.25
    train()
    assert rows(layer)[1] == -0.25


def test_fit_evaluate_and_steps_per_execution():
    _, layer = layer_of(tpu.SGD(0.5))
    inputs = {"f": tf_keras.Input(shape=(), dtype=tf.int64)}
    model = tf_keras.Model(inputs, layer(inputs)["f"])
    model.compile("sgd", "mse", steps_per_execution=2)
    data = tf.data.Dataset.from_tensor_slices(({"f": tf.constant([1, 1, 2, 2], tf.int64)}, tf.zeros([4, 1]))).batch(2)
    model.fit(data, epochs=1, verbose=0)
    np.testing.assert_allclose(rows(layer), [1, 0, 0, 1])
    assert model.evaluate(data, verbose=0) == 0.0
    np.testing.assert_allclose(rows(layer), [1, 0, 0, 1])


def test_steps_in_a_loop():
    _, layer = layer_of("sgd")
    layer({"f": tf.constant([0])})

    @tf.function
    def train(steps):
        for _ in tf.range(steps):
            step(layer, tf.constant([1]))

    train(5)
    np.testing.assert_allclose(rows(layer)[1], 0.95, rtol=1e-6)


def in_cond(layer):
    return tf.cond(tf.constant(True), lambda: tf.reduce_sum(layer({"f": tf.constant([1])})["f"]), lambda: 0.0)


def in_while(layer):
    def body(turn, total):
        return turn + 1, total + tf.reduce_sum(layer({"f": tf.constant([1])})["f"])

    return tf.while_loop(lambda turn, _: turn < 2, body, (0, 0.0))[1]


def in_function(layer):
    return tf.function(lambda: tf.reduce_sum(layer({"f": tf.constant([1])})["f"]))()


@pytest.mark.parametrize("lookup", [in_cond, in_while, in_function])
@pytest.mark.parametrize("traced", [True, False])
def test_gradient_from_outside_is_refused(lookup, traced):
    if not traced and lookup is not in_function:
        pytest.skip("eagerly these are plain Python")
    _, layer = layer_of("sgd")
    layer({"f": tf.constant([0])})

    def train():
        with tf.GradientTape() as tape:
            loss = lookup(layer)
        return tape.gradient(loss, layer.trainable_variables)

    with pytest.raises(tf.errors.InvalidArgumentError, match="pass its activations in"):
        (tf.function(train) if traced else train)()
    assert rows(layer)[1] == 1


def test_activations_may_go_into_control_flow():
    _, layer = layer_of(tpu.SGD(0.5))
    layer({"f": tf.constant([0])})

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            activations = layer({"f": tf.constant([1])})["f"]
            loss = tf.cond(tf.constant(True), lambda: 2 * tf.reduce_sum(activations), lambda: 0.0)
        return tape.gradient(loss, layer.trainable_variables)

    train()
    assert rows(layer)[1] == 0


def test_batches_of_any_size_through_a_long_concatenation():
    """TensorFlow gives no static shape to the gradients of a concatenation's inputs if there are more than 16."""
    table = tpu.TableConfig(4, 1, tf.constant_initializer(1.0), combiner="sum", name="t")
    features = {f"f{number:02}": tpu.FeatureConfig(table) for number in range(17)}
    layer = TPUEmbedding(features, tpu.SGD(0.01), table_update="engine")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.concat(list(layer(dict.fromkeys(features, ids)).values()), 1))
        return tape.gradient(loss, layer.trainable_variables)

    train(tf.constant([1], tf.int64))
    train(tf.constant([1, 2, 2], tf.int64))
    np.testing.assert_allclose(rows(layer), [1, 0.66, 0.66, 1], rtol=1e-5)


def test_without_an_optimizer_tables_cannot_be_trained():
    _, layer = layer_of(None)
    with pytest.raises(EngineError, match="has no optimizer"):
        step(layer, tf.constant([1]))


def test_loss_scale_is_taken_out_of_gradients():
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(1.0), dynamic=False, initial_scale=128.0
    )
    _, layer = layer_of(tpu.SGD(0.5), dtype="mixed_float16")
    with pytest.raises(EngineError, match="loss_scale_optimizer"):
        step(layer, tf.constant([1]))
    layer.loss_scale_optimizer = scaled
    step(layer, tf.constant([1]), scale=128.0)
    assert rows(layer)[1] == 0.5
    step(layer, tf.constant([1]), scale=np.inf)
    assert rows(layer)[1] == 0.5
    with pytest.raises(ConfigError, match="LossScaleOptimizer"):
        layer.loss_scale_optimizer = tf_keras.optimizers.SGD()


def test_bfloat16_activations_train_float32_tables():
    _, layer = layer_of(tpu.SGD(0.5), dtype="mixed_bfloat16")
    step(layer, tf.constant([1]))
    assert rows(layer).dtype == np.float32
    assert rows(layer)[1] == 0.5


def mirrored(replicas):
    devices = [f"CPU:{core}" for core in range(1, replicas + 1)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def test_mirrored_replicas_update_one_table():
    strategy = mirrored(3)
    with strategy.scope():
        _, layer = layer_of(tpu.Adagrad(0.1))
        inputs = {"f": tf_keras.Input(shape=(), dtype=tf.int64)}
        model = tf_keras.Model(inputs, layer(inputs)["f"])
        model.compile("sgd", tf_keras.losses.MeanSquaredError())
    data = tf.data.Dataset.from_tensors(({"f": tf.constant([1, 1, 2], tf.int64)}, tf.zeros([3, 1])))
    model.fit(data, epochs=1, verbose=0)
    gradients = np.array([0, 4 / 3, 2 / 3, 0])
    np.testing.assert_allclose(slots(layer)["t/accumulators"], 0.1 + gradients**2, rtol=1e-6)
    np.testing.assert_allclose(rows(layer), 1 - 0.1 * gradients / np.sqrt(0.1 + gradients**2), rtol=1e-6)


@pytest.mark.slow
def test_mirrored_replicas_train_with_keras():
    strategy = mirrored(2)
    with strategy.scope():
        optimizer = tf_keras.optimizers.legacy.SGD(0.5)
        _, layer = layer_of(optimizer, table_update="keras")
        model = Outer(layer)
        model.compile(optimizer, tf_keras.losses.MeanSquaredError())
    data = tf.data.Dataset.from_tensors(({"f": tf.constant([1, 2], tf.int64)}, tf.zeros([2, 1])))
    model.fit(data, epochs=1, verbose=0)
    np.testing.assert_allclose(rows(layer), [1, 0.5, 0.5, 1])


class Outer(tf_keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)["f"]


def test_no_dense_gradient_of_a_table_is_made():
    """A process with less than 150 MB left trains a table whose dense gradient would take 200 MB."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["trained"]


LIMITED = """
import os, resource
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
from embedding_core.layer import TPUEmbedding
tpu = tf.tpu.experimental.embedding

def step_of(rows):
    table = tpu.TableConfig(rows, 1000, tf.zeros_initializer(), name="t")
    layer = TPUEmbedding({"f": tpu.FeatureConfig(table)}, "adam", table_update="engine")
    layer.build([tf.TensorShape([3])])

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer({"f": ids})["f"])
        return tape.gradient(loss, layer.trainable_variables)

    return step

ids = tf.constant([1, 2, 1])
step_of(10)(ids)  # TensorFlow's own threads and buffers are there
step = step_of(50_000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150_000_000,) * 2)
held = []
try:  # what TensorFlow keeps of memory that it used before must not serve as the gradient's
    while True:
        held.append(tf.fill([10_000_000], 1.0))
except tf.errors.ResourceExhaustedError:
    held = held[:-1]
for _ in range(3):
    step(ids)
print("trained")
"""
