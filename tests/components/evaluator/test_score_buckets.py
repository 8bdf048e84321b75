"""Tests the areas from buckets against scikit-learn, Keras, and slow definitions."""

import math

import numpy as np
import pytest
import sklearn.metrics

from components.evaluator.own_metrics import BUCKETS, area_under_precision_recall, bucket_of
from embedding_core.errors import DataError
from embedding_core.training.eval_metrics import area_under_roc

pytestmark = pytest.mark.tfx


def sums(label, score, weight):
    _, place = np.unique(bucket_of(score), return_inverse=True)
    return np.bincount(place, label * weight), np.bincount(place, (1 - label) * weight)


def rows(scale, shift, count=4000):
    draw = np.random.default_rng(4)
    logit = draw.normal(size=count)
    label = (draw.random(count) < 1 / (1 + np.exp(1 - logit))).astype(np.float64)
    return label, (1 / (1 + np.exp(-scale * logit - shift))).astype(np.float32), draw.choice([0.5, 1.0, 3.0], count)


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, 0.0), (0.01, 0.0), (1.0, -14.0), (0.3, -40.0), (1.0, 9.0), (30.0, 0)]
)
def test_area_under_roc_is_that_of_scikit_learn(scale, shift):
    """At a shift of -14 all probabilities are below 0.0001, at one of 9 most are above 0.9999."""
    label, score, weight = rows(scale, shift)
    exact = sklearn.metrics.roc_auc_score(label, score, sample_weight=weight)
    assert area_under_roc(*sums(label, score, weight)) == pytest.approx(exact, abs=2e-5)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_area_under_precision_recall_is_that_of_keras(scale):
    import tf_keras

    label, score, weight = rows(scale, 0.0)
    keras = tf_keras.metrics.AUC(num_thresholds=20_000, curve="PR")
    keras.update_state(label, score, weight)
    assert area_under_precision_recall(*sums(label, score, weight)) == pytest.approx(float(keras.result()), abs=5e-4)


def test_equal_scores_count_half():
    label, score = np.array([0.0, 1, 1, 0]), np.array([0.25, 0.25, 0.75, 0.1])
    assert area_under_roc(*sums(label, score, np.ones(4))) == 3.5 / 4


def test_prediction_that_is_nan_has_no_bucket():
    with pytest.raises(DataError, match="predicts nan"):
        bucket_of([0.5, math.nan])


def test_area_without_both_labels_is_undefined():
    some, none = np.ones(2), np.zeros(2)
    assert math.isnan(area_under_roc(some, none))
    assert math.isnan(area_under_roc(none, some))
    assert math.isnan(area_under_precision_recall(none, some))
    assert area_under_precision_recall(some, none) == 1.0


def test_buckets_are_narrow_and_in_order_of_the_probabilities():
    draw = np.random.default_rng(5)
    logit = np.sort(draw.uniform(-80, 15, 50_000))
    score = np.concatenate([[0.0], 1 / (1 + np.exp(-logit)), [1.0]]).astype(np.float32)
    bucket = bucket_of(score)
    assert (np.diff(bucket) >= 0).all()
    assert bucket[0] == 0
    assert bucket[-1] < BUCKETS
    same = np.flatnonzero(np.diff(bucket) == 0)
    distance = np.minimum(score[same], 1 - score[same + 1]).astype(np.float64)
    assert (np.diff(score.astype(np.float64))[same] <= distance / 16_383 + 1e-45).all()
