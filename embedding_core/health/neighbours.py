"""Computes figures of a table from a sample of its rows: misplaced rows, changed neighbours, and hubs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embedding_core.health.table_source import Block, Rows, TableReader

_MISPLACED_SAMPLE = 256
_NEIGHBOUR_SAMPLE = 1024
_NEIGHBOURS = 10
_LEAST = 64  # rows without which a sample says little
_LEAST_DIM = 4  # with fewer columns, some other row is always near
_CLOSER = 0.5
_BY_CHANCE = 0.1  # share of rows that may be so close to another by chance
_SHOWN = 10
_STILL = 1e-6  # of the norm
_AT_ONCE = 8192  # rows that distances are computed to at once


class Sampled(NamedTuple):
    """A sample of the rows that the previous push has too.

    Attributes:
      numbers: [n] their numbers, ascending.
      now: [n, dim] the rows.
      before: [n, dim] the same tokens' rows in the previous push.
    """

    numbers: npt.NDArray[np.int64]
    now: npt.NDArray[np.float64]
    before: npt.NDArray[np.float64]


class Sampler:
    """Collects seeded samples of rows while blocks pass by."""

    def __init__(self, reader: TableReader, seed: int = 0) -> None:
        facts = reader.facts
        chance = np.random.default_rng(seed)
        rows = np.arange(facts.rows) if facts.counts is None else np.arange(len(facts.counts))
        self._own = _drawn(chance, rows, _NEIGHBOUR_SAMPLE)
        known = rows if facts.sources is None else rows[facts.sources[: len(rows)] >= 0]
        self._known = _drawn(chance, known, _NEIGHBOUR_SAMPLE)
        self._rows: list[npt.NDArray[np.float64]] = []
        self._now: list[npt.NDArray[np.float64]] = []
        self._before: list[npt.NDArray[np.float64]] = []
        self._reader, self._chance = reader, chance

    def add(self, block: Block) -> None:
        """Keep the rows of the block that are in the sample."""
        self._rows.append(_taken(block.rows, self._own, block.start))
        if block.earlier is not None:
            self._now.append(_taken(block.rows, self._known, block.start))
            self._before.append(_taken(block.earlier.rows, self._known, block.start))

    def figures(self) -> Iterator[tuple[str, float, list[int]]]:
        """Yield name, value and rows of each figure, after all blocks were added."""
        rows = np.concatenate(self._rows)
        finite = np.isfinite(rows).all(axis=1)
        rows = rows[finite]
        if len(rows) >= _LEAST and rows.shape[1] > 1:
            nearest = _nearest(rows)
            yield "hubness", hubness(nearest), self._own[finite][_most_often(nearest)].tolist()
        if not self._now:
            return
        now, before = np.concatenate(self._now), np.concatenate(self._before)
        good = np.isfinite(now).all(axis=1) & np.isfinite(before).all(axis=1)
        sample = Sampled(self._known[good], now[good], before[good])
        if len(sample.numbers) >= _LEAST and sample.now.shape[1] >= _LEAST_DIM:
            changed = changed_neighbours(_nearest(sample.before), _nearest(sample.now))
            most = np.argsort(-changed, kind="stable")[:_SHOWN]
            yield "churn", float(changed.mean()), sample.numbers[most].tolist()
            yield "misplaced", *self._misplaced(sample)

    def _misplaced(self, sample: Sampled) -> tuple[float, list[int]]:
        """Return the share of sampled rows that are another token's previous row rather than their own, and some.

        Where rows are dense, each comes close to others when it moves. So a row has to be closer to another than almost
        all rows would be that moved as far, in the direction of another row.
        """
        chosen = _drawn(self._chance, np.arange(len(sample.numbers)), _MISPLACED_SAMPLE)
        moves = (sample.now - sample.before)[chosen]
        own = np.linalg.norm(moves, axis=1)
        moved = own > _STILL * np.linalg.norm(sample.before[chosen], axis=1)
        if not moved.any():
            return 0.0, []
        rows, own, moves = chosen[moved], own[moved], moves[moved]
        control = sample.before[rows] + np.roll(moves / own[:, None], 1, axis=0) * own[:, None]
        nearest = self._to_another(sample.numbers[rows], np.stack([sample.now[rows], control]))
        ratios, by_chance = nearest / own
        found = ratios < min(_CLOSER, float(np.quantile(by_chance, _BY_CHANCE)))
        return float(found.sum() / len(chosen)), sample.numbers[rows][found][:_SHOWN].tolist()

    def _to_another(self, numbers: npt.NDArray[np.int64], points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the distances of points [m, n, dim] to the nearest previous row that is not row n's own; [m, n]."""
        sources = self._reader.facts.sources
        assert sources is not None
        flat = points.reshape(-1, points.shape[-1])
        found = np.full(len(flat), np.inf)
        for start, rows in self._reader.earlier_rows():
            for first in range(0, len(rows), _AT_ONCE):
                part = rows[first : first + _AT_ONCE]
                distances = _distances(flat, _far_if_not_finite(part.astype(np.float64)))
                at = np.tile(sources[numbers], len(points)) - start - first
                inside = np.flatnonzero((at >= 0) & (at < len(part)))
                distances[inside, at[inside]] = np.inf
                found = np.minimum(found, distances.min(axis=1, initial=np.inf))
        return found.reshape(points.shape[:2])


def _drawn(chance: np.random.Generator, rows: npt.NDArray[np.int64], number: int) -> npt.NDArray[np.int64]:
    """Draw some rows, in ascending order; all if there are no more."""
    places = chance.choice(len(rows), min(number, len(rows)), replace=False, shuffle=False)
    return np.sort(rows[places])


def _taken(rows: Rows, wanted: npt.NDArray[np.int64], start: int) -> npt.NDArray[np.float64]:
    low, high = np.searchsorted(wanted, (start, start + len(rows)))
    taken: npt.NDArray[np.float64] = rows[wanted[low:high] - start].astype(np.float64)
    return taken


def _far_if_not_finite(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Replace rows that are not finite by one that is far from all."""
    rows[~np.isfinite(rows).all(axis=1)] = np.finfo(np.float32).max
    return rows


def _distances(rows: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    squares = np.square(rows).sum(1)[:, None] + np.square(others).sum(1) - 2 * rows @ others.T
    distances: npt.NDArray[np.float64] = np.sqrt(np.clip(squares, 0.0, None))
    return distances


def _nearest(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the `_NEIGHBOURS` nearest other rows of each, by cosine: [n, k]."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: npt.NDArray[np.int64] = np.argpartition(-cosines, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
    return nearest


def changed_neighbours(before: npt.NDArray[np.int64], now: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Compute the share of each row's nearest neighbours that it no longer has, from [n, k] of each."""
    kept = (before[:, :, None] == now[:, None, :]).any(axis=2)
    shares: npt.NDArray[np.float64] = 1.0 - kept.mean(axis=1)
    return shares


def _most_often(nearest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    times = np.bincount(nearest.ravel(), minlength=len(nearest))
    return np.argsort(-times, kind="stable")[:_SHOWN]


def hubness(nearest: npt.NDArray[np.int64]) -> float:
    """Compute the skewness of how often a row is a neighbour (Radovanovic et al., 2010), from [n, k]."""
    times = np.bincount(nearest.ravel(), minlength=len(nearest)).astype(np.float64)
    deviation = times.std()
    return float(((times - times.mean()) ** 3).mean() / deviation**3) if deviation > 0 else 0.0
