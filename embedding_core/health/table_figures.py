"""Defines the health figures of one table, as `health.json` holds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

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
      has_base: whether it was compared with the table of the previous push.
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
