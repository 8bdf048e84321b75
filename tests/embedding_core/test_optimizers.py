"""Hyperparameters that are out of range, of the wrong type or without effect are refused by name."""

import math

import numpy as np
import pytest

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import optimizer_from_json

pytestmark = pytest.mark.light

OUT_OF_RANGE = [
    (SGD, {"learning_rate": -0.1}, "learning_rate"),
    (SGD, {"learning_rate": math.nan}, "learning_rate"),
    (SGD, {"learning_rate": "0.1"}, "learning_rate"),
    (SGD, {"clip_weight_min": 1.0, "clip_weight_max": 0.0}, "clip_weight_min"),
    (SGD, {"clip_weight_max": math.nan}, "clip_weight_max"),
    (SGD, {"weight_decay_factor": -1.0}, "weight_decay_factor"),
    (SGD, {"weight_decay_factor": "0.1"}, "weight_decay_factor"),
    (SGD, {"multiply_weight_decay_factor_by_learning_rate": True}, "multiply_weight_decay_factor_by_learning_rate"),
    (SGD, {"clipvalue": -1.0}, "clipvalue"),
    (SGD, {"clipvalue": (1.0, -1.0)}, "clipvalue"),
    (SGD, {"clipvalue": (1.0,)}, "clipvalue"),
    (SGD, {"clipvalue": 1.0, "use_gradient_accumulation": False}, "use_gradient_accumulation"),
    (SGD, {"use_gradient_accumulation": "no"}, "use_gradient_accumulation"),
    (Adagrad, {"initial_accumulator_value": 0.0}, "initial_accumulator_value"),
    (AdagradMomentum, {"momentum": -0.1}, "momentum"),
    (AdagradMomentum, {"exponent": 0.0}, "exponent"),
    (AdagradMomentum, {"beta2": 1.1}, "beta2"),
    (AdagradMomentum, {"epsilon": 0.0}, "epsilon"),
    (AdagradMomentum, {"use_nesterov": None}, "use_nesterov"),
    (Adam, {"beta_1": 1.0}, "beta_1"),
    (Adam, {"beta_2": -0.1}, "beta_2"),
    (Adam, {"epsilon": 0.0}, "epsilon"),
    (Adam, {"lazy_adam": False, "use_gradient_accumulation": False}, "use_gradient_accumulation"),
    (FTRL, {"learning_rate_power": 0.5}, "learning_rate_power"),
    (FTRL, {"l1_regularization_strength": -1.0}, "l1_regularization_strength"),
    (FTRL, {"l2_regularization_strength": math.inf}, "l2_regularization_strength"),
    (FTRL, {"beta": -1.0}, "beta"),
    (FTRL, {"initial_accumulator_value": 0.0}, "initial_accumulator_value"),
]


@pytest.mark.parametrize(("optimizer", "fields", "name"), OUT_OF_RANGE)
def test_hyperparameter_out_of_range_is_refused_by_name(optimizer, fields, name):
    with pytest.raises(ConfigError, match=f"`{name}` of {optimizer.__name__} is .*: it must be"):
        optimizer(**fields)


@pytest.mark.parametrize("optimizer", [SGD, Adagrad, AdagradMomentum, Adam, FTRL])
def test_defaults_survive_json(optimizer):
    assert optimizer_from_json(optimizer().name) == optimizer()
    assert optimizer_from_json(optimizer().to_mapping()) == optimizer()


def test_zero_accumulator_may_be_allowed():
    assert FTRL(initial_accumulator_value=0.0, allow_zero_accumulator=True).slots[0].initial == 0.0


def test_clip_value_of_one_number_is_symmetric():
    assert SGD(clipvalue=0.5).gradient_bounds == (-0.5, 0.5)
    assert SGD(clipvalue=[None, 1.0]).gradient_bounds == (None, 1.0)


@pytest.mark.parametrize("value", [np.array(0.5), np.True_, np.array([0.5]), True])
@pytest.mark.parametrize("field", ["learning_rate", "clip_weight_max", "clipvalue", "beta_1", "epsilon"])
def test_values_that_only_convert_to_numbers_are_refused(field, value):
    with pytest.raises(ConfigError, match=f"`{field}` of Adam is "):
        Adam(**{field: value})


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5)])
def test_numpy_numbers_become_python_numbers(value):
    optimizer = Adam(learning_rate=value, clipvalue=(None, value), beta_1=value)
    assert optimizer == Adam(learning_rate=0.5, clipvalue=(None, 0.5), beta_1=0.5)


def test_callable_in_a_table_is_named_if_it_is_written_as_json():
    table = TableConfig(name="t", vocabulary_size=1, dim=1, optimizer=SGD(learning_rate=lambda: 0.1))
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table="t"),))
    with pytest.raises(ConfigError, match=r"`learning_rate` of SGD is a callable: .* pass a float"):
        config.to_json()
