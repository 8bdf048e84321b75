"""Keras optimizers, legacy and new, are translated to the TPU's or refused."""

import pytest
import tensorflow as tf
import tf_keras

from embedding_core.errors import ConfigError
from embedding_core.layer import translate_keras_optimizer
from embedding_core.layer.keras_optimizers import TF_KERAS

tpu = tf.tpu.experimental.embedding
legacy, new = tf_keras.optimizers.legacy, tf_keras.optimizers
GENERATIONS = pytest.mark.parametrize("generation", [legacy, new], ids=["legacy", "new"])


@GENERATIONS
def test_hyperparameters_are_passed_on(generation):
    adam = translate_keras_optimizer(generation.Adam(0.5, beta_1=0.25, beta_2=0.75, epsilon=1e-3))
    assert isinstance(adam, tpu.Adam)
    assert (adam.beta_1, adam.beta_2, adam.epsilon, adam.lazy_adam) == (0.25, 0.75, 1e-3, True)
    assert float(adam.learning_rate()) == 0.5
    adagrad = translate_keras_optimizer(generation.Adagrad(initial_accumulator_value=3.0))
    assert adagrad.initial_accumulator_value == 3.0
    ftrl = translate_keras_optimizer(generation.Ftrl(l1_regularization_strength=0.5, beta=2.0))
    assert (ftrl.l1_regularization_strength, ftrl.beta) == (0.5, 2.0)
    assert isinstance(translate_keras_optimizer(generation.SGD()), tpu.SGD)


def test_decay_of_a_legacy_optimizer_is_refused():
    """test_attributes.py tests the arguments of the constructors."""
    with pytest.raises(ConfigError, match="Optimizer parameter decay is unsupported"):
        translate_keras_optimizer(legacy.SGD(decay=0.1))


@GENERATIONS
def test_other_classes_are_refused_by_name(generation):
    with pytest.raises(ConfigError, match="RMSprop is unsupported for TPU embedding"):
        translate_keras_optimizer(generation.RMSprop())


def test_loss_scale_optimizer_is_no_table_optimizer():
    with pytest.raises(ConfigError, match="inner_optimizer"):
        TF_KERAS.table_optimizer(tf_keras.mixed_precision.LossScaleOptimizer(new.SGD()))


def test_strings_are_the_tpus_with_its_defaults():
    assert isinstance(TF_KERAS.table_optimizer("adagrad"), tpu.Adagrad)
    assert TF_KERAS.table_optimizer("adagrad").learning_rate == 0.001
    with pytest.raises(ConfigError, match="Unknown optimizer name 'rmsprop'"):
        TF_KERAS.table_optimizer("rmsprop")


def test_the_tpus_own_classes_stay_as_they_are():
    for own in (tpu.SGD(), tpu.Adagrad(), tpu.AdagradMomentum(), tpu.Adam(), tpu.FTRL(), None):
        assert TF_KERAS.table_optimizer(own) is own
    with pytest.raises(ConfigError, match="Unknown optimizer type"):
        TF_KERAS.table_optimizer(3)


def test_keras_3_is_refused():
    keras = pytest.importorskip("keras", minversion="3")
    with pytest.raises(ConfigError, match="of Keras 3"):
        TF_KERAS.table_optimizer(keras.optimizers.SGD())
