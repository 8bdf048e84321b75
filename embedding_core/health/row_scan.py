"""Computes the figures of a table that one pass over its rows gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from embedding_core.health.table_figures import Counts, Flagged, Mask
from embedding_core.health.table_source import Block, TableFacts

Floats = npt.NDArray[np.float64]

_QUANTILES = {"least": 0.0, "median": 0.5, "p99": 0.99, "greatest": 1.0}
_STRAYED = 0.01  # of a row's norm: rounding, and gradients too small for their slot, move a row by less
_OPPOSITE = -0.5
_GREW = 4.0
_FEW_COLUMNS = 4  # with fewer, small rows turn often
_SHOWN = 10
_CONSTANT = 1e-3  # of the median standard deviation of the columns
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


class RowScan:
    """Collects figures block by block; keeps 22 bytes for each row, and two matrices of dim x dim."""

    def __init__(self, facts: TableFacts) -> None:
        self._facts = facts
        self._norms = np.full(facts.rows, np.nan, np.float32)
        self._norms_before = np.full(facts.rows, np.nan, np.float32)
        self._moves = np.full(facts.rows, np.nan, np.float32)
        self._hashes = np.zeros(facts.rows, np.uint64)
        self._of_interest = np.zeros(facts.rows, np.bool_)  # rows that may not be equal
        self._moments, self._moments_before = _Moments(facts.dim), _Moments(facts.dim)
        self._flags = {name: Flagged() for name in ("nonfinite", "zero", "untrained", *_AGAINST_BASE)}
        self._turned = np.zeros(facts.rows, np.bool_)
        self._has_base = False

    def add(self, block: Block) -> None:
        """Add the next rows."""
        rows = block.rows.astype(np.float64)
        finite = np.isfinite(rows).all(axis=1)
        rows[~finite] = 0.0
        part = slice(block.start, block.start + len(rows))
        counts, every = self._facts.counts_of(part), np.ones(len(rows), np.bool_)
        norms = np.linalg.norm(rows, axis=1)
        self._norms[part] = np.where(finite, _float32(norms), np.nan)
        self._moments.add(rows[finite])
        first = self._initial(block.rows)
        untrained = _untouched(block.slots, self._facts.slot_initials)
        self._hashes[part] = _hashes(block.rows)
        self._of_interest[part] = finite & (norms > 0) & ~first
        sound = np.logical_and.reduce([finite, *(np.isfinite(slot).all(axis=1) for slot in block.slots)])
        self._flags["nonfinite"].add(block.start, ~sound, every, counts)
        self._flags["zero"].add(block.start, (norms == 0) & ~first, finite, counts)
        if untrained is not None:
            self._flags["untrained"].add(block.start, untrained, every, counts)
        if block.earlier is not None:
            self._against_base(block, rows, norms, finite, counts, untrained)

    def _initial(self, rows: npt.NDArray[np.float32]) -> Mask:
        """Return which rows still are the initializer's constant; all False for another initializer."""
        constant = self._facts.constant
        if constant is None:
            return np.zeros(len(rows), np.bool_)
        equal: Mask = (rows == np.float32(constant)).all(axis=1)
        return equal

    def _against_base(
        self, block: Block, rows: Floats, norms: Floats, finite: Mask, counts: Counts, untrained: Mask | None
    ) -> None:
        assert block.earlier is not None
        self._has_base = True
        before = block.earlier.rows.astype(np.float64)
        known = block.earlier.known & finite & np.isfinite(before).all(axis=1)
        before[~known] = 0.0
        lengths = np.linalg.norm(before, axis=1)
        self._moments_before.add(before[known])
        part = slice(block.start, block.start + len(rows))
        self._norms_before[part] = np.where(known, _float32(lengths), np.nan)
        changed = (block.rows.view(np.uint32) != block.earlier.rows.view(np.uint32)).any(axis=1)
        moved = np.linalg.norm(rows - before, axis=1)
        relative = np.divide(moved, lengths, out=np.zeros_like(moved), where=lengths > 0)
        self._moves[part] = np.where(known & (lengths > 0), _float32(relative), np.nan)
        cosine = np.einsum("nd,nd->n", rows, before) / np.maximum(norms * lengths, np.finfo(np.float64).tiny)
        flag = self._flags
        if self._facts.counts is not None:
            for name in ("frozen", "frozen_rows"):
                flag[name].add(block.start, ~changed, known & (counts > 0), counts)
        still = self._not_trained(block, counts)
        if still is not None:
            flag["strayed"].add(block.start, relative > _STRAYED, known & still & (lengths > 0), counts)
        directed = known & (lengths > 0) & (norms > 0)
        self._turned[part] = directed & (cosine < _OPPOSITE)
        flag["grown"].add(block.start, norms > _GREW * lengths, directed, counts)
        flag["shrunk"].add(block.start, norms < lengths / _GREW, directed, counts)
        was_untrained = _untouched(block.earlier.slots, self._facts.slot_initials)
        if untrained is not None and was_untrained is not None:
            flag["reset"].add(block.start, untrained, known & ~was_untrained, counts)
        for now, then, grows in zip(block.slots, block.earlier.slots, self._facts.slots_only_grow, strict=False):
            if grows:
                flag["older"].add(block.start, (now < then).any(axis=1), known, counts)

    def _not_trained(self, block: Block, counts: Counts) -> Mask | None:
        """Return the rows that this run did not train: their slots are as before, or the data lack their tokens."""
        assert block.earlier is not None
        still: list[Mask] = []
        if block.slots and block.earlier.slots:
            same = [(now == then).all(axis=1) for now, then in zip(block.slots, block.earlier.slots, strict=True)]
            still.append(np.logical_and.reduce(same))
        if self._facts.counts is not None and not self._facts.drawn and not self._facts.sweeps:
            tokens = np.arange(block.start, block.start + len(block.rows)) < len(self._facts.counts)
            still.append(tokens & (counts == 0))
        return np.logical_or.reduce(still) if still else None

    def figures(self) -> Iterator[tuple[str, float, list[int]]]:
        """Yield name, value and rows of each figure, after all blocks were added."""
        measured = self._norms[np.isfinite(self._norms)]
        for name, at in _QUANTILES.items():
            yield f"norm_{name}", float(np.quantile(measured, at)) if len(measured) else 0.0, []
        for name in ("nonfinite", "zero"):
            yield name, self._flags[name].share, self._flags[name].examples
        if self._facts.slot_initials:
            yield "untrained", self._flags["untrained"].traffic_share, self._flags["untrained"].examples
        yield from self._spread(measured)
        if self._facts.dim > 1:
            yield "duplicated", *self._duplicates()
        if self._has_base:
            yield from self._changes()

    def curves(self) -> dict[str, list[float]]:
        """Return the curves of `TableFigures`, after all blocks were added."""
        curves = {}
        for name, norms in (("norms", self._norms), ("norms of the base", self._norms_before)):
            measured = norms[np.isfinite(norms)]
            if len(measured):
                curves[name] = [float(one) for one in np.quantile(measured, np.linspace(0, 1, 21))]
        if self._moments.count > self._facts.dim > 1:
            curves["variances"] = self._moments.variances().tolist()
        return curves

    def _spread(self, measured: npt.NDArray[np.float32]) -> Iterator[tuple[str, float, list[int]]]:
        median = float(np.median(measured)) if len(measured) else 0.0
        greatest = int(np.nanargmax(self._norms)) if len(measured) else 0
        if median > 0:
            yield "norm_spread", float(self._norms[greatest]) / median, [greatest]
        if self._facts.dim > 1 and self._moments.count > self._facts.dim:
            yield "effective_rank", self._moments.effective_rank(), []
            yield "common_direction", self._moments.common_direction(), []
            yield "constant_columns", float(self._moments.constant_columns()), []

    def _duplicates(self) -> tuple[float, list[int]]:
        places = np.flatnonzero(self._of_interest)
        _, inverse, times = np.unique(self._hashes[places], return_inverse=True, return_counts=True)
        found, flagged = places[times[inverse] > 1], Flagged()
        mask = np.zeros(self._facts.rows, np.bool_)
        mask[found] = True
        flagged.add(0, mask, self._of_interest, self._facts.counts_of(slice(0, self._facts.rows)))
        return flagged.share, flagged.examples

    def _changes(self) -> Iterator[tuple[str, float, list[int]]]:
        counts = self._facts.counts_of(slice(0, self._facts.rows))
        known = np.isfinite(self._moves)
        for name, chosen in (("seen", counts > 0), ("unseen", counts == 0)):
            if self._facts.counts is not None and (known & chosen).any():
                moves = np.where(known & chosen, self._moves, -1.0)
                furthest = np.argsort(-moves, kind="stable")[: min(_SHOWN, int((known & chosen).sum()))]
                yield f"move_{name}", float(np.median(self._moves[known & chosen])), furthest.tolist()
        before = self._norms_before[np.isfinite(self._norms_before)].max(initial=0.0)
        if before > 0:
            greatest = int(np.nanargmax(self._norms)) if np.isfinite(self._norms).any() else 0
            yield "norm_growth", float(np.nan_to_num(self._norms[greatest]) / before), [greatest]
        if self._facts.dim > 1 and self._moments_before.count > self._facts.dim:
            spread, spread_before = self._moments.spread(), self._moments_before.spread()
            if spread_before > 0:
                yield "spread_change", spread / spread_before, []
                yield "rank_change", self._moments.effective_rank() / self._moments_before.effective_rank(), []
        directed = (self._norms > 0) & (self._norms_before > 0)
        turned = self._turned
        if self._facts.dim < _FEW_COLUMNS and directed.any():
            median = np.median(self._norms_before[directed])
            turned, directed = turned & (self._norms >= median), directed & (self._norms_before >= median)
        self._flags["flipped"].add(0, turned, directed, counts)
        for name in _AGAINST_BASE:
            flagged = self._flags[name]
            if flagged.of_rows:
                by_traffic = name == "frozen"
                yield name, flagged.traffic_share if by_traffic else flagged.share, flagged.examples


_AGAINST_BASE = ("frozen", "frozen_rows", "strayed", "flipped", "grown", "shrunk", "reset", "older")


class _Moments:
    """First and second moments of rows."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._sum = np.zeros(dim)
        self._products = np.zeros((dim, dim))

    def add(self, rows: Floats) -> None:
        self.count += len(rows)
        self._sum += rows.sum(axis=0)
        self._products += rows.T @ rows

    def _covariance(self) -> Floats:
        mean = self._sum / self.count
        covariance: Floats = self._products / self.count - np.outer(mean, mean)
        return covariance

    def effective_rank(self) -> float:
        """Compute exp(entropy) of the shares of the covariance's eigenvalues (Roy and Vetterli, 2007)."""
        shares = self.variances()
        shares = shares[shares > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))

    def variances(self) -> Floats:
        """Return the shares of the variance in the principal directions, the largest first; [dim]."""
        eigenvalues = np.clip(np.linalg.eigvalsh(self._covariance())[::-1], 0.0, None)
        total: float = eigenvalues.sum()
        shares: Floats = eigenvalues / total if total > 0 else eigenvalues
        return shares

    def common_direction(self) -> float:
        """Compute the squared norm of the mean row over the mean squared norm: 1 if all rows are equal."""
        squares = float(np.trace(self._products)) / self.count
        return float(np.square(self._sum / self.count).sum()) / squares if squares > 0 else 1.0

    def spread(self) -> float:
        """Compute the root of the mean squared distance to the mean row."""
        return float(np.sqrt(max(0.0, np.trace(self._covariance()))))

    def constant_columns(self) -> int:
        """Count the columns whose standard deviation is next to nothing beside the median one."""
        deviations = np.sqrt(np.clip(np.diag(self._covariance()), 0.0, None))
        return int((deviations <= _CONSTANT * np.median(deviations)).sum())


def _untouched(slots: tuple[npt.NDArray[np.float32], ...], initials: tuple[float, ...]) -> Mask | None:
    """Return the rows whose slots all have their initial values; None without slots."""
    if not slots:
        return None
    same = [(slot == np.float32(initial)).all(axis=1) for slot, initial in zip(slots, initials, strict=True)]
    untouched: Mask = np.logical_and.reduce(same)
    return untouched


def _float32(values: Floats) -> npt.NDArray[np.float32]:
    """Convert to float32; what is too large becomes its greatest number, so that it still counts."""
    return np.minimum(values, np.finfo(np.float32).max).astype(np.float32)


def _hashes(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """Hash the bytes of each row to 64 bits."""
    hashes = np.zeros(len(rows), np.uint64)
    with np.errstate(over="ignore"):
        for column in np.ascontiguousarray(rows).view(np.uint32).T:
            hashes = (hashes ^ column) * _MIX[0]
            hashes = (hashes ^ (hashes >> np.uint64(29))) * _MIX[1]
    return hashes
