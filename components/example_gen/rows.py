"""Defines a batch of rows on its way through ExampleGen, and the rows that were set aside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.values import Value
from embedding_core.errors import DataError
from embedding_core.storage import bounds

Mask = npt.NDArray[np.bool_]
T = TypeVar("T")

SHOWN = 5


@dataclasses.dataclass
class BadRows:
    """The rows that could not be used: how many, and the reasons of the first few.

    Attributes:
      count: number of rows set aside (of lines, if a malformed CSV row spans several).
      first: place and reason of each of the first few.
    """

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, place: str, reason: str, rows: int = 1) -> None:
        """Set rows aside."""
        self.count += rows
        if len(self.first) < SHOWN:
            self.first.append(f"{place}: {reason}")


@dataclasses.dataclass
class FirstRows:
    """The first rows of a file, which a check reads; it stops after `bounds.SAMPLE_BYTES` in any case.

    Attributes:
      rows: number of rows to read, without the bad ones.
      ended: whether the file ended before any bound; set by the reader.
    """

    rows: int
    ended: bool = False

    @property
    def most(self) -> int:
        """The number of rows to read with the bad ones."""
        return max(self.rows, bounds.SAMPLE_ROWS + 1)


@dataclasses.dataclass
class Batch:
    """Some rows of one file, as columns.

    Attributes:
      columns: one array per column that was read, all of one length; scalars or lists; null is missing.
      index: position of each row among those that were read; `place`, `content` and `record` take such positions.
      place: file and line (or row, or record) of a row, as an error names it.
      content: returns bytes that encode all values of each row, whatever the order of columns and rows.
      is_text: whether every value is text, as in CSV.
      decimal: decimal separator of numbers that are text.
      record: returns the row as it was read, if it was a serialized tf.Example; else None.
    """

    columns: Mapping[str, pa.Array]
    index: npt.NDArray[np.int64]
    place: Callable[[int], str]
    content: Callable[[npt.NDArray[np.int64]], list[bytes]]
    is_text: bool = False
    decimal: str = "."
    record: Callable[[int], bytes] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def keep(self, mask: Mask) -> Batch:
        """Keep the rows whose mask is true."""
        if mask.all():
            return self
        chosen = pa.array(mask)
        columns = {name: column.filter(chosen) for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns, index=self.index[mask])

    def with_column(self, name: str, column: pa.Array) -> Batch:
        """Return a copy of the batch in which the column of this name is replaced."""
        return dataclasses.replace(self, columns={**self.columns, name: column})

    def set_aside(self, bad: BadRows, reasons: Mapping[int, str]) -> Batch:
        """Return the batch without the rows at the given positions; add these to `bad` with their reasons."""
        mask = np.ones(len(self), dtype=bool)
        for position, reason in reasons.items():
            mask[position] = False
            bad.add(self.place(int(self.index[position])), reason)
        return self.keep(mask)

    def column(self, name: str) -> pa.Array:
        """Return a column as a scalar array; raise DataError if a row holds several values."""
        return single_valued(name, self.columns[name], lambda row: self.place(int(self.index[row])))


def single_valued(name: str, column: pa.Array, place: Callable[[int], str]) -> pa.Array:
    """Convert a list column of at most one value a row to a scalar column; keep scalar columns.

    Raises:
      DataError: a row holds several values.
    """
    if not is_list(column.type):
        return column
    lengths = values_per_row(column)
    if (lengths > 1).any():
        row = int(np.argmax(lengths > 1))
        raise DataError(
            f"column {name!r} holds {lengths[row]} values in {place(row)}: rows can be filtered and split only by a "
            "column of one value a row."
        )
    values = column.flatten()
    positions = np.where(lengths == 1, np.cumsum(lengths) - 1, -1)
    return values.take(pa.array(positions, mask=positions < 0))


def flat_values(column: pa.Array) -> pa.Array:
    """Return the values of a list column one by one; a scalar column as it is."""
    return column.flatten() if is_list(column.type) else column


def values_per_row(column: pa.Array) -> npt.NDArray[np.int64]:
    """Count the values of each row: the length of a list, 1 for a scalar, and 0 for a null."""
    counts = pc.fill_null(pc.list_value_length(column), 0) if is_list(column.type) else column.is_valid()
    numbers: npt.NDArray[np.int64] = counts.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def map_values(column: pa.Array, function: Callable[[Value], T], missing: T) -> tuple[npt.NDArray[Any], dict[int, str]]:
    """Apply a function to every value of a scalar column, once per distinct value.

    Args:
      column: the values; bytes are passed as text (UTF-8, other bytes as surrogates), float32 as `widened` makes it.
      function: may raise ValueError, for a value that makes its row bad.
      missing: the result for a null.

    Returns:
      The results `[rows]`, of the dtype of `missing`, and the reasons for bad rows by position. The result of a bad row
      is `missing`.
    """
    encoded = column.dictionary_encode()
    results: list[T] = []
    reasons: dict[int, str] = {}
    for position, value in enumerate(_values(encoded.dictionary)):
        try:
            results.append(function(value))
        except ValueError as error:
            results.append(missing)
            reasons[position] = str(error)
    results.append(missing)
    indices = pc.fill_null(encoded.indices, len(results) - 1).to_numpy(zero_copy_only=False)
    table = np.empty(len(results), dtype=np.array([missing]).dtype)
    table[:] = results
    if not reasons:
        return table[indices], {}
    bad = np.isin(indices, list(reasons))
    return table[indices], {int(row): reasons[int(indices[row])] for row in np.flatnonzero(bad)}


def _values(dictionary: pa.Array) -> Iterator[Value]:
    values: Sequence[Any] = widened(dictionary).to_pylist()
    for value in values:
        yield value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def widened(values: pa.Array) -> pa.Array:
    """Convert float32 to float64 so that a fraction keeps its decimal text: 0.1 stays 0.1; return other types as given.

    The float64 that equals the float32 0.1 is 0.10000000149: it would be above 0.1, and equal to no 0.1 of a file or of
    the configuration.
    """
    if not pa.types.is_float32(values.type):
        return values
    exact = values.cast(pa.float64())
    return pc.if_else(pc.equal(exact, pc.floor(exact)), exact, values.cast(pa.string()).cast(pa.float64()))
