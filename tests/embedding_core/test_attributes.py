"""Every attribute of TensorFlow's configurations is declared, and takes effect or is refused."""

import inspect
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.engines import TPUEmbedding as MidLevel
from embedding_core.engines import TPUEmbeddingV0, simulated_tpu
from embedding_core.errors import ConfigError
from embedding_core.feature_specs import ATTRIBUTES, refuse_unknown
from embedding_core.layer import PartialTPUEmbedding, TPUEmbedding, keras_optimizers
from embedding_core.layer.keras_package import FREE
from embedding_core.lookup import cpu_embedding_lookup
from embedding_core.translate import initializer_to_core, model_of, optimizer_to_core
from tests.support.layers import layer_of

tpu = tf.tpu.experimental.embedding
OPTIMIZERS = ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL")
OTHER_VALUES = {  # for attributes whose default plus one is invalid
    "use_gradient_accumulation": False, "clip_weight_min": -1.0, "clip_weight_max": 1.0, "weight_decay_factor": 0.1,
    "use_nesterov": True, "lazy_adam": False, "multiply_linear_by_learning_rate": True, "sum_inside_sqrt": False,
    "allow_zero_accumulator": True, "beta_1": 0.5, "beta_2": 0.5, "beta2": 0.5, "learning_rate_power": -0.25,
    "momentum": 0.5,
}  # fmt: skip


def arguments_of(cls):
    return {name for name in inspect.signature(cls.__init__).parameters if name != "self"}


@pytest.mark.parametrize("name", list(ATTRIBUTES))
def test_every_attribute_of_tensorflow_is_declared(name):
    """Fails if a new TensorFlow adds an attribute: implement or refuse it in embedding_core.feature_specs."""
    since_2_21 = {"dtype"} if name == "TableConfig" else set()  # refused if it is not float32
    assert arguments_of(getattr(tpu, name)) - since_2_21 == set(ATTRIBUTES[name])


def test_every_class_of_tensorflow_is_declared():
    configurations = {name for name in dir(tpu) if inspect.isclass(getattr(tpu, name)) and "TPU" not in name}
    newer = {"CustomOptimizer", "CustomCombiner"}  # refused
    newer |= {"SparseCoreEmbeddingConfig"}  # no argument takes it
    assert configurations - set(ATTRIBUTES) - newer == {"RowIdInitializer"}  # an initializer, which is called


@pytest.mark.skipif(not hasattr(tpu, "CustomOptimizer"), reason="TensorFlow 2.18 and later have CustomOptimizer")
def test_custom_optimizer_is_refused():
    with pytest.raises(ValueError, match="CustomOptimizer"):
        optimizer_to_core(tpu.CustomOptimizer.__new__(tpu.CustomOptimizer))


@pytest.mark.skipif("dtype" not in inspect.signature(tpu.TableConfig).parameters, reason="of TensorFlow 2.20 and later")
def test_table_of_whole_numbers_is_refused():
    table = tpu.TableConfig(3, 2, name="t", dtype=tf.int32)
    with pytest.raises(ValueError, match=r"`dtype` of the TableConfig of .* would be ignored"):
        model_of({"f": tpu.FeatureConfig(table)}, tpu.SGD(), needs_optimizer=True)


@pytest.mark.skipif(not hasattr(tpu, "CustomCombiner"), reason="of TensorFlow 2.20 and later")
def test_custom_combiner_is_refused():
    table = tpu.TableConfig(3, 2, name="t")
    table.combiner = tpu.CustomCombiner.__new__(tpu.CustomCombiner)
    with pytest.raises(ValueError, match="combiner"):
        model_of({"f": tpu.FeatureConfig(table)}, tpu.SGD(), needs_optimizer=True)


@pytest.mark.parametrize(("ours", "theirs"), [(MidLevel, tpu.TPUEmbedding), (TPUEmbeddingV0, tpu.TPUEmbeddingV0)])
def test_constructors_take_what_tensorflows_take(ours, theirs):
    assert arguments_of(ours) - {"seed"} == arguments_of(theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hyperparameters_reach_the_update_rule(name):
    apart = {"slot_variable_creation_fn", "low_dimensional_packing_status", "clipvalue", "weight_decay_factor"}
    apart |= {"multiply_weight_decay_factor_by_learning_rate"}
    for attribute in set(ATTRIBUTES[name]) - apart:
        default = inspect.signature(getattr(tpu, name)).parameters[attribute].default
        value = OTHER_VALUES.get(attribute, (default or 0) + 1)
        assert value != default
        assert getattr(optimizer_to_core(getattr(tpu, name)(**{attribute: value})), attribute) == value
    decayed = {"weight_decay_factor": 0.1, "multiply_weight_decay_factor_by_learning_rate": True}
    found = optimizer_to_core(getattr(tpu, name)(clipvalue=(-1.0, 2.0), **decayed))
    assert (found.clipvalue, found.weight_decay_factor) == ((-1.0, 2.0), 0.1)
    assert found.multiply_weight_decay_factor_by_learning_rate


@pytest.mark.parametrize("cls", list(keras_optimizers.TF_KERAS.kinds))
def test_keras_optimizer_arguments_are_passed_on_or_refused(cls):
    """Change each argument that is not passed on, except those that do not affect results or are handled elsewhere."""
    values = {"amsgrad": True, "adaptive_epsilon": True, "nesterov": True, "use_ema": True}
    allowed = {*keras_optimizers.TF_KERAS.kinds[cls].passed, *FREE, "kwargs", "gradients_clip_option"}
    for name in (arguments_of(cls) | {"clipnorm", "clipvalue", "global_clipnorm"}) - allowed:
        optimizer = cls()
        setattr(optimizer, name, values.get(name, 0.25))
        if name in cls().get_config():
            optimizer = cls(**{name: values.get(name, 0.25)})
        with pytest.raises(ConfigError, match=name):
            keras_optimizers.translate_keras_optimizer(optimizer)


@pytest.mark.parametrize("setting", ["layout", "of a newer TensorFlow"])
def test_attribute_that_would_be_ignored_is_refused(setting):
    class Newer(tpu.TableConfig):
        def __init__(self, *arguments, sharding=None, **named):
            super().__init__(*arguments, **named)
            self.sharding = sharding

    table = tpu.TableConfig(4, 1, layout="bogus") if setting == "layout" else Newer(4, 1, sharding="rows")
    feature = tpu.FeatureConfig(table)
    for made in (
        lambda: MidLevel(feature, tpu.SGD()),
        lambda: TPUEmbedding(feature, "sgd"),
        lambda: PartialTPUEmbedding({"f": feature}, "sgd"),
        lambda: cpu_embedding_lookup(tf.constant([0]), None, {table: tf.zeros([4, 1])}, feature),
    ):
        with pytest.raises(ConfigError, match=r"`(layout|sharding)` of the TableConfig of .* would be ignored"):
            made()
    MidLevel(tpu.FeatureConfig(Newer(4, 1)), tpu.SGD())


def test_what_hides_its_arguments_is_refused_too():
    class Hiding(tpu.TableConfig):
        def __init__(self, **named):
            super().__init__(**named)

    with pytest.raises(ConfigError, match="`layout`"):
        refuse_unknown("TableConfig", Hiding(vocabulary_size=1, dim=1, layout=3), "table 't'")


def engines_of(optimizer):
    """Yield functions that make a trainer by the TPU's rules: the mid-level class, and the layer on and off a TPU."""
    feature = tpu.FeatureConfig(tpu.TableConfig(4, 1, name="t"))

    def under(cls):
        with simulated_tpu().scope():
            return cls(feature, optimizer)

    yield lambda: under(MidLevel)
    yield lambda: under(TPUEmbedding)
    yield lambda: TPUEmbedding(feature, optimizer, table_update="engine")


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (tpu.Adagrad(slot_variable_creation_fn=lambda *_: {}), "slot_variable_creation_fn"),
        (tpu.SGD(low_dimensional_packing_status=True, clip_weight_min=-1.0), "low_dimensional_packing_status"),
        (tpu.Adagrad(low_dimensional_packing_status=True, clip_weight_max=1.0), "low_dimensional_packing_status"),
        (tpu.SGD(low_dimensional_packing_status=True, weight_decay_factor=0.1), "low_dimensional_packing_status"),
        (tpu.FTRL(low_dimensional_packing_status=True), "low_dimensional_packing_status"),
    ],
)
def test_what_an_engine_would_ignore_is_refused(optimizer, named):
    for made in engines_of(optimizer):
        with pytest.raises(ConfigError, match=f"`{named}` of the optimizer of table 't'"):
            made()


def test_harmless_packing_is_accepted():
    for made in engines_of(tpu.Adagrad(low_dimensional_packing_status=True)):
        made()


def test_slots_of_a_caller_that_miss_some_are_refused():
    table = tpu.TableConfig(4, 1, name="t", optimizer=tpu.Adam(slot_variable_creation_fn=lambda *_: {"momenta": None}))
    with pytest.raises(ConfigError, match=r"`slot_variable_creation_fn` .* 't' made \['momenta'\]"):
        MidLevel(tpu.FeatureConfig(table), None).build()


def test_subclass_of_an_optimizer_is_refused():
    class Mine(tpu.Adam):
        def _slot_names(self):
            return ["mine"]

    with pytest.raises(ConfigError, match="unsupported optimizer class"):
        model_of(tpu.FeatureConfig(tpu.TableConfig(4, 1)), Mine(), needs_optimizer=True)


@tf_keras.saving.register_keras_serializable("tests")
class Ones(tf_keras.initializers.Initializer):
    """An initializer of the user that has the name of one of TensorFlow's, but fills with 7."""

    def __call__(self, shape, dtype=None, **arguments):
        return tf.fill(shape, 7.0)

    def get_config(self):
        return {}


class RandomUniform(type(tf.random_uniform_initializer())):
    def __call__(self, shape, dtype=tf.float32, **arguments):
        return tf.fill(shape, 7.0)


@pytest.mark.parametrize("initializer", [Ones(), RandomUniform(-1.0, 1.0)])
@pytest.mark.parametrize("way", ["keras", "engine", "tpu"])
def test_initializers_of_the_user_are_called_whatever_their_name(initializer, way):
    table = tpu.TableConfig(4, 1, initializer, name="t")
    strategy = simulated_tpu() if way == "tpu" else tf.distribute.get_strategy()
    with strategy.scope():
        layer = layer_of(tpu.SGD(), "keras" if way == "tpu" else way, table, batch_size=2)
        layer.build(None)
    found = layer.embedding_tables[table] if way == "keras" else layer.table_variables["t"]
    np.testing.assert_array_equal(found, np.full([4, 1], 7.0))


@pytest.mark.parametrize("module", [tf_keras.initializers, tf.initializers])
@pytest.mark.parametrize(
    ("name", "arguments", "kind", "scale"),
    [
        ("Zeros", (), "constant", 0.0),
        ("Ones", (), "constant", 1.0),
        ("TruncatedNormal", (0.0, 0.3), "truncated_normal", 0.3),
        ("RandomUniform", (-0.2, 0.2), "uniform", 0.2),
    ],
)
def test_initializers_of_tensorflow_are_recognised(module, name, arguments, kind, scale):
    old = {"TruncatedNormal": "truncated_normal", "RandomUniform": "random_uniform"}.get(name, name.lower())
    for made in (getattr(module, name), getattr(tf.compat.v1, f"{old}_initializer")):
        found = initializer_to_core(made(*arguments), 2)
        assert (found.name, found.scale) == (kind, scale)


def test_initializer_of_a_table_without_one_is_the_default():
    found = initializer_to_core(tpu.TableConfig(7, 2).initializer, 2)
    assert (found.name, found.scale) == ("truncated_normal", None)


@pytest.mark.parametrize(
    "initializer",
    [
        tf.compat.v1.random_uniform_initializer(),
        tf_keras.initializers.RandomUniform(0.1, -0.1),
        tf.initializers.TruncatedNormal(0.0, 0.1, seed=1),
        tf.random_uniform_initializer(0.0, 0.2),
    ],
    ids=["without bounds", "reversed", "seeded", "shifted"],
)
def test_initializer_that_core_lacks_stays_the_callers(initializer):
    assert initializer_to_core(initializer, 2) is initializer


def test_initializers_come_back_as_they_are_or_are_refused():
    def layer_of(initializer):
        return TPUEmbedding(tpu.FeatureConfig(tpu.TableConfig(2, 1, initializer, name="t")), None)

    for initializer in (None, Ones(), tf.constant_initializer(3.0), tf_keras.initializers.GlorotUniform()):
        layer = layer_of(initializer)
        again = TPUEmbedding.from_config(json.loads(json.dumps(layer.get_config())))
        kept, made = (tf.nest.flatten(each._state.config.feature_config)[0].table for each in (layer, again))
        assert type(made.initializer).__name__ == type(kept.initializer).__name__
        assert isinstance(made.initializer, Ones) == isinstance(kept.initializer, Ones)
    with pytest.raises(ConfigError, match="register_keras_serializable"):
        layer_of(type("Local", (RandomUniform,), {})(-1.0, 1.0)).get_config()
