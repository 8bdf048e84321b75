import math

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.model_inputs import prediction_of
from embedding_core.tasks import Task
from embedding_core.training.eval_metrics import auc, task_figures

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3), st.floats(0.1, 5)), min_size=2, max_size=30).filter(
    lambda rows: len({row[0] for row in rows}) == 2
)


def rounded(low, high):
    """Draw numbers of at most 6 decimals: the square or the logarithm of a tiny one loses its digits."""
    return st.floats(low, high).map(lambda number: round(number, 6))


NUMBERS = st.lists(st.tuples(rounded(0, 50), rounded(-3, 3), rounded(0.1, 5)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=40)
@given(ROWS)
def test_figures_equal_those_of_sklearn(rows):
    label, logit, weight = np.array(rows, np.float64).T
    found = task_figures(Task(), label, logit, weight)
    np.testing.assert_allclose(found.auc, sklearn.metrics.roc_auc_score(label, logit, sample_weight=weight))
    probability = 1 / (1 + np.exp(-logit))
    np.testing.assert_allclose(found.loss, sklearn.metrics.log_loss(label, probability, sample_weight=weight))


@settings(deadline=None, max_examples=40)
@given(NUMBERS)
def test_losses_of_numbers_equal_those_of_sklearn(rows):
    label, output, weight = np.array(rows, np.float64).T
    squared = task_figures(Task(kind="regression"), label, output, weight)
    absolute = task_figures(Task(kind="regression", loss="absolute"), label, output, weight)
    for found, expected in (
        (squared, sklearn.metrics.mean_squared_error(label, output, sample_weight=weight)),
        (absolute, sklearn.metrics.mean_absolute_error(label, output, sample_weight=weight)),
    ):
        np.testing.assert_allclose(found.loss, expected, atol=1e-12)
    assert math.isnan(squared.auc)
    # Half of the deviance is this loss minus the loss of a model that predicts each label exactly.
    count = task_figures(Task(kind="count"), label, output, weight)
    least = np.average(label - np.where(label > 0, label * np.log(np.where(label > 0, label, 1)), 0), weights=weight)
    deviance = sklearn.metrics.mean_poisson_deviance(label, np.exp(output), sample_weight=weight)
    np.testing.assert_allclose(2 * (count.loss - least), deviance, atol=1e-9)


@pytest.mark.parametrize(("weight", "area"), [(1.0, math.nan), (0.0, 1.0)])
def test_score_that_is_nan_has_no_area(weight, area):
    label, score = np.array([0.0, 1.0, 1.0]), np.array([0.1, 0.9, math.nan])
    np.testing.assert_equal(auc(label, score, np.array([1.0, 1.0, weight])), area)


@pytest.mark.parametrize(("error", "loss"), [(0.0, 0.0), (1.0, 0.5), (-2.0, 2.0), (5.0, 8.0)])
def test_huber_loss_is_linear_beyond_delta(error, loss):
    task = Task(kind="regression", loss="huber", huber_delta=2.0)
    assert task_figures(task, np.array([1.0]), np.array([1.0 + error]), np.ones(1)).loss == loss


def test_rows_without_the_label_do_not_count():
    label, output = np.array([1.0, math.nan, 3.0]), np.array([2.0, 7.0, 3.0])
    assert task_figures(Task(kind="regression"), label, output, np.ones(3)).loss == 0.5


def test_huge_logits_do_not_overflow_and_one_class_has_no_auc():
    figures = task_figures(Task(), np.array([1.0]), np.array([-1e4]), np.ones(1))
    assert figures.loss == 1e4
    assert math.isnan(figures.auc)


def test_loss_of_classes_is_that_of_sklearn_without_unknown_ones():
    task = Task(kind="multiclass", classes=("a", "b", "c"))
    draw = np.random.default_rng(1)
    label, output, weight = draw.integers(3, size=20), draw.normal(size=(20, 3)), draw.uniform(0.1, 5, 20)
    probability = np.exp(output) / np.exp(output).sum(axis=1, keepdims=True)
    expected = sklearn.metrics.log_loss(label, probability, sample_weight=weight, labels=range(3))
    found = task_figures(task, label.astype(float), output, weight)
    np.testing.assert_allclose(found.loss, expected)
    assert math.isnan(found.auc)
    rows = np.append(label, math.nan), np.append(output, [[9.0, 0.0, 0.0]], 0), np.append(weight, 1.0)
    np.testing.assert_allclose(task_figures(task, *rows).loss, expected)


@pytest.mark.parametrize("kind", ["binary", "count"])
def test_prediction_of_a_row_does_not_depend_on_its_batch(kind):
    output = np.random.default_rng(0).normal(0, 5, (256, 1)).astype(np.float32)
    alone = [prediction_of(Task(kind=kind), tf.constant(row[None]))[0] for row in output]
    np.testing.assert_array_equal(prediction_of(Task(kind=kind), tf.constant(output)), alone)
