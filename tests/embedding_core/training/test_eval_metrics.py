import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from embedding_core.training.eval_metrics import auc, log_loss

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3), st.floats(0.1, 5)), min_size=2, max_size=30).filter(
    lambda rows: len({row[0] for row in rows}) == 2
)


@given(ROWS)
def test_figures_equal_those_of_sklearn(rows):
    label, logit, weight = np.array(rows, np.float64).T
    np.testing.assert_allclose(auc(label, logit, weight), roc_auc_score(label, logit, sample_weight=weight))
    probability = 1 / (1 + np.exp(-logit))
    expected = sklearn_log_loss(label, probability, sample_weight=weight)
    np.testing.assert_allclose(log_loss(label, logit, weight), expected)


def test_auc_of_one_class_is_no_number():
    assert math.isnan(auc(np.ones(3), np.arange(3.0), np.ones(3)))


def test_huge_logits_do_not_overflow():
    assert log_loss(np.array([1.0]), np.array([-1e4]), np.ones(1)) == 1e4
