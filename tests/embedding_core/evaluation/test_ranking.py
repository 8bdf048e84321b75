"""Ranks and recall against slow oracles: every order of equal scores, and a comparison of all scores."""

import itertools

import numpy as np
import pytest

from embedding_core.evaluation import ranking
from embedding_core.evaluation.recall import Ranks, rank_by_counts, rank_by_product, recall_at


def expected_recall(scores, truth, k):
    """Return the recall of one query, averaged over all orders of equal scores."""
    orders = itertools.permutations(range(len(scores)))
    orders = [order for order in orders if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))]
    return np.mean([truth in order[:k] for order in orders])


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("counts", [[5, 3, 3, 3, 1], [2, 2, 2, 2, 2], [1, 2, 3, 4, 5]])
def test_popularity_counts_a_hit_by_the_share_of_the_orders_of_equal_counts(counts, k):
    for truth in range(5):
        ranks = rank_by_counts(np.array(counts), np.array([truth]))
        assert recall_at(k, ranks, np.array([truth])) == pytest.approx(expected_recall(counts, truth, k))


@pytest.mark.parametrize(("queries", "candidates"), [(1024, 8192), (3, 2)])
def test_product_ranks_as_sorting_all_scores_does(monkeypatch, queries, candidates):
    monkeypatch.setattr(recall, "_QUERIES", queries)
    monkeypatch.setattr(recall, "_CANDIDATES", candidates)
    chance = np.random.default_rng(1)
    q, c = (chance.normal(size=shape).astype(np.float32) for shape in ((10, 4), (23, 4)))
    truth = chance.integers(-1, 23, 10)
    ranks = rank_by_product(q, c, truth)
    scores = q @ c.T
    for row, own in enumerate(truth):
        above = 23 if own < 0 else (scores[row] > scores[row, own]).sum()
        assert (ranks.above[row], ranks.tied[row]) == (above, 0)


def test_equal_candidates_are_ties_wherever_they_stand_in_the_blocks(monkeypatch):
    """A matrix product may round the same vector differently in another block."""
    monkeypatch.setattr(recall, "_CANDIDATES", 7)
    vector = np.random.default_rng(2).normal(size=(1, 33)).astype(np.float32)
    ranks = rank_by_product(vector * 3, np.repeat(vector, 30, 0), np.array([29]))
    assert (ranks.above[0], ranks.tied[0]) == (0, 29)
    assert recall_at(10, ranks, np.array([29])) == pytest.approx(1 / 3)


def test_constant_model_gains_nothing_by_its_ties():
    truth = np.arange(40)
    ranks = rank_by_product(np.zeros((40, 2), np.float32), np.zeros((40, 2), np.float32), truth)
    assert recall_at(10, ranks, truth) == pytest.approx(10 / 40)


def test_scores_that_are_not_finite_are_misses_of_their_own_and_rivals_of_others():
    candidates = np.array([[1.0], [np.nan], [0.5]], np.float32)
    ranks = rank_by_product(np.ones((3, 1), np.float32), candidates, np.arange(3))
    assert ranks.above.tolist() == [1, 3, 2]


def test_row_without_a_candidate_is_a_miss_even_if_k_covers_all():
    truth = np.array([-1, 0])
    for ranks in (
        rank_by_counts(np.array([3, 4]), truth),
        rank_by_product(np.ones((2, 1), np.float32), np.ones((2, 1), np.float32), truth),
    ):
        assert recall_at(50, ranks, truth) == 0.5


def test_no_queries_and_no_candidates_give_zero():
    nothing = np.zeros(0, np.int64)
    assert recall_at(10, Ranks(nothing, nothing), nothing) == 0.0
    missing = np.array([-1])
    assert recall_at(10, rank_by_counts(nothing, missing), missing) == 0.0
    assert (
        recall_at(10, rank_by_product(np.ones((1, 2), np.float32), np.ones((0, 2), np.float32), missing), missing) == 0
    )
