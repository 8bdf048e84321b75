"""Ranks and metrics against slow definitions: every order of equal scores, and a comparison of all scores."""

import itertools
import math

import numpy as np
import pytest

from embedding_core.evaluation import ranking_metrics
from embedding_core.evaluation.ranking_metrics import Lists, metric_values, no_lists, rank_by_counts, rank_by_product
from embedding_core.quality_rules import RankingMetric, ranking_metric


def lists(*rows):
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    values = np.array([value for row in rows for value in row], np.int64)
    return Lists.of_pairs(owners.astype(np.int64), values, len(rows))


def one_each(truth):
    """Return a list for each query: its one true candidate, or nothing for -1."""
    return lists(*([item] if item >= 0 else [] for item in truth))


def mean_of(name, ranks, truths, relevant=None):
    relevant = np.maximum(np.diff(truths.splits), 1) if relevant is None else np.array(relevant)
    return float(metric_values([ranking_metric(name)], ranks, truths, relevant)[name].mean())


def of_order(metric, order, truths, relevant):
    """Return a metric of one ranking, from its definition."""
    hits = [1 if item in truths else 0 for item in order[: metric.k]]
    discounted = [hit / math.log2(place + 2) for place, hit in enumerate(hits)]
    ideal = sum(1 / math.log2(place + 2) for place in range(min(relevant, metric.k)))
    reciprocal = [1 / (place + 1) for place, hit in enumerate(hits) if hit] or [0.0]
    values = {"Recall": sum(hits) / relevant, "HitRate": float(any(hits)), "MRR": reciprocal[0]}
    return {**values, "NDCG": sum(discounted) / ideal}[metric.measure]


def expected(metric, scores, truths, excluded, relevant):
    """Return a metric of one query, averaged over all orders of equal scores."""
    left = [number for number in range(len(scores)) if number not in excluded]
    orders = [
        order
        for order in itertools.permutations(left)
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean([of_order(metric, order, truths, relevant) for order in orders])


@pytest.mark.parametrize("measure", ["Recall", "NDCG", "MRR", "HitRate"])
def test_metrics_are_averages_over_the_orders_of_equal_scores(measure):
    """Six candidates with scores 0, 1 and 2: up to three are true, and up to two excluded; up to two are unknown."""
    draw = np.random.default_rng(7)
    scores = draw.integers(3, size=(40, 6))
    shuffled = [draw.permutation(6) for _ in range(40)]
    counts, out = draw.integers(0, 4, 40), draw.integers(0, 3, 40)
    truths = lists(*(order[:n] for order, n in zip(shuffled, counts, strict=True)))
    excluded = lists(*(order[n : n + m] for order, n, m in zip(shuffled, counts, out, strict=True)))
    relevant = np.maximum(counts + draw.integers(0, 3, 40), 1)
    ranks = rank_by_product(scores.astype(np.float32), np.eye(6, dtype=np.float32), truths, excluded)
    for k in (1, 2, 3, 6, 50):
        metric = RankingMetric(measure, k)
        found = metric_values([metric], ranks, truths, relevant)[metric.name]
        for query in range(40):
            mine = [set(each.part(query, query + 1).values.tolist()) for each in (truths, excluded)]
            wanted = expected(metric, scores[query], *mine, relevant[query])
            assert found[query] == pytest.approx(wanted), (query, metric)


@pytest.mark.parametrize("sizes", [{}, {"_QUERIES": 3, "_CANDIDATES": 2}, {"_TRUTHS": 1}])
def test_blocks_change_no_rank(monkeypatch, sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(ranking_metrics, name, size)
    draw = np.random.default_rng(1)
    q, c = (draw.normal(size=shape).astype(np.float32) for shape in ((10, 4), (23, 4)))
    truths = lists(*(draw.choice(11, draw.integers(0, 4), replace=False) for _ in range(10)))
    excluded = lists(*(11 + draw.choice(12, draw.integers(0, 4), replace=False) for _ in range(10)))
    ranks = rank_by_product(q, c, truths, excluded)
    scores = q @ c.T
    scores[excluded.owners, excluded.values] = -np.inf
    pairs = zip(truths.owners, truths.values, strict=True)
    wanted = [(scores[owner] > scores[owner, own]).sum() for owner, own in pairs]
    assert ranks.above.tolist() == wanted
    assert not ranks.tied.any()


def test_ranks_by_counts_are_those_by_product():
    draw = np.random.default_rng(3)
    counts = draw.integers(5, size=30)
    truths = lists(*(draw.choice(15, 3, replace=False) for _ in range(8)))
    excluded = lists(*(15 + draw.choice(15, draw.integers(6), replace=False) for _ in range(8)))
    for out in (None, excluded):
        by_product = rank_by_product(np.ones((8, 1), np.float32), counts[:, None].astype(np.float32), truths, out)
        by_counts = rank_by_counts(counts, truths, out)
        assert by_counts.above.tolist() == by_product.above.tolist()
        assert by_counts.tied.tolist() == by_product.tied.tolist()


def test_equal_candidates_are_ties_anywhere_in_the_blocks(monkeypatch):
    """A matrix product may round the same vector differently in another block."""
    monkeypatch.setattr(ranking_metrics, "_CANDIDATES", 7)
    vector = np.random.default_rng(2).normal(size=(1, 33)).astype(np.float32)
    truth = one_each([29])
    ranks = rank_by_product(vector * 3, np.repeat(vector, 30, 0), truth)
    assert (ranks.above[0], ranks.tied[0]) == (0, 29)
    assert mean_of("Recall@10", ranks, truth) == pytest.approx(1 / 3)


def test_non_finite_scores_are_own_misses_and_rivals_of_others():
    candidates = np.array([[1.0], [np.nan], [0.5]], np.float32)
    ranks = rank_by_product(np.ones((3, 1), np.float32), candidates, one_each(range(3)))
    assert ranks.above.tolist() == [1, 3, 2]


def test_no_candidates_give_zero():
    truth = one_each([-1])
    vectors = np.ones((1, 2), np.float32)
    assert mean_of("Recall@10", rank_by_product(vectors, vectors[:0], truth), truth) == 0
    assert mean_of("NDCG@10", rank_by_counts(np.zeros(0, np.int64), truth), truth) == 0


def test_lists_are_sorted_sets_of_each_query():
    given = lists([3, 1, 3], [], [0])
    assert (given.splits.tolist(), given.values.tolist()) == ([0, 2, 2, 3], [1, 3, 0])
    assert given.without(lists([1], [3], [])).values.tolist() == [3, 0]
    assert given.renumbered(np.array([-1, 5, 0, 2])).values.tolist() == [2, 5]
    assert given.without(no_lists(3)).values.tolist() == given.values.tolist()
