"""Tests that the baseline regression's regularization is chosen on the train split, and is the same every time."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import sklearn.metrics
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.evaluation import Predictions
from embedding_core.tasks import Task
from embedding_core.training import Inputs
from pipelines.report import baselines

pytestmark = pytest.mark.tfx


def rows(count, columns, seed):
    """Return one-hot rows of tokens with small effects on the label; scikit-learn's default strength overfits them."""
    effects = np.random.default_rng(0).normal(0, 0.4, columns)
    random = np.random.default_rng(seed)
    tokens = random.integers(columns, size=count)
    label = (random.random(count) < 1 / (1 + np.exp(-effects[tokens]))).astype(float)
    features = scipy.sparse.csr_matrix((np.ones(count), tokens, np.arange(count + 1)), shape=(count, columns))
    return baselines._Rows(features=features, label=label, weight=np.ones(count))


def classes(count, seed):
    return np.random.default_rng(seed).integers(3, size=count).astype(float)


def test_regression_is_better_than_with_the_default_strength():
    train, held_out = rows(3000, 1000, 1), rows(3000, 1000, 2)
    model = baselines._regression(train)
    assert model.C == baselines._regression(train).C < 1

    def loss(model):
        return baselines._score("", model.predict_proba(held_out.features)[:, 1], held_out).metrics["log loss"]

    default = LogisticRegression(max_iter=1000).fit(train.features, train.label)
    assert loss(model) < loss(default)


def test_classes_are_scored_as_by_sklearn_if_one_is_held_back():
    task = Task(kind="multiclass", classes=("a", "b", "c", "d"))
    train, held_out = (dataclasses.replace(rows(400, 20, seed), label=classes(400, seed)) for seed in (1, 2))
    train.label[np.flatnonzero(baselines._held_back(train))[0]] = 3
    model = baselines._regression(train)
    predicted = baselines._by_class(task, model, held_out)
    found = baselines._score_of_classes("", predicted, held_out).metrics
    label, classes_ = held_out.label, range(4)
    assert found["cross-entropy"] == pytest.approx(sklearn.metrics.log_loss(label, predicted, labels=classes_))
    assert found["accuracy"] == sklearn.metrics.accuracy_score(label, predicted.argmax(axis=1))
    shares = baselines._shares(task, train, 2)
    np.testing.assert_allclose(shares, [np.bincount(train.label.astype(int), minlength=4) / 400] * 2)


def test_part_of_one_class_leaves_the_default_strength():
    train = rows(4, 2, 1)
    assert baselines._regression(train).C == 1.0


def test_weights_count_in_the_scores_as_by_sklearn():
    scored = dataclasses.replace(rows(200, 20, 1), weight=np.random.default_rng(4).random(200))
    predicted = np.random.default_rng(5).random(200)
    metrics = baselines._score("", predicted, scored).metrics
    weighted = {"sample_weight": scored.weight}
    assert metrics["AUC"] == pytest.approx(sklearn.metrics.roc_auc_score(scored.label, predicted, **weighted))
    assert metrics["log loss"] == pytest.approx(sklearn.metrics.log_loss(scored.label, predicted, **weighted))


def test_rows_without_weight_have_no_metrics_and_choose_nothing():
    train = rows(100, 20, 1)
    weightless = dataclasses.replace(train, weight=np.zeros_like(train.weight))
    assert set(baselines._score("", np.zeros(100), weightless).metrics.values()) == {None}
    assert baselines._of_best_strength(weightless).C == 1.0


def write(path, rows):
    """Write rows of an item, a history of the item b, and a label."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for item, label in rows:
            features = {
                "item": tf.train.Feature(bytes_list=tf.train.BytesList(value=[item])),
                "history": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"b"] * 9)),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return [str(path)]


@pytest.fixture
def of_items(tmp_path):
    """Return the arguments of `compare_with_baselines` for three rows of items, all positive, and two to evaluate."""
    (tmp_path / "items.txt").write_text("b\na\n")
    table = TableConfig(name="items", vocabulary_size=3, dim=2, vocabulary="items", oov_rows=1)
    features = [
        FeatureConfig(name="item", table="items", column=ColumnConfig(name="item")),
        FeatureConfig(name="history", table="items", column=ColumnConfig(name="history", multivalent=True)),
    ]
    inputs = Inputs(
        config=EmbeddingConfig(tables=[table], features=features),
        vocabularies={"items": str(tmp_path / "items.txt")},
        raw_spec={"label": tf.io.FixedLenFeature([], tf.int64)},
    )
    return {
        "inputs": inputs,
        "train_files": write(tmp_path / "train", [(b"a", 1), (b"a", 1), (b"b", 1)]),
        "eval_files": write(tmp_path / "eval", [(b"a", 1), (b"b", 0)]),
        "predictions": Predictions(
            label=np.array([[1.0], [0.0]]), weight=np.ones(2), prediction=np.array([[0.5], [0.2]])
        ),
        "candidate": "item",
        "counts": {"items": np.array([1 + 27, 2])},
        "kept": str(tmp_path / "baselines.json"),
        "made_by": {},
    }


def auc_of(compared):
    return {score.scorer: score.metrics["AUC"] for score in compared.scores}


def test_popularity_of_an_item_does_not_count_histories(of_items):
    assert auc_of(baselines.compare_with_baselines(**of_items))["popularity of item"] == 1.0


def test_baselines_of_the_same_rows_are_not_measured_again(of_items, monkeypatch):
    first = baselines.compare_with_baselines(**of_items)
    measured = baselines._measured
    monkeypatch.setattr(baselines, "_measured", None)
    worse = dataclasses.replace(of_items["predictions"], prediction=np.array([[0.2], [0.5]]))
    again = baselines.compare_with_baselines(**{**of_items, "predictions": worse})
    assert (first.is_kept, again.is_kept, again.rows, again.scores[1:]) == (False, True, 2, first.scores[1:])
    assert [auc_of(compared)[baselines.THIS_MODEL] for compared in (first, again)] == [1.0, 0.0]
    monkeypatch.setattr(baselines, "_measured", measured)
    for changed in ({"made_by": {"graph": "other"}}, {"train_files": of_items["eval_files"]}):
        assert not baselines.compare_with_baselines(**{**of_items, **changed}).is_kept
