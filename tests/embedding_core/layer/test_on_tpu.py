"""The layer under the strategy of a simulated TPU."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, EngineError
from embedding_core.layer import TPUEmbedding

tpu = tf.tpu.experimental.embedding
kinds = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation
ON_HOST = tf.distribute.InputOptions(experimental_fetch_to_device=False)


def configs(optimizer=None):
    table = tpu.TableConfig(4, 1, tf.constant_initializer(1.0), optimizer, combiner="sum", name="t")
    return table, {"f": tpu.FeatureConfig(table)}


def on_two_cores(optimizer=None, **arguments):
    strategy = simulated_tpu(hosts=1, cores_per_host=2)
    table, features = configs()
    with strategy.scope():
        layer = TPUEmbedding(features, optimizer or tpu.SGD(0.5), **arguments)
    return strategy, table, layer


def rows(layer):
    return layer.table_variables["t"].numpy()[:, 0]


def ids_of(strategy, *parts):
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group], tf.int64)
    )


def gradient_step(layer, ids, scale=1.0):
    with tf.GradientTape() as tape:
        loss = scale * tf.reduce_sum(layer({"f": ids})["f"])
    return tape.gradient(loss, layer.trainable_variables)


def test_virtual_variable_trains_the_tables_of_all_cores_once():
    strategy, _, layer = on_two_cores()
    train = tf.function(lambda ids: strategy.run(gradient_step, args=(layer, ids)))
    train(ids_of(strategy, [1, 1], [1, 2]))
    assert rows(layer).tolist() == [1, -0.5, 0.5, 1]
    assert [variable.shape for variable in layer.trainable_variables] == [[1]]


def test_functional_model_fits_evaluates_and_predicts():
    strategy, _, _ = on_two_cores()
    _, features = configs()
    with strategy.scope():
        inputs = {"f": tf_keras.Input(batch_size=4, shape=(), dtype=tf.int64)}  # Keras divides 4 by 2 replicas
        layer = TPUEmbedding(features, tpu.SGD(0.5))
        model = tf_keras.Model(inputs, layer(inputs)["f"])
        model.compile("sgd", tf_keras.losses.MeanSquaredError(), steps_per_execution=2)
    data = tf.data.Dataset.from_tensor_slices(({"f": tf.constant([1, 1, 2, 2] * 2, tf.int64)}, tf.zeros([8, 1])))
    data = strategy.experimental_distribute_dataset(data.batch(4), ON_HOST)
    model.fit(data, epochs=1, steps_per_epoch=2, verbose=0)
    np.testing.assert_allclose(rows(layer), [1, 0.25, 0.25, 1])
    assert model.evaluate(data, steps=2, verbose=0) == 0.25**2
    assert model.predict(data, steps=1).tolist() == [[0.25]] * 4
    np.testing.assert_allclose(rows(layer), [1, 0.25, 0.25, 1])


def test_fit_after_a_refused_one_says_the_cause_or_trains():
    strategy, _, layer = on_two_cores()
    with strategy.scope():
        model = Subclassed(layer)
        model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices(({"f": tf.constant([1, 1, 2, 2], tf.int64)}, tf.zeros([4, 1])))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"f has output shape set as .* batch the data with drop_remainder=True"):
            model.fit(data.batch(4), verbose=0)
    assert model.fit(data.batch(4, drop_remainder=True), verbose=0).history["loss"] == [1.0]
    assert rows(layer).tolist() == [1, 0.5, 0.5, 1]


def test_variables_of_a_later_trace_are_refused():
    strategy, made = simulated_tpu(hosts=1, cores_per_host=2), {}

    def step(ids):
        key = ids.shape[0], str(tf.distribute.get_replica_context().devices)
        if key not in made:
            made[key] = tf.Variable(1.0)

    train = tf.function(lambda ids: strategy.run(step, args=(ids,)))
    train(ids_of(strategy, [1, 1], [1, 2]))
    with pytest.raises(ValueError, match="only supports singleton tf"):
        train(ids_of(strategy, [1, 1, 1], [1, 2, 3]))


class Subclassed(tf_keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, inputs):
        return self.head(self.layer(inputs)["f"])


def test_subclassed_model_in_a_loop_of_steps():
    """The documented training loop: tf.range around strategy.run, one optimizer for all variables."""
    strategy, _, _ = on_two_cores()
    _, features = configs()
    with strategy.scope():
        optimizer = tf_keras.optimizers.legacy.Adagrad(0.1)
        model = Subclassed(TPUEmbedding(features, optimizer))
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
    np.testing.assert_allclose(rows(model.layer)[1:], [row] * 3, rtol=1e-5)
    np.testing.assert_allclose(model.head.kernel.numpy(), [[kernel]], rtol=1e-5)


def test_separate_optimizers_by_the_documented_partition():
    """The documented code, which partitions gradients by variable, works on a TPU and off it."""
    for strategy in (simulated_tpu(), tf.distribute.get_strategy()):
        _, features = configs()
        with strategy.scope():
            for_tables, for_dense = tf_keras.optimizers.legacy.SGD(0.5), tf_keras.optimizers.legacy.SGD(0.25)
            model = Subclassed(TPUEmbedding(features, for_tables))

        def on_core(ids, model=model, for_tables=for_tables, for_dense=for_dense):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model({"f": ids}))
            pairs = list(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            own = {id(variable) for variable in model.layer.trainable_variables}
            for_dense.apply_gradients([pair for pair in pairs if id(pair[1]) not in own])
            for_tables.apply_gradients([pair for pair in pairs if id(pair[1]) in own])

        share = [[1]] if strategy.num_replicas_in_sync == 1 else [[1], [2]]
        ids = ids_of(strategy, *share) if len(share) > 1 else tf.constant(share[0], tf.int64)
        tf.function(lambda ids, strategy=strategy, on_core=on_core: strategy.run(on_core, args=(ids,)))(ids)
        table = rows(model.layer) if len(share) > 1 else next(iter(model.layer.embedding_tables.values())).numpy()[:, 0]
        assert table[1] == 0.5
        assert model.head.kernel.numpy().item() == 1 - 0.25 * len(share)


@pytest.mark.slow
def test_learning_rate_follows_a_schedule():
    """Test a Keras schedule; test_documented_examples.py tests the other documented way, a callable."""
    for generation in (tf_keras.optimizers.legacy, tf_keras.optimizers):
        strategy = simulated_tpu(hosts=1, cores_per_host=2)
        with strategy.scope():
            optimizer = generation.SGD(tf_keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25]))
            layer = TPUEmbedding(configs()[1], optimizer)

        def on_core(ids, layer=layer, optimizer=optimizer):
            gradients = gradient_step(layer, ids)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        train = tf.function(lambda ids, strategy=strategy, on_core=on_core: strategy.run(on_core, args=(ids,)))
        found = []
        for _ in range(3):
            train(ids_of(strategy, [1], [2]))
            found.append(rows(layer).tolist())
        assert found == [[1, 0, 0, 1], [1, -0.5, -0.5, 1], [1, -0.75, -0.75, 1]]


@pytest.mark.slow
def test_layer_used_twice():
    strategy, _, layer = on_two_cores()

    def on_core(ids):
        with tf.GradientTape() as tape:
            first, second = layer({"f": ids})["f"], layer({"f": ids})["f"]
            loss = tf.reduce_sum(first + 3 * second)
        return tape.gradient(loss, layer.trainable_variables)

    tf.function(lambda ids: strategy.run(on_core, args=(ids,)))(ids_of(strategy, [0], [1]))
    assert rows(layer).tolist() == [-1, -1, 1, 1]


def test_evaluation_between_steps_needs_no_gradients():
    strategy, _, layer = on_two_cores()
    train = tf.function(lambda ids: strategy.run(gradient_step, args=(layer, ids)))
    look = tf.function(lambda ids: strategy.run(lambda own: layer({"f": own})["f"], args=(ids,)))
    ids = ids_of(strategy, [1], [2])
    train(ids)
    for _ in range(2):
        found = strategy.experimental_local_results(look(ids))
        assert [one.numpy().item() for one in found] == [0.5, 0.5]
    train(ids)
    assert rows(layer).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("where", ["cond", "function"])
def test_lookup_inside_control_flow_is_refused(where):
    strategy, _, layer = on_two_cores()
    look = tf.function(lambda ids: strategy.run(lambda own: layer({"f": own})["f"], args=(ids,)))
    ids = ids_of(strategy, [1], [2])
    look(ids)

    def on_core(own):
        def inside():
            return layer({"f": own})["f"]

        return (
            tf.cond(tf.constant(True), inside, lambda: tf.zeros([1, 1])) if where == "cond" else tf.function(inside)()
        )

    with pytest.raises(EngineError, match=r"top level of the function given to strategy\.run"):
        tf.function(lambda ids: strategy.run(on_core, args=(ids,)))(ids)


@pytest.mark.slow
def test_activations_may_go_into_compiled_code_and_control_flow():
    strategy, _, layer = on_two_cores()

    @tf.function(jit_compile=True)
    def dense(values):
        return 2 * tf.reduce_sum(values)

    def on_core(ids):
        with tf.GradientTape() as tape:
            activations = layer({"f": ids})["f"]
            loss = tf.cond(tf.constant(True), lambda: dense(activations), lambda: 0.0)
        return tape.gradient(loss, layer.trainable_variables)

    tf.function(lambda ids: strategy.run(on_core, args=(ids,)))(ids_of(strategy, [1], [2]))
    assert rows(layer).tolist() == [1, 0, 0, 1]


def test_layer_belongs_to_the_strategy_that_made_it():
    strategy, _, layer = on_two_cores()
    with pytest.raises(EngineError, match=r"Please use strategy\.run when calling this layer"):
        layer({"f": tf.constant([1])})
    plain = TPUEmbedding(configs()[1], "sgd")
    with pytest.raises(EngineError, match="Please create the layer under a TPUStrategy"):
        strategy.run(tf.function(lambda: plain({"f": tf.constant([1])})))


def test_optimizer_is_required():
    with pytest.raises(ConfigError, match="unsupported optimizer class"), simulated_tpu().scope():
        TPUEmbedding(configs()[1], None)


def test_hardware_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="TPU only supports"), simulated_tpu().scope():
        TPUEmbedding(configs()[1], "sgd", embedding_feature=kinds.V2)


@pytest.mark.parametrize("forced", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_whole_tables_on_every_core_are_trainable_variables(forced):
    strategy = simulated_tpu(embedding_feature="V1" if forced else "V0")
    table, features = configs()
    with strategy.scope():
        optimizer = tf_keras.optimizers.legacy.SGD(0.5)
        layer = TPUEmbedding(features, optimizer, embedding_feature=kinds.UNSUPPORTED if forced else None)

    def on_core(ids):
        gradients = gradient_step(layer, ids)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    tf.function(lambda ids: strategy.run(on_core, args=(ids,)))(ids_of(strategy, [1], [1]))
    assert layer.embedding_tables[table].numpy()[:, 0].tolist() == [1, 0, 1, 1]
    assert len(layer.trainable_variables) == 1


def test_update_embedding_table_reaches_the_device():
    strategy, table, layer = on_two_cores()
    look = tf.function(lambda ids: strategy.run(lambda own: layer({"f": own})["f"], args=(ids,)))
    ids = ids_of(strategy, [1], [2])
    look(ids)
    layer.update_embedding_table(table, np.arange(4.0)[:, np.newaxis])
    assert [one.numpy().item() for one in strategy.experimental_local_results(look(ids))] == [1, 2]


@pytest.mark.slow
def test_pipelined_activations_are_one_step_old():
    strategy, _, layer = on_two_cores(pipeline_execution_with_tensor_core=True)

    def on_core(ids):
        with tf.GradientTape() as tape:
            found = layer({"f": ids})["f"]
            loss = tf.reduce_sum(found)
        tape.gradient(loss, layer.trainable_variables)
        return found

    train = tf.function(lambda ids: strategy.run(on_core, args=(ids,)))
    ids = ids_of(strategy, [1], [2])
    found = [strategy.experimental_local_results(train(ids))[0].numpy().item() for _ in range(3)]
    assert found == [1, 1, 0.5]


def test_export_straight_from_training(tmp_path):
    strategy, _, layer = on_two_cores()
    train = tf.function(lambda ids: strategy.run(gradient_step, args=(layer, ids)))
    train(ids_of(strategy, [1], [2]))
    model = tf_keras.Sequential()
    model.embedding = layer
    serve = tf.function(lambda ids: layer({"f": ids}), input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    tf.saved_model.save(model, str(tmp_path), signatures={"serving": serve})
    found = tf.saved_model.load(str(tmp_path)).signatures["serving"](ids=tf.constant([0, 1, 2], tf.int64))
    assert found["f"].numpy()[:, 0].tolist() == [1, 0.5, 0.5]


@pytest.mark.slow
def test_loss_scale_and_bfloat16():
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(1.0), dynamic=False, initial_scale=64.0
    )
    strategy, _, layer = on_two_cores(dtype="mixed_bfloat16")
    layer.loss_scale_optimizer = scaled
    train = tf.function(lambda ids: strategy.run(lambda own: gradient_step(layer, own, 64.0), args=(ids,)))
    train(ids_of(strategy, [1], [2]))
    assert rows(layer).tolist() == [1, 0.5, 0.5, 1]


def test_call_outside_of_run_leaves_no_batch_behind():
    strategy, _, layer = on_two_cores()
    train = tf.function(lambda ids: strategy.run(gradient_step, args=(layer, ids)))
    train(ids_of(strategy, [1], [1]))
    with strategy.scope(), pytest.raises(EngineError, match=r"outside of strategy\.run"):
        layer({"f": tf.constant([3, 3])})
    train(ids_of(strategy, [2], [2]))
    assert rows(layer).tolist() == [1, 0, 0, 1]


class Doubled(tf_keras.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, ids):
        return 2 * self.layer({"f": ids})["f"]


def test_layer_inside_a_layer_of_a_functional_model():
    strategy, _, layer = on_two_cores()
    with strategy.scope():
        inputs = tf_keras.Input(shape=(), dtype=tf.int64)
        model = tf_keras.Model(inputs, Doubled(layer)(inputs))
        model.compile("sgd", tf_keras.losses.MeanSquaredError())
    model.fit(tf.data.Dataset.from_tensors((tf.constant([1, 2], tf.int64), tf.zeros([2, 1]))), verbose=0)
    assert rows(layer).tolist() == [1, -1, -1, 1]


@pytest.mark.slow
def test_step_that_overflows_in_one_replica_is_nobodys():
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(1.0), dynamic=False, initial_scale=2.0)
    strategy, _, layer = on_two_cores()
    layer.loss_scale_optimizer = scaled
    train = tf.function(lambda ids, scales: strategy.run(gradient_step, args=(layer, ids, scales)))
    scales = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([np.inf, 2.0][context.replica_id_in_sync_group])
    )
    train(ids_of(strategy, [1], [2]), scales)
    assert rows(layer).tolist() == [1, 1, 1, 1]


def test_step_that_failed_leaves_nothing_for_the_next_one():
    strategy, _, layer = on_two_cores()

    @tf.function
    def train(ids, good):
        def on_core(ids):
            with tf.GradientTape() as tape:
                found = layer({"f": ids})["f"]
                loss = tf.reduce_sum(found)
            tf.debugging.Assert(good, ["the user's own check"])
            tape.gradient(loss, layer.trainable_variables)
            return found

        return strategy.experimental_local_results(strategy.run(on_core, args=(ids,)))

    train(ids_of(strategy, [0], [0]), tf.constant(True))
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="own check"):
            train(ids_of(strategy, [1], [2]), tf.constant(False))
        before = rows(layer)
        found = train(ids_of(strategy, [3], [3]), tf.constant(True))
        np.testing.assert_array_equal([values.numpy()[0, 0] for values in found], before[[3, 3]])
        np.testing.assert_array_equal(rows(layer) - before, [0, 0, 0, -1])


@pytest.mark.parametrize("where", ["simulated", "engine", "keras"])
def test_weight_that_is_not_finite_is_refused(where):
    strategy, _, layer = on_two_cores() if where == "simulated" else (tf.distribute.get_strategy(), None, None)
    if layer is None:
        layer = TPUEmbedding(configs()[1], tpu.SGD(0.5) if where == "engine" else None, table_update=where)
    optimizer = tf_keras.optimizers.legacy.SGD(0.5)

    @tf.function
    def train(weight):
        with tf.device("CPU:0"):
            on_every_core(weight)

    def on_every_core(weight):
        def on_core(ids, weights):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer({"f": ids}, {"f": weights})["f"])
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        ids = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2], tf.int64), [2])
        strategy.run(on_core, args=(ids, ids.with_values(weight)))

    def table():
        return rows(layer) if where != "keras" else next(iter(layer.embedding_tables.values())).numpy()[:, 0]

    train(tf.constant([1.0, 2.0]))
    before = table()
    assert before[2] != 1
    for bad in (np.nan, np.inf):
        with pytest.raises(tf.errors.InvalidArgumentError, match="A weight of feature f is NaN or infinite"):
            train(tf.constant([bad, 1.0]))
        np.testing.assert_array_equal(table(), before)
