"""Tests the metrics of multiclass labels against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from components.evaluator import own_metrics

pytestmark = pytest.mark.tfx


def test_losses_and_ranks_of_classes_equal_those_of_sklearn():
    draw = np.random.default_rng(3)
    probability = draw.dirichlet(np.full(8, 0.3), size=200)
    label = draw.integers(8, size=200).astype(float)
    loss = own_metrics.class_log_losses(label, probability).mean()
    assert loss == pytest.approx(sklearn.metrics.log_loss(label, probability, labels=range(8)))
    first = own_metrics.are_most_probable(label, probability).mean()
    assert first == sklearn.metrics.accuracy_score(label, probability.argmax(axis=1))
    five = own_metrics._is_in_five(label, probability).mean()
    assert five == sklearn.metrics.top_k_accuracy_score(label, probability, k=5, labels=range(8))


def test_equal_probabilities_are_in_the_order_of_the_classes():
    same = np.full((3, 7), 1 / 7)
    labels = np.array([0.0, 4.0, 5.0])
    assert own_metrics.are_most_probable(labels, same).tolist() == [1, 0, 0]
    assert own_metrics._is_in_five(labels, same).tolist() == [1, 1, 0]


def test_probability_of_0_has_a_finite_loss():
    assert own_metrics.class_log_losses(np.array([0.0]), np.array([[0.0, 1.0]]))[0] == pytest.approx(36.04, abs=0.01)
