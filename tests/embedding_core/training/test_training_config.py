import json

import pytest

from embedding_core.errors import ConfigError
from embedding_core.training.config import EarlyStopping, Negatives, TrainingConfig


def test_config_round_trips_through_json():
    config = TrainingConfig(
        steps=9,
        class_weights=(1.0, 2.5),
        early_stopping=EarlyStopping(metric="loss", patience=2),
        negatives=Negatives(feature="item", candidate_features=("item", "words")),
    )
    assert TrainingConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("learning_rate", -1.0),
        ("seed", 1.5),
        ("strategy", "gpus"),
        ("optimizer", "adammm"),
        ("class_weights", (1.0,)),
        ("steps", 3),
    ],
)
def test_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        TrainingConfig(epochs=1, **{field: value})


def test_unknown_field_is_refused():
    with pytest.raises(ConfigError, match="colour"):
        TrainingConfig.from_json({"epochs": 1, "colour": "red"})


def test_first_evaluation_is_better_than_none():
    assert EarlyStopping().is_better(0.1, float("nan"))


@pytest.mark.parametrize(("metric", "better", "worse"), [("auc", 0.9, 0.8), ("loss", 0.1, 0.2)])
def test_better_depends_on_the_metric(metric, better, worse):
    stopping = EarlyStopping(metric=metric, min_delta=0.05)
    assert stopping.is_better(better, worse)
    assert not stopping.is_better(worse, better)
    assert not stopping.is_better(better, better)
