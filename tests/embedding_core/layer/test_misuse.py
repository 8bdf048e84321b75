"""Mistakes of users: the layer gives the right result, or raises one clear error."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.errors import CheckpointError, ConfigError, DataError, EngineError
from embedding_core.layer import TPUEmbedding
from tests.support.layers import functional_model, layer_of, rows_of, table_of

tpu = tf.tpu.experimental.embedding
UPDATES = pytest.mark.parametrize("update", ["keras", "engine"])
IDS = tf.constant([1])


def fit(model):
    model.fit({"f": np.array([1, 1])}, np.zeros([2, 1]), verbose=0)


@UPDATES
def test_frozen_layer_stays_as_it_is(update):
    layer, head = layer_of("sgd", update), tf_keras.layers.Dense(1)
    layer({"f": IDS})
    layer.trainable = False
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(layer({"f": IDS})["f"]))
    tape.gradient(loss, head.trainable_variables)
    assert rows_of(layer).tolist() == [1, 1, 1, 1]
    layer.trainable = True
    assert len(layer.trainable_variables) == 1


@pytest.mark.parametrize("traced", [True, False])
def test_second_gradient_through_a_lookup_is_refused(traced):
    layer, head = layer_of("sgd"), tf_keras.layers.Dense(1, kernel_initializer="ones")
    head(layer({"f": IDS})["f"])

    def train():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(head(layer({"f": IDS})["f"]))
        tape.gradient(loss, head.trainable_variables)
        tape.gradient(loss, layer.trainable_variables)

    with pytest.raises(EngineError, match="Compute all gradients in one call"):
        (tf.function(train) if traced else train)()


@UPDATES
def test_wrong_call_leaves_the_layer_usable(update):
    layer = layer_of("sgd", update)
    with pytest.raises(DataError, match=r"missing \['f'\]"):
        layer({})
    assert layer({"f": tf.Variable([1])})["f"].numpy() == [[1]]


def test_tables_are_written_before_the_first_call():
    table = table_of()
    layer = layer_of("sgd", table=table)
    layer.update_embedding_table(table, np.full([4, 1], 7))
    assert layer({"f": IDS})["f"].numpy() == [[7]]


@UPDATES
def test_invalid_id_names_feature_and_table(update):
    layer = layer_of("sgd", update, table_of(name="item/a"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="An id of feature 'f' is outside table 'item/a'"):
        layer({"f": tf.constant([9])})
    look_up = tf.function(lambda ids: layer({"f": ids}))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)= 9 is not.*feature_f_in_table_item_a"):
        look_up(tf.constant([9]))


@pytest.mark.parametrize("given", [None, {}, "f", {"f": tpu.TableConfig(2, 1)}])
def test_what_is_no_feature_configuration_is_refused(given):
    with pytest.raises(ConfigError, match="must be an EmbeddingConfig"):
        TPUEmbedding(given, "sgd")


def test_table_named_as_a_slot_is_refused():
    tables = [tpu.TableConfig(2, 1, name=name) for name in ("t", "t/accumulators")]
    with pytest.raises(ConfigError, match="the slot 'accumulators' of table 't'"):
        TPUEmbedding([tpu.FeatureConfig(table) for table in tables], "adagrad")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": ()}, "float32"),
        ({"shape": (), "dtype": tf.string}, "string"),
        ({"shape": (2,), "dtype": tf.int64}, "Rank 2"),
    ],
)
def test_inputs_of_functional_models_are_checked_at_once(given, message):
    with pytest.raises(DataError, match=message):
        layer_of("sgd")({"f": tf_keras.Input(**given)})


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_inputs_may_leave_the_dimension_of_their_ids_out(kind):
    """TensorFlow Recommenders' documentation declares its inputs with `shape=()`."""
    inputs = tf_keras.Input(batch_size=4, shape=(), dtype=tf.int32, **{kind: True})
    assert layer_of("sgd")({"f": inputs})["f"].shape == [4, 1]


def test_keras_3_models_are_refused():
    keras = pytest.importorskip("keras", minversion="3")

    class Other(keras.Model):
        def call(self, ids):
            return layer({"f": ids})["f"]

    layer = layer_of("sgd")
    with pytest.raises(ConfigError, match="is called by a model of Keras 3"):
        Other()(IDS)
    with pytest.raises(ConfigError, match="TF_USE_LEGACY_KERAS=1"):
        layer({"f": keras.Input(shape=(), dtype="int64")})


def test_layer_is_no_pickle():
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(EngineError, match="from_config"):
            attempt(layer_of("sgd"))


@UPDATES
def test_models_are_pickled_and_loaded_without_custom_objects(update):
    table = table_of()
    model = functional_model(layer_of("adagrad", update, table))
    model.layers[1].update_embedding_table(table, np.full([4, 1], 7))
    again = pickle.loads(pickle.dumps(model))  # Keras pickles a model as a .keras file
    assert rows_of(again.layers[1]).tolist() == [7, 7, 7, 7]


def test_weights_of_other_tables_are_refused(tmp_path):
    path = tmp_path / "model.weights.h5"
    functional_model(layer_of(tpu.Adagrad())).save_weights(path)
    for layer, message in (
        (layer_of(tpu.Adam()), r"missing \['t/momenta', 't/velocities'\], not of this layer \['t/accumulators'\]"),
        (layer_of(tpu.Adagrad(), table=table_of(rows=5)), r"\(4, 1\) in the file"),
        (layer_of(tpu.Adagrad(), table=table_of(name="u")), r"missing \['u'"),
        (layer_of("sgd", "keras"), "table_update"),
    ):
        with pytest.raises(CheckpointError, match=message):
            functional_model(layer).load_weights(path)


def test_unbuilt_tables_are_not_saved_as_nothing():
    with pytest.raises(EngineError, match="not built yet"):
        layer_of("sgd").save_own_variables({})


def test_schedule_that_keras_does_not_know_is_named():
    class Halving(tf_keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 ** tf.cast(step, tf.float32)

        def get_config(self):
            return {}

    with pytest.raises(ConfigError, match="`learning_rate` of SGD is a Halving"):
        layer_of(tf_keras.optimizers.SGD(Halving()))
    layer_of(tf_keras.optimizers.legacy.SGD(Halving()))


@pytest.mark.parametrize(
    "generation", [tf_keras.optimizers, pytest.param(tf_keras.optimizers.legacy, marks=pytest.mark.slow)]
)
def test_loaded_model_trains_when_it_is_told_what_to_follow(generation, tmp_path):
    schedule = tf_keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.0])
    optimizer = generation.SGD(schedule)
    model = functional_model(layer_of(optimizer), optimizer)
    for _ in range(2):
        fit(model)
    model.save(tmp_path / "model.keras")
    again = tf_keras.models.load_model(tmp_path / "model.keras")
    before = rows_of(again.layers[1]).tolist()
    with pytest.raises(EngineError, match="it is a copy, which no model steps"):
        fit(again)
    again.layers[1].keras_optimizer = again.optimizer
    again.compile(again.optimizer, "mse")  # trace again
    fit(again)  # the learning rate is that of the third step
    assert rows_of(again.layers[1]).tolist() == before


def test_follows_optimizers_of_the_same_hyperparameters_only():
    layer = layer_of(tf_keras.optimizers.Adam(beta_1=0.5))
    with pytest.raises(ConfigError, match=r"'beta_1': 0\.5"):
        layer.keras_optimizer = tf_keras.optimizers.Adam()
    assert layer.keras_optimizer.beta_1 == 0.5
    with pytest.raises(ConfigError, match="not a Keras optimizer"):
        layer_of("sgd").keras_optimizer = tf_keras.optimizers.SGD()


@pytest.mark.parametrize(
    ("update", "batch_size", "message"),
    [("tpu", None, "'keras' or 'engine'"), ("keras", 0, "whole number >= 1"), ("keras", 2.0, "whole number >= 1")],
)
def test_invalid_arguments_are_refused(update, batch_size, message):
    with pytest.raises(ConfigError, match=message):
        layer_of("sgd", update, batch_size=batch_size)


def test_tables_of_nearly_one_name_do_not_meet_in_a_file():
    tables = [tpu.TableConfig(2, 1, tf.constant_initializer(n), name=name) for n, name in enumerate(["a/b", "a.Sb"])]
    stores = []
    for _ in range(2):
        layer = TPUEmbedding([tpu.FeatureConfig(table) for table in tables], "sgd", table_update="engine")
        layer.build(None)
        stores.append({})
        layer.save_own_variables(stores[-1])
    assert len(stores[0]) == 2
    layer.update_embedding_table(tables[0], [[7.0], [7.0]])
    layer.load_own_variables({key: tf.constant(rows).numpy() for key, rows in stores[0].items()})
    assert [float(layer.table_variables[name][0, 0]) for name in ("a/b", "a.Sb")] == [0.0, 1.0]
