"""Describes the values of a column of Examples exactly, so that statistics of a sample need not estimate them.

ExampleGen writes the summaries, and StatisticsGen reads them. Imports neither TFX nor TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TypeAlias

from embedding_core.schema import Json

COLUMNS_FACT = "column_summaries"
"""The custom property of Examples that holds the summaries."""


@dataclasses.dataclass
class ColumnSummary:
    """The values of one column in one split.

    Attributes:
      kind: kind of feature, also of a column without values: "bytes", "int64" or "float".
      rows: rows that have a value.
      values: number of values.
      fewest, most: smallest and largest number of values in a row, among the rows that have a value.
      smallest, largest: smallest and largest number; None for texts, or without values.
      total: sum of the numbers.
      only: digest of the value if all values are equal; "" if they differ, None without values,
        "private" if the column is private.
    """

    kind: str = "bytes"
    rows: int = 0
    values: int = 0
    fewest: int = 0
    most: int = 0
    smallest: float | None = None
    largest: float | None = None
    total: float = 0.0
    only: str | None = None

    def add(self, other: ColumnSummary) -> None:
        """Add the values of further rows."""
        if other.rows or not self.rows:
            self.kind = other.kind
        if not other.rows:
            return
        self.fewest = min(self.fewest, other.fewest) if self.rows else other.fewest
        self.most = max(self.most, other.most)
        self.only = other.only if self.only in (None, other.only) else ""
        self.smallest = min((value for value in (self.smallest, other.smallest) if value is not None), default=None)
        self.largest = max((value for value in (self.largest, other.largest) if value is not None), default=None)
        self.rows += other.rows
        self.values += other.values
        self.total += other.total

    def without_values(self) -> ColumnSummary:
        """Return only the counts, without the column's numbers and the digest of its value."""
        only = "private" if self.only else self.only
        return dataclasses.replace(self, smallest=None, largest=None, total=0.0, only=only)

    def to_json(self) -> Json:
        """Return the fields that differ from their defaults."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value != _DEFAULTS[key]}


_DEFAULTS = dataclasses.asdict(ColumnSummary())


Summaries: TypeAlias = Mapping[str, Mapping[str, ColumnSummary]]
"""By split and column."""


def summaries_to_json(rows: Mapping[str, int], summaries: Summaries) -> str:
    """Serialize the summaries for the custom property `COLUMNS_FACT` of Examples.

    Args:
      rows: number of rows of each split.
      summaries: the columns of each split.
    """
    columns = {
        split: {name: summary.to_json() for name, summary in sorted(named.items())}
        for split, named in summaries.items()
    }
    return json.dumps({"rows": dict(rows), "columns": columns})


def summaries_from_json(text: str) -> tuple[Mapping[str, int], Summaries]:
    """Read what `summaries_to_json` wrote: rows and columns of each split."""
    data = json.loads(text)
    return data["rows"], summaries_of_json(data["columns"])


def rows_from_json(text: str) -> Mapping[str, int]:
    """Read the rows of each split from what `summaries_to_json` wrote."""
    rows: Mapping[str, int] = json.loads(text)["rows"]
    return rows


def summaries_of_json(columns: Mapping[str, Mapping[str, Json]]) -> dict[str, dict[str, ColumnSummary]]:
    """Make the summaries by split and column from their fields."""
    return {
        split: {name: ColumnSummary(**fields) for name, fields in named.items()} for split, named in columns.items()
    }
