"""Divides vectors into lists by k-means; a search for the largest dot products then reads only some lists."""

from __future__ import annotations

import itertools
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Vectors: TypeAlias = npt.NDArray[np.float32]
Places: TypeAlias = npt.NDArray[np.int64]

_ROUNDS = 5
_SAMPLED_PER_LIST = 64
_VECTORS_PER_STEP = 4096


class InvertedLists(NamedTuple):
    """A partition of vectors into lists.

    Attributes:
      order: int64 `[N]`, the row of each place: the rows list by list, ascending within a list.
      starts: int64 `[lists + 1]`, the first place of each list, and the number of vectors.
      means: float32 `[lists, n]`, the mean of each list's vectors.
      variances: float32 `[lists, n]`, the variance of each list's vectors in each dimension.
    """

    order: Places
    starts: Places
    means: Vectors
    variances: Vectors


def divide(vectors: Vectors, lists: int, seed: int = 0) -> InvertedLists:
    """Divide vectors into lists by k-means (Lloyd, 1982): the same vectors and seed give the same lists.

    The centers are computed from a sample of 64 vectors per list in 5 rounds. The time is that of
    `(5 * 64 * lists + N) * lists` dot products; the memory beyond the vectors is that of the sample and of the result.

    Args:
      vectors: float32 `[N, n]`, finite.
      lists: number of lists, at most N; lists that would be empty are left out.
      seed: seed of the sample and of the first centers.
    """
    generator = np.random.default_rng(seed)
    size = min(len(vectors), _SAMPLED_PER_LIST * lists)
    sample = vectors[np.sort(generator.choice(len(vectors), size, replace=False))]
    centers = sample[np.sort(generator.choice(size, lists, replace=False))]
    for _ in range(_ROUNDS):
        nearest = _nearest(sample, centers)
        used, order, starts = _grouped(nearest)
        centers[used] = _means(sample[order], starts)
    _, order, starts = _grouped(_nearest(vectors, centers))
    means, variances = _moments(vectors, order, starts)
    return InvertedLists(order, starts, means, variances)


def _nearest(vectors: Vectors, centers: Vectors) -> Places:
    """Return the center nearest to each vector by Euclidean distance, the first one if distances are equal."""
    transposed = np.ascontiguousarray(centers.T)
    halves = np.einsum("ln,ln->l", centers, centers) / 2
    parts = (vectors[start : start + _VECTORS_PER_STEP] for start in range(0, len(vectors), _VECTORS_PER_STEP))
    return np.concatenate([np.argmax(part @ transposed - halves, axis=1) for part in parts])


def _grouped(groups: Places) -> tuple[Places, Places, Places]:
    """Return the groups that are not empty, the rows group by group, and the starts of the groups, with the end."""
    used, counts = np.unique(groups, return_counts=True)
    return used, np.argsort(groups, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _means(grouped: Vectors, starts: Places) -> Vectors:
    sums: Vectors = np.add.reduceat(grouped, starts[:-1], axis=0)
    return sums / np.diff(starts)[:, np.newaxis].astype(np.float32)


def _moments(vectors: Vectors, order: Places, starts: Places) -> tuple[Vectors, Vectors]:
    """Return the mean and the variance of each list, computed list by list: a copy of all vectors is not needed."""
    means = np.empty((len(starts) - 1, vectors.shape[1]), np.float32)
    variances = np.empty_like(means)
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        rows = vectors[order[start:end]]
        means[number], variances[number] = rows.mean(axis=0), rows.var(axis=0)
    return means, variances
