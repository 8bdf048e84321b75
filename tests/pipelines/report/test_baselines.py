"""Tests that the baseline regression's regularization is chosen on the train split, and is the same every time."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import sklearn.metrics
from sklearn.linear_model import LogisticRegression

from embedding_core.tasks import Task
from pipelines.report import baselines

pytestmark = pytest.mark.tfx


def rows(count, columns, seed):
    """Return one-hot rows of tokens with small effects on the label; scikit-learn's default strength overfits them."""
    effects = np.random.default_rng(0).normal(0, 0.4, columns)
    random = np.random.default_rng(seed)
    tokens = random.integers(columns, size=count)
    label = (random.random(count) < 1 / (1 + np.exp(-effects[tokens]))).astype(float)
    features = scipy.sparse.csr_matrix((np.ones(count), tokens, np.arange(count + 1)), shape=(count, columns))
    return baselines._Rows(features=features, label=label, weight=np.ones(count), predicted=None)


def classes(count, seed):
    return np.random.default_rng(seed).integers(3, size=count).astype(float)


def test_regression_is_at_least_as_good_as_with_the_default_strength():
    train, held_out = rows(3000, 1000, 1), rows(3000, 1000, 2)
    model = baselines._regression(train)
    assert model.C == baselines._regression(train).C < 1

    def loss(model):
        return baselines._score("", model.predict_proba(held_out.features)[:, 1], held_out).metrics["log loss"]

    default = LogisticRegression(max_iter=1000).fit(train.features, train.label)
    assert loss(model) < loss(default)


def test_classes_are_scored_as_by_sklearn_even_if_one_is_only_held_back():
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


def test_rows_without_weight_have_no_metrics_and_choose_nothing():
    train = rows(100, 20, 1)
    weightless = dataclasses.replace(train, weight=np.zeros_like(train.weight))
    assert set(baselines._score("", np.zeros(100), weightless).metrics.values()) == {None}
    assert baselines._of_best_strength(weightless).C == 1.0
