"""Defines what the figures of a table are computed from: blocks of rows, and what is known of the table."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """The rows of the previous push that the rows of a block continue.

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
      earlier: the rows of the previous push, by token; None without one.
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
      sources: [rows] number of the row of the previous push that each row continues, or -1; None without one.
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
