"""Tests that the baseline regression's regularization is chosen on the train split, and is the same every time."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

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


def test_regression_is_at_least_as_good_as_with_the_default_strength():
    train, held_out = rows(3000, 1000, 1), rows(3000, 1000, 2)
    model = baselines._regression(train)
    assert model.C == baselines._regression(train).C < 1

    def loss(model):
        return baselines._score("", model.predict_proba(held_out.features)[:, 1], held_out).metrics["log loss"]

    default = LogisticRegression(max_iter=1000).fit(train.features, train.label)
    assert loss(model) < loss(default)


def test_part_of_one_class_leaves_the_default_strength():
    train = rows(4, 2, 1)
    assert baselines._regression(train).C == 1.0


def test_rows_without_weight_have_no_metrics_and_choose_nothing():
    train = rows(100, 20, 1)
    weightless = dataclasses.replace(train, weight=np.zeros_like(train.weight))
    assert set(baselines._score("", np.zeros(100), weightless).metrics.values()) == {None}
    assert baselines._of_best_strength(weightless).C == 1.0
