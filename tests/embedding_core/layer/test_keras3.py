"""The layer for Keras 3 beside that for tf_keras."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, DataError, EngineError
from embedding_core.layer import TPUEmbedding as TfKerasLayer

keras = pytest.importorskip("keras", minversion="3")
from embedding_core.layer.keras3 import TPUEmbedding, translate_keras_optimizer  # noqa: E402

tpu = tf.tpu.experimental.embedding
OPTIMIZERS = {
    "sgd": tpu.SGD(0.1),
    "adagrad": tpu.Adagrad(0.1),
    "adagrad_momentum": tpu.AdagradMomentum(0.1, momentum=0.9),
    "adam": tpu.Adam(0.1),
    "ftrl": tpu.FTRL(0.1),
}
BATCH, ROWS = 8, 30


def all_kinds():
    """Return features of every kind of input over two tables, nested."""
    few, many = (tpu.TableConfig(rows, 4, name=name, combiner="mean") for name, rows in (("few", ROWS), ("many", 99)))
    return {
        "dense": tpu.FeatureConfig(few),
        "nested": {
            "sparse": tpu.FeatureConfig(few),
            "ragged": [tpu.FeatureConfig(many), tpu.FeatureConfig(many, max_sequence_length=3)],
        },
        "shaped": tpu.FeatureConfig(many, output_shape=[BATCH, 2]),
    }


def batch_of(step):
    """Return ids and weights for `all_kinds`."""
    generator = np.random.default_rng(step)
    rows = [generator.integers(0, ROWS, generator.integers(0, 5)).tolist() for _ in range(BATCH)]
    ragged = tf.ragged.constant(rows, tf.int64, row_splits_dtype=tf.int64)
    weights = ragged.with_values(tf.constant(generator.uniform(0.5, 2.0, len(ragged.values)), tf.float32))
    dense = tf.constant(generator.integers(0, ROWS, BATCH), tf.int64)
    shaped = tf.constant(generator.integers(0, 99, (BATCH, 2, 1)), tf.int64)
    ids = {"dense": dense, "nested": {"sparse": ragged.to_sparse(), "ragged": [ragged, ragged]}, "shaped": shaped}
    given = {"dense": None, "nested": {"sparse": weights.to_sparse(), "ragged": [weights, None]}, "shaped": None}
    return ids, given


def trained(cls, optimizer, steps=20):
    """Return the tables and slots of a layer after steps on every kind of input."""
    layer = cls(all_kinds(), optimizer, table_update="engine", seed=7)

    def step(ids, weights):
        with tf.GradientTape() as tape:
            activations = tf.nest.flatten(layer(ids, weights=weights))
            loss = tf.add_n([tf.reduce_sum(tf.square(values - 0.3)) for values in activations])
        tape.gradient(loss, layer.trainable_variables)

    layer(*batch_of(0))
    function = tf.function(step, reduce_retracing=True)
    for turn in range(steps):
        function(*batch_of(turn))
    return layer, {key: variable.numpy() for key, variable in layer.table_variables.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_are_those_of_tf_keras(name):
    _, tables = trained(TPUEmbedding, OPTIMIZERS[name])
    _, expected = trained(TfKerasLayer, OPTIMIZERS[name])
    assert list(tables) == list(expected)
    for key, values in expected.items():
        np.testing.assert_array_equal(tables[key], values, err_msg=key)


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"], tf.distribute.ReductionToOneDevice())


def on_replicas(cls, strategy, optimizer):
    """Return the tables and slots after 20 steps on two replicas."""
    with strategy.scope():
        table = tpu.TableConfig(ROWS, 4, name="t", combiner="sum")
        layer = cls({"f": tpu.FeatureConfig(table)}, optimizer, batch_size=4, table_update="engine")

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer({"f": ids})["f"] - 0.3))
        tape.gradient(loss, layer.trainable_variables)

    function = tf.function(lambda ids: strategy.run(step, args=(ids,)))
    for turn in range(20):
        ids = np.random.default_rng(turn).integers(0, ROWS, (2, 4))
        function(
            strategy.experimental_distribute_values_from_function(
                lambda context, ids=ids: tf.constant(ids[context.replica_id_in_sync_group])
            )
        )
    assert len(layer.trainable_variables) == 1
    return {key: variable.numpy() for key, variable in layer.table_variables.items()}


@pytest.mark.parametrize(
    "new_strategy", [mirrored, lambda: simulated_tpu(hosts=1, cores_per_host=2)], ids=["mirrored", "simulated TPU"]
)
def test_replicas_train_the_tables_of_tf_keras(new_strategy):
    tables, expected = (on_replicas(cls, new_strategy(), tpu.Adam(0.1)) for cls in (TPUEmbedding, TfKerasLayer))
    assert set(tables) == set(expected) == {"t", "t/momenta", "t/velocities"}
    for key, values in expected.items():
        np.testing.assert_array_equal(tables[key], values, err_msg=key)


def layer_of(update="engine", optimizer=None, **arguments):
    table = tpu.TableConfig(ROWS, 4, name="t", combiner="mean")
    return TPUEmbedding({"f": tpu.FeatureConfig(table)}, optimizer, table_update=update, **arguments)


def functional(layer, optimizer):
    inputs = {"f": keras.Input((), dtype="int64", name="f")}
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(layer(inputs)["f"]))
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


class Subclassed(keras.Model):
    def __init__(self, layer, **arguments):
        super().__init__(**arguments)
        self.layer = layer
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.layer(inputs)["f"])


def data(sparse=False):
    ids = np.random.default_rng(0).integers(0, ROWS, 64)
    features = tf.sparse.from_dense(ids[:, None] + 1) if sparse else tf.constant(ids, tf.int64)
    if sparse:
        features = tf.SparseTensor(features.indices, features.values - 1, [64, 1])
    labels = tf.constant(ids % 2, tf.float32)[:, None]
    return tf.data.Dataset.from_tensor_slices(({"f": features}, labels)).batch(16, drop_remainder=True)


UPDATES = pytest.mark.parametrize("update", ["engine", "keras"])


@UPDATES
def test_fit_trains_the_tables(update):
    optimizer = keras.optimizers.Adagrad(0.5)
    model = functional(layer_of(update, optimizer), optimizer)
    losses = model.fit(data(), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert not model.jit_compile


@pytest.mark.parametrize("sparse", [False, True])
@UPDATES
def test_subclassed_models_take_every_kind(update, sparse):
    layer = layer_of(update, keras.optimizers.SGD(1.0))
    model = Subclassed(layer)
    model.compile(keras.optimizers.SGD(1.0), keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(data(sparse), verbose=0)
    before = next(iter(layer.embedding_tables.values())).numpy()
    model.fit(data(sparse), verbose=0)
    assert np.any(before != next(iter(layer.embedding_tables.values())).numpy())


@UPDATES
def test_fit_on_mirrored_replicas(update):
    with mirrored().scope():
        model = functional(layer_of(update, tpu.Adagrad(0.5)), keras.optimizers.Adagrad(0.5))
    losses = model.fit(data(), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


def test_fit_on_a_simulated_tpu():
    strategy = simulated_tpu(hosts=1, cores_per_host=2)
    with strategy.scope():
        layer = layer_of("keras", tpu.Adagrad(0.5))
        model = functional(layer, keras.optimizers.Adagrad(0.5))
    with pytest.raises(EngineError, match="get_weights"):  # the engine is built by the first batch
        model.get_weights()
    losses = model.fit(data(), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert set(layer.table_variables) == {"t", "t/accumulators"}


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@UPDATES
def test_files_of_keras_hold_tables(update, ending, tmp_path):
    optimizer = keras.optimizers.Adam(0.1)
    model = functional(layer_of(update, tpu.Adam(0.1)), optimizer)
    model.fit(data(), verbose=0)
    file = str(tmp_path / f"model{ending}")
    if ending == ".keras":
        model.save(file)
        again = keras.models.load_model(file)
    else:
        model.save_weights(file)
        again = functional(layer_of(update, tpu.Adam(0.1), seed=1), optimizer)
        again.load_weights(file)
    for rows, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(rows, other)


def test_file_of_another_way_of_training_is_refused(tmp_path):
    model = functional(layer_of("engine", tpu.SGD(0.1)), "sgd")
    model.save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="table_update"):  # Keras wraps the CheckpointError
        functional(layer_of("keras", tpu.SGD(0.1)), "sgd").load_weights(tmp_path / "m.weights.h5")


@UPDATES
def test_weights_are_restored_after_training(update):
    model = functional(layer_of(update, tpu.Adagrad(0.5)), keras.optimizers.SGD(0.5))
    before = model.get_weights()
    model.fit(data(), verbose=0)
    assert any(np.any(rows != other) for rows, other in zip(before, model.get_weights(), strict=True))
    model.set_weights(before)
    for rows, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(rows, other)


@UPDATES
def test_exported_model_answers_alike(update, tmp_path):
    model = functional(layer_of(update, tpu.Adagrad(0.5)), "sgd")
    model.fit(data(), verbose=0)
    model.export(str(tmp_path), verbose=False)
    batch = next(iter(data()))[0]
    served = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(served.serve(batch), model(batch))


def test_export_of_a_subclassed_model_needs_a_signature(tmp_path):
    model = Subclassed(layer_of("engine", tpu.SGD(0.1)))
    ids = {"f": tf.range(8)}
    expected = model(ids)
    with pytest.raises(DataError, match=r"must be integers.* Without `input_signature`, `export` gives float32"):
        model.export(str(tmp_path / "refused"), verbose=False)
    signature = [{"f": tf.TensorSpec([None], tf.int32, "f")}]
    model.export(str(tmp_path / "served"), input_signature=signature, verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_array_equal(served.serve(ids), expected)


@pytest.mark.parametrize("pair", [(TPUEmbedding, TfKerasLayer), (TfKerasLayer, TPUEmbedding)], ids=["from 3", "to 3"])
def test_checkpoints_go_both_ways(pair, tmp_path):
    written, reader = pair
    layer, tables = trained(written, tpu.Adam(0.1), steps=2)
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "c"))
    other, _ = trained(reader, tpu.Adam(0.1), steps=1)
    tf.train.Checkpoint(layer=other).read(path).assert_existing_objects_matched().expect_partial()
    for key, values in tables.items():
        np.testing.assert_array_equal(other.table_variables[key].numpy(), values, err_msg=key)


def test_tables_of_keras_mode_go_both_ways(tmp_path):
    layer = layer_of("keras")
    layer.build()
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "c"))
    table = tpu.TableConfig(ROWS, 4, tf.zeros_initializer(), name="t")
    other = TfKerasLayer({"f": tpu.FeatureConfig(table)}, None)
    other.build(None)
    tf.train.Checkpoint(layer=other).read(path).expect_partial()
    (rows,), (expected,) = other.embedding_tables.values(), layer.embedding_tables.values()
    np.testing.assert_array_equal(rows.numpy(), expected.numpy())


def test_schedule_of_the_stepped_optimizer_is_followed():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.0])
    optimizer = keras.optimizers.SGD(schedule)
    layer = layer_of("engine", optimizer)
    model = functional(layer, optimizer)
    rows = []
    for _ in range(3):
        model.fit(data().take(1), verbose=0)
        rows.append(layer.table_variables["t"].numpy())
    assert np.any(rows[0] != rows[1])
    np.testing.assert_array_equal(rows[1], rows[2])


def test_fit_takes_the_loss_scale_out():
    tables = []
    for dtype in ("float32", "mixed_float16"):
        layer = layer_of("engine", tpu.SGD(1.0), dtype=dtype)
        optimizer = keras.optimizers.SGD(0.1)
        model = functional(layer, keras.optimizers.LossScaleOptimizer(optimizer) if "mixed" in dtype else optimizer)
        model.layers[-1].set_weights([np.ones((4, 1), np.float32), np.zeros(1, np.float32)])
        first = layer.table_variables["t"].numpy()
        model.fit(data(), verbose=0)
        tables.append(layer.table_variables["t"].numpy() - first)
    assert np.abs(tables[0]).max() > 1e-3
    np.testing.assert_allclose(tables[1], tables[0], rtol=0.02, atol=1e-4)


def test_fit_takes_a_fixed_loss_scale_out():
    tables = []
    for factor in (None, 1024.0):
        layer = layer_of("engine", tpu.SGD(1.0))
        model = functional(layer, keras.optimizers.SGD(0.1, loss_scale_factor=factor))
        model.layers[-1].set_weights([np.ones((4, 1), np.float32), np.zeros(1, np.float32)])
        model.fit(data(), verbose=0)
        tables.append(layer.table_variables["t"].numpy())
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-5)


def test_keras_file_holds_an_optimizer_that_tables_follow(tmp_path):
    optimizer = keras.optimizers.Adam(0.1)
    model = functional(layer_of("engine", optimizer), optimizer)
    model.fit(data(), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert len(again.variables) == len(optimizer.variables)
    for value, other in zip(again.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(value, other)


def test_clipping_is_refused_for_tables_alone():
    with pytest.raises(ConfigError, match="clipnorm"):
        translate_keras_optimizer(keras.optimizers.SGD(0.1, clipnorm=1.0))
    model = functional(layer_of("keras"), keras.optimizers.SGD(1.0, global_clipnorm=1e-3))
    before = model.get_weights()
    model.fit({"f": np.arange(8)}, np.arange(8) % 2, batch_size=8, verbose=0)  # distinct: Keras clips before summing
    change = np.sqrt(sum(np.sum((rows - other) ** 2) for rows, other in zip(before, model.get_weights(), strict=True)))
    np.testing.assert_allclose(change, 1e-3, rtol=1e-3)


def test_optimizers_of_tf_keras_are_refused():
    import tf_keras

    with pytest.raises(ConfigError, match="of tf_keras: this layer is for Keras 3"):
        layer_of("engine", tf_keras.optimizers.SGD(0.1))


@UPDATES
def test_id_outside_its_table_is_refused(update):
    layer = layer_of(update, tpu.SGD(0.1))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside table|is not in"):
        layer({"f": tf.constant([ROWS])})


def test_dense_ids_of_several_columns_are_combined():
    layer = layer_of("engine", tpu.SGD(0.1))
    ids, weights = tf.constant([[1, 2], [3, 3]]), tf.constant([[1.0, 3.0], [1.0, 1.0]])
    table = layer({"f": tf.range(ROWS)})["f"].numpy()
    np.testing.assert_allclose(layer({"f": ids})["f"], [(table[1] + table[2]) / 2, table[3]], rtol=1e-6)
    weighted = layer({"f": ids}, weights={"f": weights})["f"]
    np.testing.assert_allclose(weighted, [(table[1] + 3 * table[2]) / 4, table[3]], rtol=1e-6)


def test_model_without_an_integer_input_names_the_remedy():
    feature = tpu.FeatureConfig(tpu.TableConfig(ROWS, 4, name="t"))
    model = keras.Sequential([TPUEmbedding(feature, tpu.SGD(0.1)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(DataError, match=r"must be integers.* give it dtype='int64'"):
        model.fit(np.arange(8), np.arange(8.0), verbose=0)


@keras.saving.register_keras_serializable("test")
class OfIds(Subclassed):
    def __init__(self, update, **arguments):
        table = tpu.TableConfig(ROWS, 4, name="t")
        super().__init__(TPUEmbedding(tpu.FeatureConfig(table), tpu.SGD(1.0), table_update=update), **arguments)
        self.update = update

    def call(self, ids):
        return self.head(self.layer(ids))

    def get_config(self):
        return {"update": self.update}


@UPDATES
def test_keras_file_of_a_subclassed_model_is_complete(update, tmp_path):
    model, ids = OfIds(update), np.arange(8)
    model.compile("adam", "mse")
    model.fit(ids, np.ones(8), verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))
    assert len(again.optimizer.variables) == len(model.optimizer.variables)
