"""Ranks true candidates among all candidates, and computes recall from the ranks. Plain NumPy.

A rank is two numbers: how many other candidates have a higher score, and how many have the same score. If scores
are equal, a hit counts as the share of the orders of the tied candidates that put the true one among the first k, so
that neither a constant score nor one with many ties gains. A score that is not finite counts as worse than every finite
one for the true candidate and as better for any other, so that a model never gains from such scores.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int64]

_QUERIES, _CANDIDATES = 1024, 8192  # of one matrix product: 32 MB of scores
_ROUNDING = 4e-7  # products of float32 that differ by less, relative to the vectors' norms, are equal


class Ranks(NamedTuple):
    """How many other candidates rank above the true one, and how many tie with it; int64 `[n]` each."""

    above: Ints
    tied: Ints


def rank_by_product(queries: Floats, candidates: Floats, truth: Ints) -> Ranks:
    """Rank by the product of vectors, in blocks of bounded memory.

    Args:
      queries: `[n, d]`.
      candidates: `[m, d]`.
      truth: `[n]`, the row of each query's true candidate; -1 if it has none.
    """
    blocks = [
        _rank_block(queries[start : start + _QUERIES], candidates, truth[start : start + _QUERIES])
        for start in range(0, len(queries), _QUERIES)
    ]
    empty = np.zeros(0, np.int64)
    above = np.concatenate([empty, *(ranks.above for ranks in blocks)])
    return _without_truth_last(
        Ranks(above, np.concatenate([empty, *(ranks.tied for ranks in blocks)])), truth, candidates
    )


def _rank_block(queries: Floats, candidates: Floats, truth: Ints) -> Ranks:
    true = candidates[np.maximum(truth, 0)] if len(candidates) else np.zeros_like(queries)
    score = np.einsum("nd,nd->n", queries, true)[:, np.newaxis]
    margin = _ROUNDING * (np.linalg.norm(queries, axis=1) * np.linalg.norm(true, axis=1))[:, np.newaxis]
    above, tied = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    for start in range(0, len(candidates), _CANDIDATES):
        scores = queries @ candidates[start : start + _CANDIDATES].T
        lower, higher = scores < score - margin, ~(scores <= score + margin)  # NaN compares false, so it is higher
        inside = np.flatnonzero((truth >= start) & (truth < start + scores.shape[1]))
        higher[inside, truth[inside] - start] = False
        lower[inside, truth[inside] - start] = True  # the true candidate is not its own rival
        above += higher.sum(axis=1)
        tied += scores.shape[1] - higher.sum(axis=1) - lower.sum(axis=1)
    above[~np.isfinite(score[:, 0])] = len(candidates)
    return Ranks(above, tied)


def rank_by_counts(counts: Ints, truth: Ints) -> Ranks:
    """Rank by the count of each candidate: the same ranking for every query.

    Args:
      counts: `[m]`.
      truth: `[n]`, the true candidates; -1 if a query has none.
    """
    ascending = np.sort(counts)
    true = counts[np.maximum(truth, 0)] if len(counts) else np.zeros_like(truth)
    upper = np.searchsorted(ascending, true, side="right")
    tied = upper - np.searchsorted(ascending, true, side="left") - 1
    return _without_truth_last(Ranks(len(counts) - upper, tied), truth, counts)


def _without_truth_last(ranks: Ranks, truth: Ints, candidates: Floats | Ints) -> Ranks:
    """Rank queries without a true candidate last, which is a miss at every k."""
    absent = truth < 0
    return Ranks(np.where(absent, len(candidates), ranks.above), np.where(absent, 0, ranks.tied))


def recall_at(k: int, ranks: Ranks, truth: Ints) -> float:
    """Compute the share of queries whose true candidate is among the first k; 0 without queries."""
    hits = np.clip((k - ranks.above) / (ranks.tied + 1), 0, 1)
    return float(np.where(truth < 0, 0, hits).mean()) if len(hits) else 0.0
