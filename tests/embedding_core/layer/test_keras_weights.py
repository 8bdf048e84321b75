"""Saving weights and scaling losses with Keras covers tables that the layer trains itself, or raises an error."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import simulated_tpu
from embedding_core.errors import CheckpointError, EngineError
from tests.support.layers import gradient_step, layer_of, rows_of, slots_of

tpu = tf.tpu.experimental.embedding
IDS, LABELS = np.array([1, 2]), np.zeros([2, 1])


def model_of(optimizer=None, compiled="sgd", update="engine", **arguments):
    layer = layer_of(optimizer or tpu.Adagrad(0.1), update, **arguments)
    inputs = {"f": tf_keras.Input(shape=(), dtype=tf.int64, batch_size=2)}
    logits = tf_keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")(layer(inputs)["f"])
    model = tf_keras.Model(inputs, logits)
    model.compile(compiled, "mse")
    return model


def state_of(model):
    return {key: numbers.tolist() for key, numbers in slots_of(model.layers[1]).items()}


def fit(model, epochs=1, **arguments):
    return model.fit({"f": IDS}, LABELS, epochs=epochs, batch_size=2, verbose=0, **arguments)


def strategy_of(way):
    return simulated_tpu(hosts=1, cores_per_host=1) if way == "tpu" else tf.distribute.get_strategy()


def filled_model(way="engine", start=5.0, optimizer=None, **arguments):
    """Make a model under a strategy; set its layer's variables to values that no new layer has."""
    with strategy_of(way).scope():
        model = model_of(optimizer, update="keras" if way == "tpu" else way, **arguments)
        model.layers[1].build([tf.TensorShape([2])])
    for place, variable in enumerate(model.layers[1].table_variables.values()):
        variable.assign([[start + place + row] for row in range(4)])
    return model


def test_weights_as_a_list_hold_tables_and_slots():
    model, other = filled_model(), model_of()
    other.set_weights(model.get_weights())
    assert state_of(model) == state_of(other)
    layer = layer_of(tpu.Adagrad(0.1))
    layer.build(None)
    layer.set_weights(model.layers[1].get_weights())
    assert rows_of(layer).tolist() == state_of(model)["t"]
    with pytest.raises(ValueError, match="weight"):
        model.set_weights(model.get_weights()[:-1])


def test_variables_of_the_model_are_not_the_tables():
    model = filled_model()
    assert [list(variable.shape) for variable in model.layers[1].variables] == [[1]]
    assert all(variable.shape != [4, 1] for variable in model.variables)


def test_early_stopping_restores_the_tables():
    class Ruin(tf_keras.callbacks.Callback):
        """Makes every epoch but the first worse."""

        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                self.model.layers[1].table_variables["t"].assign_add(tf.ones([4, 1]))

    model = model_of(tpu.Adam(lambda: tf.constant(0.1)))
    best = []
    keep = tf_keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: best.append(state_of(model)))
    stopping = tf_keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
    history = fit(model, 5, callbacks=[Ruin(), keep, stopping]).history["loss"]
    assert np.argmin(history) == 0
    assert state_of(model) == best[0] != best[-1]


@pytest.mark.parametrize("file", ["w.h5", "w.weights.h5", "w.tf"])
@pytest.mark.parametrize("way", ["engine", "tpu"])
def test_files_of_weights_hold_the_tables(file, way, tmp_path):
    model, other = filled_model(way), filled_model(way, start=0.0)
    model.save_weights(tmp_path / file)
    other.load_weights(tmp_path / file)
    assert state_of(other) == state_of(model)
    assert set(state_of(model)) == {"t", "t/accumulators"}


@pytest.mark.parametrize(
    ("way", "file"),
    [("engine", "m.keras"), ("engine", "m.h5"), ("engine", "m"), ("tpu", "m.keras"), ("tpu", "m.h5")],
)
def test_files_of_models_hold_the_tables(way, file, tmp_path):
    model = filled_model(way)
    model.save(tmp_path / file)
    with strategy_of(way).scope():
        try:
            read = tf_keras.models.load_model(tmp_path / file)
        except CheckpointError:  # tf_keras 2.16 and 2.18 read weights before the tables are made, 2.21 after
            assert (way, file) == ("tpu", "m.keras")
            return
        assert state_of(read) == state_of(model)


def test_h5_by_name(tmp_path):
    model, other = filled_model(name="e"), filled_model(name="e", start=0.0)
    model.save_weights(tmp_path / "w.h5")
    other.load_weights(tmp_path / "w.h5", by_name=True)
    assert state_of(other) == state_of(model)
    with pytest.raises(ValueError, match="weight"):
        model_of(update="keras", name="e").load_weights(tmp_path / "w.h5", by_name=True)


def test_step_of_a_schedule_is_a_weight():
    schedule = tf_keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.0])
    model, other = (model_of(tpu.SGD(schedule)) for _ in range(2))
    fit(model)
    other.set_weights(model.get_weights())
    fit(other)  # the second step has a learning rate of 0
    assert state_of(other) == state_of(model)


@pytest.mark.parametrize("rate", [0.1, tf_keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.0])])
def test_tables_out_of_reach_cannot_be_copied(monkeypatch, tmp_path, rate):
    """Those in a real TPU's memory, or on parameter servers."""
    model = filled_model(optimizer=tpu.SGD(rate))
    monkeypatch.setattr(type(model.layers[1]._state.engine), "table_variables", {})
    saving = (lambda: model.save_weights(tmp_path / "m.weights.h5"), lambda: model.save_weights(tmp_path / "m.h5"))
    for copying in (model.get_weights, lambda: model.set_weights([]), *saving):
        with pytest.raises(EngineError, match=r"tf\.train\.Checkpoint"):
            copying()


def scaler():
    inner = tf_keras.optimizers.get("sgd")
    return tf_keras.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=2.0**15)


@pytest.mark.parametrize(("policy", "eager", "tolerance"), [("float32", True, 1e-5), ("mixed_float16", False, 1e-2)])
def test_fit_takes_the_loss_scale_out(policy, eager, tolerance):
    model = model_of(tpu.SGD(0.1), dtype=policy)
    model.compile(scaler(), "mse", run_eagerly=eager)
    fit(model)
    np.testing.assert_allclose(state_of(model)["t"], [1.0, 0.9, 0.9, 1.0], rtol=tolerance)


def test_fit_on_a_simulated_tpu_takes_the_loss_scale_out():
    with simulated_tpu(hosts=1, cores_per_host=2).scope():
        model = model_of(tpu.SGD(0.1), scaler(), "keras", batch_size=1)
    rows = tf.data.Dataset.from_tensor_slices(({"f": IDS}, LABELS)).batch(2, drop_remainder=True)
    model.fit(rows, verbose=0)
    np.testing.assert_allclose(state_of(model)["t"], [1.0, 0.9, 0.9, 1.0], rtol=1e-5)


@pytest.fixture(params=["layer", "keras"])
def half_precision_layer(request):
    """A layer of the policy mixed_float16, or a float32 layer while this is the policy of Keras."""
    if request.param == "layer":
        yield model_of(tpu.SGD(0.5), dtype="mixed_float16").layers[1]
        return
    layer = model_of(tpu.SGD(0.5)).layers[1]
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    yield layer
    tf_keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("scaled", [True, False])
def test_loop_in_half_precision_must_say_whether_it_scales(half_precision_layer, scaled):
    layer, optimizer = half_precision_layer, scaler()
    scale = 2.0**15 if scaled else 1.0
    with pytest.raises(EngineError, match="`loss_scale_optimizer`"):
        gradient_step(layer, tf.constant([1]), scale)
    layer.loss_scale_optimizer = optimizer if scaled else None
    gradient_step(layer, tf.constant([1]), scale)
    assert rows_of(layer).tolist() == [1.0, 0.5, 1.0, 1.0]


def test_another_loss_scale_than_the_one_that_was_set_is_refused():
    model = model_of(tpu.SGD(0.1), scaler())
    model.layers[1].loss_scale_optimizer = scaler()
    with pytest.raises(EngineError, match="set it to the one that the model is trained with"):
        fit(model)


def test_xla_is_refused_and_changes_nothing():
    model = model_of(tpu.SGD(0.1))
    model.compile("sgd", "mse", jit_compile=True)
    before = state_of(model)
    with pytest.raises((tf.errors.OpError, ValueError)):
        fit(model)
    assert state_of(model) == before
