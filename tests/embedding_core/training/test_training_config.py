import json

import pytest

from embedding_core.errors import ConfigError
from embedding_core.optimizers import DEFAULT_OPTIMIZER, FTRL, Adagrad, Adam
from embedding_core.tasks import Task
from embedding_core.training.finished_run import RunDescription
from embedding_core.training_config import EarlyStopping, Negatives, Training, TrainingConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dense_optimizer.learning_rate", -1.0),
        ("dense_optimizer.name", "adammm"),
        ("class_weights", (1.0,)),
        ("steps", 3),
    ],
)
def test_value_out_of_range_is_refused_by_name(field, value):
    section, _, key = field.partition(".")
    with pytest.raises(ConfigError, match=f"`{field}`"):
        TrainingConfig(epochs=1, **{section: {key: value} if key else value})


@pytest.mark.parametrize(("topology", "parts"), [("v3-8", "8 cores"), ("v5p-8", "16 SparseCores")])
def test_batch_that_the_slice_cannot_share_is_refused(topology, parts):
    with pytest.raises(ConfigError, match=f"not a multiple of the {parts} of `topology` '{topology}'"):
        TrainingConfig(batch_size=36, topology=topology)


def test_recorded_by_the_previous_release_is_read():
    recorded = {
        "epochs": None, "steps": 7, "batch_size": 32, "optimizer": "nadam", "learning_rate": 0.01,
        "learning_rate_tables": 0.2, "decay": "linear", "embedding_l2": 0.5, "class_weights": [1.0, 3.0],
        "eval_every": 5, "early_stopping": None, "checkpoint_every": None, "nonfinite_rows": "keep",
        "shuffle_buffer": 128, "seed": 3, "negatives": {"feature": "item", "per_positive": 2, "distribution": "count",
        "candidate_features": ["item"]}, "strategy": "cpu", "topology": None,
    }  # fmt: skip
    config = TrainingConfig.from_mapping(recorded)
    assert (config.dense_optimizer.name, config.dense_optimizer.learning_rate) == ("nadam", 0.01)
    assert (config.steps, config.class_weights, config.seed) == (7, (1.0, 3.0), 3)
    assert config.early_stopping is None
    assert config.negatives == Negatives(
        feature="item", per_positive=2, distribution="count", candidate_features=("item",)
    )


def test_optimizer_of_tables_is_no_setting_of_the_trainer():
    with pytest.raises(ConfigError, match="table_optimizer"):
        TrainingConfig.from_mapping({"epochs": 1, "table_optimizer": {"name": "sgd"}})


def test_run_that_recorded_an_optimizer_of_tables_is_read(tmp_path):
    description = RunDescription.load("tests/data/previous_release/model_run")
    description.save(str(tmp_path))
    recorded = json.loads((tmp_path / "training.json").read_text())
    recorded["training"]["table_optimizer"] = {"name": "sgd"}
    (tmp_path / "training.json").write_text(json.dumps(recorded))
    assert RunDescription.load(str(tmp_path)) == description


@pytest.mark.parametrize(("metric", "better", "worse"), [("auc", 0.9, 0.8), ("loss", 0.1, 0.2)])
def test_better_depends_on_the_metric(metric, better, worse):
    stopping = EarlyStopping(metric=metric, min_delta=0.05)
    assert stopping.is_better(metric, better, worse)
    assert not stopping.is_better(metric, worse, better)
    assert not stopping.is_better(metric, better, better)
    assert stopping.is_better(metric, worse, float("nan"))


def test_metric_follows_the_labels_if_it_is_not_given():
    click, stars = Task(name="click"), Task(name="stars", kind="regression")
    assert EarlyStopping().metric_of([click]) == "auc"
    assert EarlyStopping().metric_of([click, stars]) == "loss"
    assert EarlyStopping(metric="loss").metric_of([click]) == "loss"


@pytest.mark.parametrize(
    ("given", "batch_size", "optimizer"),
    [
        ({}, 1024, Adam(learning_rate=0.005)),
        ({"batch_size": 64, "table_optimizer": {"learning_rate": 0.01}}, 64, Adam(learning_rate=0.01)),
        ({"table_optimizer": {"name": "adagrad", "learning_rate": 0.1}}, 1024, Adagrad(learning_rate=0.1)),
        ({"table_optimizer": "ftrl"}, 1024, FTRL()),
    ],
)
def test_softmax_has_defaults_of_its_own(given, batch_size, optimizer):
    training = Training.from_mapping({"softmax": "item", **given})
    assert (training.batch_size, training.table_optimizer) == (batch_size, optimizer)
    without = Training.from_mapping({"softmax": None})
    assert (without.batch_size, without.table_optimizer) == (256, DEFAULT_OPTIMIZER)
