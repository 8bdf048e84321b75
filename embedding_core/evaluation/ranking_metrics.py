"""Ranks true candidates among all candidates, and computes ranking metrics from the ranks. Plain NumPy.

A rank is two numbers: how many other candidates have a higher score, and how many have the same score. If scores
are equal, every metric is its mean over all orders of the tied candidates. A true candidate with a score that is not
finite ranks last; any other candidate with the score NaN ranks first. So a model gains neither from ties nor from such
scores.

The metrics of one query with n true candidates, of which m, at the ranks r_1 < ... < r_m, are among the first K:

=============  ================================================  =================================================
`Recall@K`     m / n                                             as LightGCN (He et al., 2020) and reczoo/BARS have it
`HitRate@K`    1 if m is at least 1, else 0                      He et al., 2017 (NCF)
`MRR@K`        1 / r_1, or 0                                     Voorhees, 1999 (TREC-8)
`NDCG@K`       sum of 1 / log2(1 + r_i), divided by that sum     Jaervelin and Kekaelaeinen, 2002, with relevance 0
               for the ranks 1, ..., min(n, K)                   or 1, as LightGCN and BARS have it
=============  ================================================  =================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from embedding_core.quality_rules import RankingMetric

Floats: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_QUERIES, _CANDIDATES = 512, 16384  # of one matrix product: 32 MB of scores
_TRUTHS = 16384  # of the queries of one matrix product, unless a single query has more
_ROUNDING = 4e-7  # products of float32 that differ by less, relative to the vectors' norms, are equal


class Lists(NamedTuple):
    """A list of candidates for each query: those of query i are `values[splits[i]:splits[i + 1]]`; int64."""

    splits: Ints
    values: Ints

    @classmethod
    def of_pairs(cls, queries: Ints, values: Ints, count: int) -> Lists:
        """Collect the distinct pairs of a query and a candidate into a sorted list for each of `count` queries."""
        width = int(values.max(initial=0)) + 1
        pairs = np.unique(queries * width + values)
        splits = np.searchsorted(pairs, np.arange(count + 1) * width)
        return cls(splits, pairs % width)

    @property
    def owners(self) -> Ints:
        """The query of each value."""
        return np.repeat(np.arange(len(self.splits) - 1), np.diff(self.splits))

    def part(self, start: int, end: int) -> Lists:
        """Return the lists of the queries from `start` to `end`."""
        splits = self.splits[start : end + 1]
        return Lists(splits - splits[0], self.values[splits[0] : splits[-1]])

    def without(self, others: Lists) -> Lists:
        """Return the lists without the values that the query has in `others`."""
        width = max(int(self.values.max(initial=0)), int(others.values.max(initial=0))) + 1
        left = np.setdiff1d(self.owners * width + self.values, others.owners * width + others.values)
        return Lists.of_pairs(left // width, left % width, len(self.splits) - 1)

    def renumbered(self, numbers: Ints) -> Lists:
        """Replace each value by its entry of `numbers`, and drop those whose entry is -1."""
        new = numbers[self.values]
        return Lists.of_pairs(self.owners[new >= 0], new[new >= 0], len(self.splits) - 1)


def no_lists(count: int) -> Lists:
    """Make an empty list for each of `count` queries."""
    return Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.int64))


class Ranks(NamedTuple):
    """How many other candidates rank above each true candidate, and how many tie with it; int64 `[n]` each."""

    above: Ints
    tied: Ints


def rank_by_product(queries: Floats, candidates: Floats, truths: Lists, excluded: Lists | None = None) -> Ranks:
    """Rank the true candidates of each query by the product of vectors, in blocks of bounded memory.

    Args:
      queries: `[q, d]`.
      candidates: `[m, d]`.
      truths: rows of the true candidates of each query.
      excluded: rows of the candidates that are left out of a query's ranking; they must not contain a true candidate of
        the query.
    """
    excluded = excluded or no_lists(len(queries))
    blocks = [
        _rank_block(queries[start:end], candidates, truths.part(start, end), excluded.part(start, end))
        for start, end in _blocks(truths.splits)
    ]
    empty = Ranks(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Ranks(*(np.concatenate(parts) for parts in zip(empty, *blocks, strict=True)))


def _blocks(splits: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges of queries that have together at most `_TRUTHS` true candidates."""
    start, count = 0, len(splits) - 1
    while start < count:
        within = int(np.searchsorted(splits, splits[start] + _TRUTHS, side="right")) - 1
        end = min(max(within, start + 1), start + _QUERIES, count)
        yield start, end
        start = end


def _rank_block(queries: Floats, candidates: Floats, truths: Lists, excluded: Lists) -> Ranks:
    owners, true = truths.owners, candidates[truths.values]
    score = np.einsum("nd,nd->n", queries[owners], true)
    margin = _ROUNDING * np.linalg.norm(queries, axis=1)[owners] * np.linalg.norm(true, axis=1)
    above, tied = np.zeros(len(owners), np.int64), np.zeros(len(owners), np.int64)
    low, high = score - margin, score + margin
    skipped = excluded.owners
    for first in range(0, len(candidates), _CANDIDATES):
        scores = queries @ candidates[first : first + _CANDIDATES].T
        width = scores.shape[1]
        out = (excluded.values >= first) & (excluded.values < first + width)
        scores[skipped[out], excluded.values[out] - first] = -np.inf
        found = [_count(scores[owner], *bounds) for owner, *bounds in zip(owners, low, high, strict=True)]
        lower, not_higher = np.array(found, np.int64).reshape(-1, 2).T
        inside = np.flatnonzero((truths.values >= first) & (truths.values < first + width))
        own = scores[owners[inside], truths.values[inside] - first]  # the true candidate is not its own rival
        lower[inside] += ~(own < low[inside])
        not_higher[inside] += ~(own <= high[inside])
        above += width - not_higher
        tied += not_higher - lower
    above[~np.isfinite(score)] = len(candidates)
    return Ranks(above, tied)


def _count(scores: Floats, low: np.float32, high: np.float32) -> tuple[int, int]:
    """Count the scores `[m]` below `low`, and those that are at most `high`; NaN is neither."""
    return np.count_nonzero(scores < low), np.count_nonzero(scores <= high)


def rank_by_counts(counts: Ints, truths: Lists, excluded: Lists | None = None) -> Ranks:
    """Rank by the count of each candidate; the rankings of queries differ only by the excluded candidates.

    Args:
      counts: `[m]`.
      truths: as for `rank_by_product`.
      excluded: as for `rank_by_product`.
    """
    true = counts[truths.values]
    ranks = _places(np.sort(counts), true)
    above, tied = ranks.above, ranks.tied - 1
    if excluded is not None:
        for query in np.flatnonzero(np.diff(excluded.splits) * np.diff(truths.splits)):
            mine = slice(truths.splits[query], truths.splits[query + 1])
            left_out = counts[excluded.values[excluded.splits[query] : excluded.splits[query + 1]]]
            fewer = _places(np.sort(left_out), true[mine])
            above[mine] -= fewer.above
            tied[mine] -= fewer.tied
    return Ranks(above, tied)


def _places(ascending: Ints, values: Ints) -> Ranks:
    upper = np.searchsorted(ascending, values, side="right")
    return Ranks(len(ascending) - upper, upper - np.searchsorted(ascending, values, side="left"))


def metric_values(metrics: Iterable[RankingMetric], ranks: Ranks, truths: Lists, relevant: Ints) -> dict[str, Numbers]:
    """Compute the value of each metric for each query, float64 `[q]`, by the metric's name.

    Args:
      metrics: the metrics.
      ranks: ranks of `truths`.
      truths: the true candidates of each query that were ranked.
      relevant: `[q]`, number of true candidates of each query, at least 1; each one that was not ranked, because it is
        unknown or was seen, is a miss.
    """
    first = _first_of(ranks, truths)
    return {metric.name: _values(metric, ranks, truths, relevant, first) for metric in metrics}


class _First(NamedTuple):
    """The best true candidate of each query that has one.

    Attributes:
      queries: the queries.
      above: number of candidates above the best true one.
      group: number of candidates that tie with it, itself included.
      right: number of true candidates among these.
    """

    queries: Ints
    above: Ints
    group: Ints
    right: Ints


def _first_of(ranks: Ranks, truths: Lists) -> _First:
    owners = truths.owners
    order = np.lexsort((ranks.tied, ranks.above, owners))
    queries, start = np.unique(owners[order], return_index=True)
    above, tied = np.zeros(len(truths.splits), np.int64), np.zeros(len(truths.splits), np.int64)
    above[queries], tied[queries] = ranks.above[order][start], ranks.tied[order][start]
    same = (ranks.above == above[owners]) & (ranks.tied == tied[owners])
    right = np.bincount(owners[same], minlength=len(truths.splits))
    return _First(queries, above[queries], tied[queries] + 1, right[queries])


def _values(metric: RankingMetric, ranks: Ranks, truths: Lists, relevant: Ints, first: _First) -> Numbers:
    k, count = metric.k, len(relevant)
    if metric.measure in ("HitRate", "MRR"):
        gains = np.ones(k) if metric.measure == "HitRate" else 1 / np.arange(1.0, k + 1)
        values = np.zeros(count)
        values[first.queries] = _gain_of_first(gains, first)
        return values
    gains = np.ones(k) if metric.measure == "Recall" else 1 / np.log2(np.arange(2.0, k + 2))
    upto = np.concatenate([[0.0], np.cumsum(gains)])  # total gain of the first 0, 1, ..., k ranks
    end = np.minimum(ranks.above + ranks.tied + 1, k)
    shares = (upto[end] - upto[np.minimum(ranks.above, k)]) / (ranks.tied + 1)
    total = np.bincount(truths.owners, shares, minlength=count)
    return total / (relevant if metric.measure == "Recall" else upto[np.minimum(relevant, k)])


def _gain_of_first(gains: Numbers, first: _First) -> Numbers:
    """Average the gain at the rank of the first true candidate over all orders of the tied candidates."""
    values, left = np.zeros(len(first.queries)), np.ones(len(first.queries))  # left: probability of no true one so far
    for place in range(len(gains)):
        rank = first.above + place  # counted from 0
        inside = (rank < len(gains)) & (left > 0)
        if not inside.any():
            break
        here = np.minimum(1.0, first.right / np.maximum(first.group - place, 1))
        values[inside] += (left * here)[inside] * gains[rank[inside]]
        left *= 1 - here
    return values
