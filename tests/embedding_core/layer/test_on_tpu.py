"""The layer under the strategy of a simulated TPU."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, EngineError
from tests.support.layers import (
    Subclassed,
    data_of,
    gradient_step,
    ids_of_cores,
    layer_of,
    on_cores,
    on_two_cores,
    rows_of,
    table_of,
)

tpu = tf.tpu.experimental.embedding
kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
ON_HOST = tf.distribute.InputOptions(experimental_fetch_to_device=False)


def trained_by(layer):
    return lambda ids: gradient_step(layer, ids)


def test_virtual_variable_trains_the_tables_of_all_cores_once():
    strategy, layer = on_two_cores()
    on_cores(strategy, trained_by(layer))(ids_of_cores(strategy, [1, 1], [1, 2]))
    assert rows_of(layer).tolist() == [1, -0.5, 0.5, 1]
    assert [variable.shape for variable in layer.trainable_variables] == [[1]]


class Doubled(tf_keras.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, ids):
        return 2 * self.layer({"f": ids})["f"]


def test_functional_model_with_the_layer_inside_a_layer_trains():
    strategy, layer = on_two_cores(tpu.SGD(0.125))
    with strategy.scope():  # Keras divides the batch of 4 by 2 replicas
        inputs = tf_keras.Input(shape=(), batch_size=4, dtype=tf.int64)
        model = tf_keras.Model(inputs, Doubled(layer)(inputs))
        model.compile("sgd", tf_keras.losses.MeanSquaredError(), steps_per_execution=2)
    data = tf.data.Dataset.from_tensor_slices((tf.constant([1, 1, 2, 2] * 2, tf.int64), tf.zeros([8, 1])))
    data = strategy.experimental_distribute_dataset(data.batch(4), ON_HOST)
    model.fit(data, epochs=1, steps_per_epoch=2, verbose=0)
    np.testing.assert_allclose(rows_of(layer), [1, 0.25, 0.25, 1])
    assert model.evaluate(data, steps=2, verbose=0) == 0.5**2
    np.testing.assert_allclose(rows_of(layer), [1, 0.25, 0.25, 1])


def test_fit_after_a_refused_one_says_the_cause_or_trains():
    strategy, layer = on_two_cores()
    with strategy.scope():
        model = Subclassed(layer)
        model.compile("adam", "mse")
    data = data_of([1, 1, 2, 2])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"f has output shape set as .* batch the data with drop_remainder=True"):
            model.fit(data.batch(4), verbose=0)
    assert model.fit(data.batch(4, drop_remainder=True), verbose=0).history["loss"] == [1.0]
    assert rows_of(layer).tolist() == [1, 0.5, 0.5, 1]


def test_variables_of_a_later_trace_are_refused():
    strategy, made = simulated_tpu(hosts=1, cores_per_host=2), {}

    def step(ids):
        key = ids.shape[0], str(tf.distribute.get_replica_context().devices)
        if key not in made:
            made[key] = tf.Variable(1.0)

    train = on_cores(strategy, step)
    train(ids_of_cores(strategy, [1, 1], [1, 2]))
    with pytest.raises(ValueError, match="only supports singleton tf"):
        train(ids_of_cores(strategy, [1, 1, 1], [1, 2, 3]))


def test_subclassed_model_in_a_loop_of_steps():
    """The documented training loop: tf.range around strategy.run, one optimizer for all variables."""
    optimizer = tf_keras.optimizers.legacy.Adagrad(0.1)
    strategy, layer = on_two_cores(optimizer)
    with strategy.scope():
        model = Subclassed(layer)
    data = tf.data.Dataset.from_tensors({"f": tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)}).repeat()
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: data, ON_HOST))

    @tf.function
    def train(iterator, steps):
        def on_core(inputs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(inputs))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for _ in tf.range(steps):
            strategy.run(on_core, args=(next(iterator),))

    train(iterator, 2)
    kernel, row, accumulator, heads = 1.0, 1.0, 0.1, 0.1
    for _ in range(2):  # Keras' Adagrad has an epsilon of 1e-7, the TPU's none
        gradient, head = 2 * kernel, 2 * 3 * row
        accumulator, heads = accumulator + gradient**2, heads + head**2
        row, kernel = row - 0.1 * gradient / np.sqrt(accumulator), kernel - 0.1 * head / np.sqrt(heads)
    np.testing.assert_allclose(rows_of(model.layer)[1:], [row] * 3, rtol=1e-5)
    np.testing.assert_allclose(model.head.kernel.numpy(), [[kernel]], rtol=1e-5)


@pytest.mark.parametrize("cores", [1, 2])
def test_separate_optimizers_by_the_documented_partition(cores):
    """The documented code, which partitions gradients by variable, works on a TPU and off it."""
    strategy = simulated_tpu() if cores > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        for_tables, for_dense = tf_keras.optimizers.legacy.SGD(0.5), tf_keras.optimizers.legacy.SGD(0.25)
        model = Subclassed(layer_of(for_tables, "keras"))

    def on_core(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model({"f": ids}))
        pairs = list(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        own = {id(variable) for variable in model.layer.trainable_variables}
        for_dense.apply_gradients([pair for pair in pairs if id(pair[1]) not in own])
        for_tables.apply_gradients([pair for pair in pairs if id(pair[1]) in own])

    on_cores(strategy, on_core)(ids_of_cores(strategy, [1], [2]))
    assert rows_of(model.layer)[1] == 0.5
    assert model.head.kernel.numpy().item() == 1 - 0.25 * cores


@pytest.mark.slow
def test_layer_used_twice():
    strategy, layer = on_two_cores()

    def on_core(ids):
        with tf.GradientTape() as tape:
            first, second = layer({"f": ids})["f"], layer({"f": ids})["f"]
            loss = tf.reduce_sum(first + 3 * second)
        return tape.gradient(loss, layer.trainable_variables)

    on_cores(strategy, on_core)(ids_of_cores(strategy, [0], [1]))
    assert rows_of(layer).tolist() == [-1, -1, 1, 1]


@pytest.mark.parametrize("where", ["cond", "function"])
def test_lookup_inside_control_flow_is_refused(where):
    strategy, layer = on_two_cores()
    ids = ids_of_cores(strategy, [1], [2])
    with strategy.scope():
        layer.build([tf.TensorShape([1])])

    def on_core(own):
        def inside():
            return layer({"f": own})["f"]

        if where == "cond":
            return tf.cond(tf.constant(True), inside, lambda: tf.zeros([1, 1]))
        return tf.function(inside)()

    with pytest.raises(EngineError, match=r"top level of the function given to strategy\.run"):
        on_cores(strategy, on_core)(ids)


def test_layer_belongs_to_the_strategy_that_made_it():
    strategy, layer = on_two_cores()
    with pytest.raises(EngineError, match=r"Please use strategy\.run when calling this layer"):
        layer({"f": tf.constant([1])})
    plain = layer_of("sgd", "keras")
    with pytest.raises(EngineError, match="Please create the layer under a TPUStrategy"):
        strategy.run(tf.function(lambda: plain({"f": tf.constant([1])})))


@pytest.mark.parametrize(
    ("optimizer", "arguments", "message"),
    [
        (None, {}, "unsupported optimizer class"),
        ("sgd", {"embedding_feature": kinds.V2}, "TPU only supports"),
    ],
)
def test_what_the_tpu_cannot_train_is_refused(optimizer, arguments, message):
    with pytest.raises(ConfigError, match=message), simulated_tpu().scope():
        layer_of(optimizer, "keras", **arguments)


def test_whole_tables_on_every_core_are_trainable_variables():
    optimizer = tf_keras.optimizers.legacy.SGD(0.5)
    strategy, layer = on_two_cores(optimizer, embedding_feature=kinds.UNSUPPORTED)

    def on_core(ids):
        gradients = gradient_step(layer, ids)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    on_cores(strategy, on_core)(ids_of_cores(strategy, [1], [1]))
    assert rows_of(layer).tolist() == [1, 0, 1, 1]
    assert len(layer.trainable_variables) == 1


@pytest.mark.slow
def test_pipelined_activations_are_one_step_old():
    strategy, layer = on_two_cores(pipeline_execution_with_tensor_core=True)

    def on_core(ids):
        with tf.GradientTape() as tape:
            found = layer({"f": ids})["f"]
            loss = tf.reduce_sum(found)
        tape.gradient(loss, layer.trainable_variables)
        return found

    train, ids = on_cores(strategy, on_core), ids_of_cores(strategy, [1], [2])
    found = [strategy.experimental_local_results(train(ids))[0].numpy().item() for _ in range(3)]
    assert found == [1, 1, 0.5]


def test_written_table_is_looked_up_and_exported(tmp_path):
    table = table_of()
    strategy, layer = on_two_cores(table=table)
    look, ids = on_cores(strategy, lambda own: layer({"f": own})["f"]), ids_of_cores(strategy, [1], [2])
    look(ids)
    layer.update_embedding_table(table, np.arange(4.0)[:, np.newaxis])
    assert [result.numpy().item() for result in strategy.experimental_local_results(look(ids))] == [1, 2]
    model = tf_keras.Sequential()
    model.embedding = layer
    serve = tf.function(lambda ids: layer({"f": ids}), input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    tf.saved_model.save(model, str(tmp_path), signatures={"serving": serve})
    found = tf.saved_model.load(str(tmp_path)).signatures["serving"](ids=tf.constant([0, 1, 2], tf.int64))
    assert found["f"].numpy()[:, 0].tolist() == [0, 1, 2]


def test_call_outside_of_run_leaves_no_batch_behind():
    strategy, layer = on_two_cores()
    train = on_cores(strategy, trained_by(layer))
    train(ids_of_cores(strategy, [1], [1]))
    with strategy.scope(), pytest.raises(EngineError, match=r"outside of strategy\.run"):
        layer({"f": tf.constant([3, 3])})
    train(ids_of_cores(strategy, [2], [2]))
    assert rows_of(layer).tolist() == [1, 0, 0, 1]


@pytest.mark.slow
def test_step_that_overflows_in_one_replica_is_nobodys():
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(1.0), dynamic=False, initial_scale=2.0)
    strategy, layer = on_two_cores()
    layer.loss_scale_optimizer = scaled
    scales = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([np.inf, 2.0][context.replica_id_in_sync_group])
    )
    train = on_cores(strategy, lambda ids, scale: gradient_step(layer, ids, scale))
    train(ids_of_cores(strategy, [1], [2]), scales)
    assert rows_of(layer).tolist() == [1, 1, 1, 1]
