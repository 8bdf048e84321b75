import numpy as np
import pytest
import tensorflow as tf

from embedding_core.training.step import Candidates, softmax_losses

DRAW = np.random.default_rng(0)
QUERIES = DRAW.normal(size=(5, 3)).astype(np.float32)
VECTORS = DRAW.normal(size=(9, 3)).astype(np.float32)
IDS = np.array([3, 1, 3, 0, 2, 7, 1, 5, 3], np.int32)
LOG_Q = DRAW.normal(size=9).astype(np.float32)
IS_NEGATIVE = np.array([1, 1, 1, 0, 1, 1, 1, 1, 1], bool)
OWN = np.arange(5, dtype=np.int32)


def expected(*, temperature=1.0, remove_hits=True, hard_negatives=None):
    """The loss of each query, one by one."""
    losses = []
    for query, own in zip(QUERIES, OWN, strict=True):
        logits = VECTORS @ query / temperature - LOG_Q
        others = [
            logits[at]
            for at in range(len(IDS))
            if at != own and IS_NEGATIVE[at] and not (remove_hits and IDS[at] == IDS[own])
        ]
        others = sorted(others, reverse=True)[:hard_negatives]
        losses.append(np.log(np.sum(np.exp([logits[own], *others]))) - logits[own])
    return losses


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.2}, {"remove_hits": False}, {"hard_negatives": 2}, {"hard_negatives": 100}],
)
def test_losses_are_those_of_the_definition(settings):
    candidates = Candidates(*map(tf.constant, (VECTORS, IDS, LOG_Q, IS_NEGATIVE)))
    found = softmax_losses(tf.constant(QUERIES), tf.constant(OWN), candidates, **settings)
    np.testing.assert_allclose(found, expected(**settings), rtol=1e-5)


def test_query_without_negatives_has_no_loss_and_finite_gradient():
    candidates = Candidates(tf.constant(VECTORS[:2]), tf.constant([4, 4]), tf.zeros(2), tf.constant([True, True]))
    queries = tf.Variable(QUERIES[:2])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(softmax_losses(queries, tf.constant([0, 1]), candidates))
    assert float(loss) == 0.0
    assert np.isfinite(tape.gradient(loss, queries).numpy()).all()
