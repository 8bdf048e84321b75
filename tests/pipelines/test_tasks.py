"""Tests pipelines of several kinds of labels, from the configuration to a proven version, on CPU and simulated TPU.

The suite has the two pipelines of tests/pipelines/test_trained_world.py; the campaign `tasks` runs this file.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import load_config

pytestmark = [pytest.mark.tfx, pytest.mark.slow]

ROWS = 1500
MOODS = ("awful", "fine", "great")
OWN_MODEL = """
import numpy as np
import tensorflow as tf
import tf_keras

from components.trainer.own_run import TrainerRun
from pipelines.models.parts import ONE_OUTPUT, inputs_vector, mlp, model_of


def build(config, embeddings, dense, *, tasks=ONE_OUTPUT):
    return model_of([embeddings, dense], dict.fromkeys(tasks, mlp(inputs_vector(embeddings, dense), [16])), tasks)


def row_loss(task, label, output):
    if output.shape[1] > 1:
        return None
    return tf.maximum(0.9 * (label - output), 0.1 * (output - label))


def eval_metrics(task, label, prediction, weight):
    return {"covered": np.average(label <= prediction, weights=weight)} if prediction.ndim == 1 else None


def run_fn(fn_args):
    run = TrainerRun(fn_args)
    with run.scope():
        model = run.keras_model()
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.Adam(0.01), loss)
        fitted = model.fit(run.train_data(), epochs=2, steps_per_epoch=run.steps_per_epoch, verbose=0)
    run.write(model, fitted.history)
"""
MODEL_OF_KERAS_3 = """
import keras


def build(config, embeddings, dense, *, tasks):
    top = keras.layers.Concatenate()([*embeddings.values(), *dense.values()])
    top = keras.layers.Dense(16, "relu")(top)
    return keras.Model([embeddings, dense], {task: keras.layers.Dense(width)(top) for task, width in tasks.items()})
"""
FAST = {"dense_optimizer": {"learning_rate": 0.01}}
SOFTMAX = {"feature": "item", "sampled": 16, "temperature": 0.5}
TOWERS = {"query_features": ["user"], "candidate_features": ["item"]}
MMOE = {"name": "mmoe", "arguments": {"dropout": 0.0}}
LABELS = {
    "three": {"labels": {
        "click": {"column": "click"},
        "stars": {"column": "stars", "kind": "regression", "loss": "huber", "weight": 0.5},
        "visits": {"column": "visits", "kind": "count"},
    }, "evaluation": {"thresholds": {"stars/MeanAbsoluteError": {"max": 4}}}},
    "multiclass": {"label": {"column": "mood", "kind": "multiclass"}, "training": FAST},
    "mixed": {
        "labels": {"mood": {"column": "mood", "kind": "multiclass"}, "click": {"column": "click"}},
        "model": MMOE,
        "training": FAST,
    },
    "keras3": {
        "labels": {"mood": {"column": "mood", "kind": "multiclass"}, "click": {"column": "click"}},
        "model": "keras3_model",
        "training": FAST,
    },
    "own": {"label": {"column": "visits", "kind": "regression"}, "model": "own_model", "training": FAST},
    "run_fn": {
        "label": {"column": "mood", "kind": "multiclass"},
        "model": {"name": "own_model", "run_fn": "own_model.run_fn"},
    },
    "positive": {
        "label": {"kind": "positive"},
        "features": {"categorical": ["user", "item"]},
        "model": {"name": "two_tower", "arguments": TOWERS},
        "training": {"negatives": "item"},
        "evaluation": {"thresholds": {"Recall@10": {"min": 0.0}}},
    },
    "whole": {
        "label": {"kind": "positive"},
        "features": {"categorical": ["user", "item", {"name": "group", "separator": "|"}], "dense": ["price"]},
        "model": {
            "name": "two_tower",
            "arguments": {**TOWERS, "candidate_features": ["item", "group", "price"], "hidden_units": [8]},
        },
        "training": {"softmax": SOFTMAX},
        "evaluation": {"thresholds": {"Recall@10": {"min": 0.0}}},
    },
    "histories": {
        "label": {"kind": "positive"},
        "data": {
            "histories": {"user": "user", "time": "hour", "columns": {"past": "item"}, "max_length": 5, "min_length": 1}
        },
        "split": "leave_one_out",
        "features": {
            "categorical": [
                {"name": "past", "multivalent": True, "vocabulary": "item", "max_sequence_length": 5},
                "item",
            ]
        },
        "model": {"name": "sequential", "arguments": {"history": "past", "candidate": "item", "dropout": 0.0}},
        "training": {"softmax": "item"},
        "evaluation": {
            "metrics": ["AUC", "Recall@10", "NDCG@20", "MRR@10", "HitRate@10"],
            "exclude_seen": True,
            "thresholds": {"NDCG@20": {"min": 0.01, "min_over_popularity": -1}},
            "min_rows": 40,  # one row per user
        },
    },
}  # fmt: skip
RETRIEVAL = ("histories", "positive", "whole")
SERVED = {
    "three": {"click_logit", "click_probability", "stars_prediction", "visits_prediction"},
    "multiclass": {"classes", "probabilities"},
    **{
        kind: {"mood_classes", "mood_probabilities", "click_logit", "click_probability"} for kind in ("mixed", "keras3")
    },
    "own": {"prediction"},
    "run_fn": {"classes", "probabilities"},
    **{kind: {"logit", "probability"} for kind in RETRIEVAL},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write a CSV file in which user and item decide click, stars, visits and mood; rows without a click have no stars.

    One row in a hundred has a unique mood. Unique moods in the eval split are not among the classes.
    """
    draw, mood_draw = np.random.default_rng(0), np.random.default_rng(1)
    users, items = draw.normal(size=40), draw.normal(size=30)
    lines = ["user,item,hour,click,stars,visits,history,mood,group,price"]
    for row in range(ROWS):
        user, item, hour = draw.integers(40), draw.integers(30), draw.integers(24)
        taste = users[user] + items[item]
        click = int(draw.random() < 1 / (1 + np.exp(-2 * taste)))
        history = " ".join(f"i{(item - back) % 30}" for back in range(draw.integers(0, 8), 0, -1))
        stars = f"{3 + 0.5 * taste:.2f}" if click else ""
        group = f"g{item % 4}|g{item % 3 + 4}" if item % 5 else ""
        visits = draw.poisson(np.exp(0.5 * taste))
        mood = f"own{row}" if row % 100 == 0 else MOODS[int(np.digitize(taste + mood_draw.normal(), [-1, 1]))]
        lines.append(f"u{user},i{item},{hour},{click},{stars},{visits},{history},{mood},{group},{item / 10}")
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def config(data, kind, folder, strategy):
    settings = {
        "name": kind,
        "features": {"dense": ["hour"], "categorical": ["user", "item"]},
        "model": {"name": "ranking", "arguments": {"dropout": 0.0}},
        **LABELS[kind],
    }
    settings["data"] = {"path": str(data), **settings.get("data", {})}
    training = {"epochs": 2, "batch_size": 64, "early_stopping": None, **settings.get("training", {}), **strategy}
    (folder / "own_model.py").write_text(OWN_MODEL)
    (folder / "keras3_model.py").write_text(MODEL_OF_KERAS_3)
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({**settings, "training": training, "work_dir": str(folder / "work")}))
    return load_config(path)


@pytest.fixture(scope="module", params=sorted(LABELS))
def both(request, data, tmp_path_factory):
    """The kind of the labels, and the report and work_dir of a run on CPU and of one on a simulated TPU."""
    from pipelines.local.run_local import run

    runs = []
    for strategy in ({"strategy": "cpu"}, {"strategy": "simulated_tpu", "topology": "2x2"}):
        folder = tmp_path_factory.mktemp(request.param)
        runs.append((run(config(data, request.param, folder, strategy))[1], folder / "work"))
    return request.param, runs


def only(folder, pattern):
    (found,) = folder.glob(f"artifacts/{pattern}")
    return found


def test_every_kind_of_label_is_trained_judged_and_pushed(both):
    kind, runs = both
    for report, work in runs:
        assert report.push.pushed, report.push.reason
        assert max(row["difference"] for row in report.parity) <= 1e-5
        model = tf.saved_model.load(str(next(Path(work, "serving").glob("[0-9]*"))))
        assert set(model.signatures["serving_default"].structured_outputs) == SERVED[kind]


def test_both_devices_give_the_same_tables_and_losses(both):
    kind, runs = both
    histories, tables = [], []
    for _, work in runs:
        history = json.loads(only(work, "EmbeddingTrainer/model_run/*/history.json").read_text())
        evaluated = [] if kind == "positive" else history["evals"]  # drawn negatives depend on the batch size
        trained = [] if kind == "run_fn" else history["train"]  # Keras' curve counts padding
        histories.append([entry["loss"] for entry in (*trained, *evaluated)])
        prefix = str(only(work, "CheckpointRetriever/embedding_checkpoint/*/tables.index")).removesuffix(".index")
        reader = tf.train.load_checkpoint(prefix)
        tables.append({key: reader.get_tensor(key) for key in sorted(reader.get_variable_to_shape_map())})
    np.testing.assert_allclose(*histories, rtol=1e-4)
    assert list(tables[0]) == list(tables[1])
    for key, values in tables[0].items():
        if values.dtype == np.float32:
            np.testing.assert_allclose(tables[1][key], values, rtol=1e-3, atol=1e-5, err_msg=key)


@pytest.mark.room("sparse_cores")
def test_sparse_cores_under_limits_of_the_data_give_same_tables(both, data, tmp_path):
    """A v6e-4 is 4 chips with 2 SparseCores each. Positions of sequences are samples there."""
    from pipelines.local.run_local import run

    kind, runs = both
    if kind != "histories":
        pytest.skip("no sequences")
    _, report = run(config(data, kind, tmp_path, {"strategy": "simulated_tpu", "topology": "v6e-4"}))
    assert report.push.pushed, report.push.reason
    assert max(row["difference"] for row in report.parity) <= 1e-5
    assert report.further["sparse_cores"]["topology"] == "v6e-4"
    readers = []
    for work in (runs[0][1], tmp_path / "work"):
        prefix = str(only(work, "CheckpointRetriever/embedding_checkpoint/*/tables.index")).removesuffix(".index")
        readers.append(tf.train.load_checkpoint(prefix))
    for key, dtype in readers[0].get_variable_to_dtype_map().items():
        if dtype == tf.float32:
            first, other = (reader.get_tensor(key) for reader in readers)
            np.testing.assert_allclose(other, first, rtol=1e-3, atol=1e-5, err_msg=key)


def test_baselines_and_metrics_are_those_of_each_label(both):
    kind, runs = both
    report, _ = runs[0]
    scorers = [row["scorer"] for row in report.quality]
    metrics = {row["metric"]: row["value"] for row in report.evaluation}
    if kind in RETRIEVAL:
        assert scorers == ["this model", "popularity of item"]
        assert metrics["Recall@10"] > 0
        assert metrics["Recall@10"] == pytest.approx(report.retrieval["metrics"]["Recall@10"], abs=1e-6)
        return
    rows = {label["label"]: label["rows"] for label in report.labels}
    several = len(rows) > 1
    for name, count in rows.items():
        assert metrics[f"{name}/ExampleCount" if several else "ExampleCount"] == count
    if kind == "own":
        history = json.loads(only(runs[0][1], "EmbeddingTrainer/model_run/*/history.json").read_text())
        assert metrics["covered"] == history["evals"][-1]["metrics"]["covered"]
        assert 0 < report.curves["covered"]["eval"][-1][1] == metrics["covered"] < 1
        assert "ridge regression, one-hot" in scorers
        return
    if kind in ("multiclass", "mixed", "keras3", "run_fn"):
        model, shares, regression = report.quality[:3]
        of_label = "mood: " if several else ""
        assert [shares["scorer"], regression["scorer"]] == [
            f"{of_label}shares of the classes",
            f"{of_label}logistic regression, one-hot",
        ]
        assert model["metrics"]["cross-entropy"] < shares["metrics"]["cross-entropy"]
        name = "mood/Categorical" if several else "Categorical"
        assert model["metrics"]["accuracy"] == pytest.approx(metrics[f"{name}Accuracy"])
        assert model["metrics"]["cross-entropy"] == pytest.approx(metrics[f"{name}CrossEntropy"], rel=1e-5)
        assert rows["mood" if several else "label"] < report.eval_rows  # the class of some is not in the train split
        return
    regressions = {"click: logistic", "visits: Poisson", "stars: ridge"}
    assert {f"{name} regression, one-hot" for name in regressions} <= set(scorers)
    assert rows["stars"] < rows["click"] == report.eval_rows  # rows without stars do not count
    model, mean = report.quality[3:5]
    assert model["metrics"]["RMSE"] == pytest.approx(metrics["stars/RootMeanSquaredError"], rel=1e-5)
    assert mean["scorer"] == "stars: mean of the label"
