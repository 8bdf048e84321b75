"""Computes the health figures of one table, as `health.json` holds them, from blocks of its rows and facts about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from embedding_core.schema import Json

HEALTH_FILE = "health.json"
"""File of a blessing of TableHealth, with the figures of all tables and the findings."""
_SHOWN = 10
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Flagged:
    """Counts the rows that a condition holds for, and keeps the most frequent of them."""

    def __init__(self) -> None:
        self.rows = 0
        self.traffic = 0
        self.of_rows = 0
        self.of_traffic = 0
        self._most: list[tuple[int, int]] = []

    def add(self, start: int, mask: Mask, among: Mask, counts: Counts) -> None:
        """Add a block of rows.

        Args:
          start: number of the block's first row.
          mask: [rows of the block] whether the condition holds.
          among: [rows of the block] rows that can meet the condition.
          counts: [rows of the block] occurrences of each row's token in the data of this run.
        """
        mask = mask & among
        found = np.flatnonzero(mask)
        self.rows += len(found)
        self.of_rows += int(among.sum())
        self.traffic += int(counts[mask].sum())
        self.of_traffic += int(counts[among].sum())
        if len(found):
            top = found[np.argsort(-counts[found], kind="stable")[:_SHOWN]]
            most = [*self._most, *((-int(counts[row]), start + int(row)) for row in top)]
            self._most = sorted(most)[:_SHOWN]

    @property
    def share(self) -> float:
        """Share of the rows, from 0 to 1; 0 if there are none."""
        return self.rows / self.of_rows if self.of_rows else 0.0

    @property
    def traffic_share(self) -> float:
        """Share of these rows' token occurrences, from 0 to 1; 0 if there are none."""
        return self.traffic / self.of_traffic if self.of_traffic else 0.0

    @property
    def examples(self) -> list[int]:
        """Numbers of up to 10 of the rows; those whose tokens occur most come first."""
        return [row for _, row in self._most]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFigures:
    """The health figures of one table.

    Attributes:
      table: name of the table.
      rows, dim: its shape.
      has_base: whether it was compared with the table of the base, an earlier checkpoint.
      values: value of each figure by name; a figure that does not apply to the table is left out.
      curves: "norms" and "norms of the base": quantiles at 0, 5, ..., 100%; those that apply.
      examples: by name of a figure, numbers of up to 10 rows that it concerns.
    """

    table: str
    rows: int
    dim: int
    has_base: bool
    values: Mapping[str, float]
    curves: Mapping[str, Sequence[float]]
    examples: Mapping[str, list[int]]

    def to_dict(self) -> Json:
        """Return the figures as JSON values, without the examples: these are row numbers, which change."""
        return {
            "rows": self.rows,
            "dim": self.dim,
            "has_base": self.has_base,
            "values": {name: float(value) for name, value in self.values.items()},
            "curves": {name: list(curve) for name, curve in self.curves.items()},
        }


Rows = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """The rows of the base that the rows of a block continue.

    Attributes:
      known: [n] bool, whether the token had a row.
      rows: [n, dim] that row; anything where `known` is False.
      slots: [n, dim] of each slot; empty if the table had other slots.
    """

    known: npt.NDArray[np.bool_]
    rows: Rows
    slots: tuple[Rows, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Some consecutive rows of a table.

    Attributes:
      start: number of the first row.
      rows: [n, dim] float32.
      slots: [n, dim] of each slot; empty without slots.
      earlier: the rows of the base, by token; None without one.
    """

    start: int
    rows: Rows
    slots: tuple[Rows, ...] = ()
    earlier: Earlier | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What is known of a table besides its rows.

    Attributes:
      name: name of the table.
      rows, dim: its shape.
      counts: [tokens] occurrences of each row's token in the data of this run; None for raw ids. The rows after
        them are out-of-vocabulary rows.
      sources: [rows] number of the row of the base that each row continues, or -1; None without one.
      constant: the value of all numbers of an initial row, if the initializer is constant.
      zeros: whether the optimizer may set a row to zero (FTRL with L1).
      drawn: whether training also draws rows that the data of this run need not contain, such as negatives.
      sweeps: whether a step also moves rows that it does not look up (Adam that is not lazy).
    """

    name: str
    rows: int
    dim: int
    counts: npt.NDArray[np.int64] | None = None
    sources: npt.NDArray[np.int64] | None = None
    constant: float | None = None
    zeros: bool = False
    drawn: bool = False
    sweeps: bool = False

    def counts_of(self, part: slice) -> npt.NDArray[np.int64]:
        """Return the counts of some rows; 0 for rows without a token."""
        counts = np.zeros(part.stop - part.start, np.int64)
        if self.counts is not None:
            given = self.counts[part]
            counts[: len(given)] = given
        return counts


Floats = npt.NDArray[np.float64]

_STRAYED = 0.01  # of a row's norm: rounding, and gradients too small for their slot, move a row by less
_CONSTANT = 1e-3  # of the median standard deviation of the columns
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


class RowScan:
    """Collects figures block by block; keeps 21 bytes for each row, and two sums for each column."""

    def __init__(self, facts: TableFacts) -> None:
        self._facts = facts
        self._norms = np.full(facts.rows, np.nan, np.float32)
        self._norms_before = np.full(facts.rows, np.nan, np.float32)
        self._moves = np.full(facts.rows, np.nan, np.float32)
        self._hashes = np.zeros(facts.rows, np.uint64)
        self._of_interest = np.zeros(facts.rows, np.bool_)  # rows that may not be equal
        self._finite = 0
        self._sums, self._squares = np.zeros(facts.dim), np.zeros(facts.dim)
        self._flags = {name: Flagged() for name in ("zero", *_AGAINST_BASE)}
        self._has_base = False

    def add(self, block: Block) -> None:
        """Add the next rows."""
        rows = block.rows.astype(np.float64)
        finite = np.isfinite(rows).all(axis=1)
        rows[~finite] = 0.0
        part = slice(block.start, block.start + len(rows))
        counts = self._facts.counts_of(part)
        norms = np.linalg.norm(rows, axis=1)
        self._norms[part] = np.where(finite, _float32(norms), np.nan)
        self._finite += int(finite.sum())
        self._sums += rows.sum(axis=0)
        self._squares += np.square(rows).sum(axis=0)
        first = self._initial(block.rows)
        self._hashes[part] = _hashes(block.rows)
        self._of_interest[part] = finite & (norms > 0) & ~first
        self._flags["zero"].add(block.start, (norms == 0) & ~first, finite, counts)
        if block.earlier is not None:
            self._against_base(block, rows, finite, counts)

    def _initial(self, rows: npt.NDArray[np.float32]) -> Mask:
        """Return which rows still are the initializer's constant; all False for another initializer."""
        constant = self._facts.constant
        if constant is None:
            return np.zeros(len(rows), np.bool_)
        equal: Mask = (rows == np.float32(constant)).all(axis=1)
        return equal

    def _against_base(self, block: Block, rows: Floats, finite: Mask, counts: Counts) -> None:
        assert block.earlier is not None
        self._has_base = True
        before = block.earlier.rows.astype(np.float64)
        known = block.earlier.known & finite & np.isfinite(before).all(axis=1)
        before[~known] = 0.0
        lengths = np.linalg.norm(before, axis=1)
        part = slice(block.start, block.start + len(rows))
        self._norms_before[part] = np.where(known, _float32(lengths), np.nan)
        changed = (block.rows.view(np.uint32) != block.earlier.rows.view(np.uint32)).any(axis=1)
        moved = np.linalg.norm(rows - before, axis=1)
        relative = np.divide(moved, lengths, out=np.zeros_like(moved), where=lengths > 0)
        self._moves[part] = np.where(known & (lengths > 0), _float32(relative), np.nan)
        if self._facts.counts is not None:
            for name in ("frozen", "frozen_rows"):
                self._flags[name].add(block.start, ~changed, known & (counts > 0), counts)
        still = self._not_trained(block, counts)
        if still is not None:
            self._flags["strayed"].add(block.start, relative > _STRAYED, known & still & (lengths > 0), counts)

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
        median = float(np.median(measured)) if len(measured) else 0.0
        yield "norm_median", median, []
        yield "zero", self._flags["zero"].share, self._flags["zero"].examples
        if median > 0:
            greatest = int(np.nanargmax(self._norms))
            yield "norm_spread", float(self._norms[greatest]) / median, [greatest]
        if self._facts.dim > 1 and self._finite > self._facts.dim:
            yield "common_direction", self._common_direction(), []
            yield "constant_columns", float(self._constant_columns()), []
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
                curves[name] = [float(quantile) for quantile in np.quantile(measured, np.linspace(0, 1, 21))]
        return curves

    def _common_direction(self) -> float:
        """Compute the squared norm of the mean row over the mean squared norm: 1 if all rows are equal."""
        squares = float(self._squares.sum()) / self._finite
        return float(np.square(self._sums / self._finite).sum()) / squares if squares > 0 else 1.0

    def _constant_columns(self) -> int:
        """Count the columns whose standard deviation is next to nothing beside the median one."""
        variances = self._squares / self._finite - np.square(self._sums / self._finite)
        deviations = np.sqrt(np.clip(variances, 0.0, None))
        return int((deviations <= _CONSTANT * np.median(deviations)).sum())

    def _duplicates(self) -> tuple[float, list[int]]:
        places = np.flatnonzero(self._of_interest)
        _, inverse, times = np.unique(self._hashes[places], return_inverse=True, return_counts=True)
        found, flagged = places[times[inverse] > 1], Flagged()
        mask = np.zeros(self._facts.rows, np.bool_)
        mask[found] = True
        flagged.add(0, mask, self._of_interest, self._facts.counts_of(slice(0, self._facts.rows)))
        return flagged.share, flagged.examples

    def _changes(self) -> Iterator[tuple[str, float, list[int]]]:
        tokens = 0 if self._facts.counts is None else len(self._facts.counts)
        moves = self._moves[:tokens]
        unseen = np.isfinite(moves) & (self._facts.counts_of(slice(0, tokens)) == 0)
        if unseen.any():
            moves = np.where(unseen, moves, -1.0)
            furthest = np.argsort(-moves, kind="stable")[: min(_SHOWN, int(unseen.sum()))]
            yield "move_unseen", float(np.median(moves[unseen])), furthest.tolist()
        for name in _AGAINST_BASE:
            flagged = self._flags[name]
            if flagged.of_rows:
                yield name, flagged.traffic_share if name == "frozen" else flagged.share, flagged.examples


_AGAINST_BASE = ("frozen", "frozen_rows", "strayed")


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


def measure_table(facts: TableFacts, blocks: Iterable[Block]) -> TableFigures:
    """Measure a table in one pass over its rows and those of the base, if there is one.

    Args:
      facts: what is known of the table besides its rows.
      blocks: all rows in order, with those of the base aligned by token.
    """
    scan = RowScan(facts)
    for block in blocks:
        scan.add(block)
    figures = [figure for figure in scan.figures() if not (facts.zeros and figure[0] == "zero")]
    return TableFigures(
        table=facts.name,
        rows=facts.rows,
        dim=facts.dim,
        has_base=facts.sources is not None,
        values={name: value for name, value, _ in figures},
        curves=scan.curves(),
        examples={name: rows for name, value, rows in figures if rows and value > 0},
    )
