"""The main metric of each label, of a model and of the label's mean, against scikit-learn."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import accuracy_score, mean_absolute_error, mean_squared_error, roc_auc_score

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.evaluation import (
    FeatureCounts,
    LabelCounts,
    LabelScore,
    Predictions,
    Rules,
    SplitCounts,
    count_and_predict,
    judge,
    predict,
    score_labels,
)
from embedding_core.model_inputs import build_model, call_model
from embedding_core.tasks import Task
from embedding_core.training import Inputs, TrainingConfig
from embedding_core.training.finished_run import RestoredRun, RunDescription
from embedding_core.training.training_inputs import RowParser
from embedding_core.training_config import Softmax
from tests.support.tf_examples import write_rows
from tests.support.vocabularies import write_tokens

TOKENS = [b"t%d" % number for number in range(9)]
TABLE = TableConfig(name="item", vocabulary="item", vocabulary_size=9, dim=4)
CONFIG = EmbeddingConfig(
    tables=(TABLE,), features=(FeatureConfig(name="item", table="item", column=ColumnConfig(name="item")),)
)
TASKS = (
    Task(name="click", key="click"),
    Task(name="stars", key="stars", kind="regression"),
    Task(name="wait", key="wait", kind="regression", loss="absolute"),
    Task(name="visits", key="visits", kind="count"),
    Task(name="mood", key="mood", kind="multiclass", classes=("a", "b", "c")),
)
MODULE = "pipelines.models.ranking"


def write(path, rows):
    return [write_rows(path, rows)]


def rows(number, seed):
    chance = np.random.default_rng(seed)
    for _ in range(number):
        yield {
            "item": TOKENS[chance.integers(9)],
            "click": float(chance.random() < 0.3),
            "stars": chance.normal(3, 2),
            "wait": np.nan if chance.random() < 0.2 else chance.exponential(2),
            "visits": float(chance.poisson(2)),
            "mood": float(chance.choice(3, p=[0.2, 0.5, 0.3])),
            "weight": chance.random(),
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    write_tokens(folder, {"item": TOKENS})
    return folder


def run_of(folder, tasks, module=MODULE, config=CONFIG, **training):
    names = [task.key for task in tasks]
    inputs = Inputs(
        config=config,
        vocabularies={"item": str(folder / "item.txt")},
        raw_spec={name: tf.io.FixedLenFeature([], tf.float32) for name in (*names, "weight")},
        tasks=tasks,
        weight="weight",
    )
    description = RunDescription(
        model=module, arguments={}, config=config, training=TrainingConfig(steps=1, **training), dense=(), tasks=tasks,
        weight="weight", step=1, checkpoint="", vocabularies={},
    )  # fmt: skip
    model = build_model(module, config, (), {}, tasks)
    return RestoredRun(description, HostEngine(config, seed=3, with_slots=False), model), inputs


def test_scores_of_all_labels_are_those_of_scikit_learn(folder):
    run, inputs = run_of(folder, TASKS)
    train, held_out = list(rows(400, 1)), list(rows(300, 2))
    files = write(folder / "train", train), write(folder / "eval", held_out)
    predictions = Predictions.from_bytes(predict(run, inputs, files[1]).to_bytes())
    found = {score.metric: score for score in score_labels(run, inputs, predictions, train_files=files[0])}
    (serialized,) = tf.data.TFRecordDataset(files[1]).batch(300)
    batch = RowParser(inputs)(serialized)
    output = {
        name: value.numpy() for name, value in call_model(run.model, run.engine.lookup(batch["ids"]), {}, TASKS).items()
    }

    def of(split, name):
        known = [row for row in split if not np.isnan(row[name])]
        return np.array([row[name] for row in known]), np.array([row["weight"] for row in known])

    def mean(name):
        return np.average(of(train, name)[0], weights=of(train, name)[1])

    def both(metric, name, predicted, constant):
        label, weight = of(held_out, name)
        return [
            metric(label, prediction, sample_weight=weight) for prediction in (predicted, np.full(len(label), constant))
        ]

    def rmse(*given, **more):
        return np.sqrt(mean_squared_error(*given, **more))

    known = np.array([not np.isnan(row["wait"]) for row in held_out])
    expected = {
        "click/AUC": both(roc_auc_score, "click", output["click"][:, 0], mean("click")),
        "stars/RootMeanSquaredError": both(rmse, "stars", output["stars"][:, 0], mean("stars")),
        "wait/MeanAbsoluteError": both(mean_absolute_error, "wait", output["wait"][known, 0], mean("wait")),
        "visits/RootMeanSquaredError": both(rmse, "visits", np.exp(output["visits"][:, 0]), mean("visits")),
        "mood/CategoricalAccuracy": both(accuracy_score, "mood", output["mood"].argmax(axis=1), 1),
    }
    assert found.keys() == expected.keys()
    for name, (model, constant) in expected.items():
        assert (found[name].model, found[name].constant) == pytest.approx((model, constant), rel=1e-5)


@pytest.mark.parametrize("oov_rows", [0, 2])
def test_counts_and_predictions_are_the_same_in_one_pass(folder, oov_rows):
    table = TABLE.replace(vocabulary_size=9 + oov_rows, oov_rows=oov_rows)
    run, inputs = run_of(folder, TASKS[:1], config=CONFIG.replace(tables=(table,)))
    some = [{**row, "item": b"new" if number < 3 else row["item"]} for number, row in enumerate(rows(60, 5))]
    files = write(folder / "counted", some)
    counts, predictions = count_and_predict(run, inputs, files)
    clicks = sum(row["click"] for row in some)
    assert counts == SplitCounts(
        rows=60,
        labels={"click": LabelCounts(rows=60, positives=clicks, negatives=60 - clicks)},
        features={"item": FeatureCounts(empty_rows=0, tokens=60, unknown_tokens=3, unknown_rows=3)},
    )
    assert predictions.to_bytes() == predict(run, inputs, files).to_bytes()


def test_labels_that_no_metric_can_judge_have_no_score(folder, monkeypatch):
    some = write(folder / "some", rows(50, 3))
    ones = write(folder / "ones", ({**row, "click": 1.0} for row in rows(50, 4)))

    def scored(run, inputs, files=ones):
        return score_labels(run, inputs, predict(run, inputs, files), train_files=some)

    assert scored(*run_of(folder, TASKS[:1])) == []
    assert scored(*run_of(folder, TASKS[:1], softmax=Softmax(feature="item")), files=some) == []
    own = types.ModuleType("module_with_a_loss")
    exec("def row_loss(task, label, output): return abs(label - output)", own.__dict__)
    own.build = sys.modules[MODULE].build
    monkeypatch.setitem(sys.modules, own.__name__, own)
    assert scored(*run_of(folder, TASKS[1:2], module=own.__name__)) == []


@pytest.mark.parametrize(
    ("metric", "model", "constant", "met"),
    [
        ("AUC", 0.4802, 0.5, False),
        ("AUC", 0.5, 0.5, True),
        ("click/AUC", 0.51, 0.5, True),
        ("RootMeanSquaredError", 1.1, 1.0, False),
        ("stars/MeanAbsoluteError", 0.9, 1.0, True),
        ("CategoricalAccuracy", 0.4, 0.5, False),
        ("RootMeanSquaredError", float("nan"), 1.0, False),
    ],
)
def test_a_model_that_loses_to_the_mean_is_refused(metric, model, constant, met):
    counts = SplitCounts(rows=9, labels={"label": LabelCounts(rows=9, positives=5, negatives=4)}, features={})
    score = LabelScore(label="label", metric=metric, model=model, constant=constant)
    (check,) = judge(counts, "no towers", Rules(), [score])[-1:]
    assert (check.name, check.met) == (metric, met)
    assert met or f"`evaluation.thresholds.{metric}`" in check.reason
    bounded = judge(counts, "no towers", Rules(bounded_metrics=(metric,)), [score])
    assert all(bound.met and bound.name != metric for bound in bounded)
