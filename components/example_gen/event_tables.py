"""Makes Arrow tables of events from rows: user, time and order, and the columns of examples and histories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.example_gen.history_section import Histories
from components.example_gen.prepared_rows import Rows
from components.example_gen.rows import is_list, values_per_row
from components.example_gen.tally import Tally

# The columns of a table of events, before those of the examples.
KEYS = USER, WHOLE, FRACTION, UNIT, TIE, SIDE, REMEMBERED = (
    "user",
    "whole",
    "fraction",
    "unit",
    "tie",
    "side",
    "remembered",
)
_COLUMN = "column:"  # prefix of the columns that examples hold or histories list


def column(name: str) -> str:
    """Return the name that a column of the data has in a table of events."""
    return f"{_COLUMN}{name}"


def event_tables(rows: Iterable[Rows], histories: Histories, first: int, tally: Tally) -> Iterator[pa.Table]:
    """Yield a table for each batch of rows, with `KEYS` and all columns that examples or histories need.

    Once a column has held values of two kinds, only counts the rows; `Tally.problems` reports the column.

    Args:
      rows: the rows, with their events.
      histories: settings of the histories.
      first: number of the first row, in the order of the data.
      tally: counts the rows that wait for their histories.
    """
    for one in (one for one in rows if len(one.sides)):
        tally.waiting += len(one.sides)
        if not tally.kinds_differ:
            yield _event_table(one, histories, first)
        first += len(one.sides)


def _event_table(rows: Rows, histories: Histories, first: int) -> pa.Table:
    events = rows.events
    assert events is not None  # the settings have histories
    in_order = histories.ties == "in_order"
    ties = np.arange(first, first + len(rows.sides)) if in_order else _digests(rows.batch.content(rows.batch.index))
    arrays = map(pa.array, (events.whole, events.fraction, events.unit, ties, rows.sides, events.remembered))
    keys = dict(zip(KEYS, (events.user, *arrays), strict=True))
    both = {**rows.columns, **events.values}  # `events.values` come last: they are scalars, never lists
    values = {column(name): _widened(values) for name, values in both.items()}
    return pa.table({**keys, **values})


def _digests(contents: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Hash each row, so that rows of one user and time have an order that does not depend on the files."""
    return np.frombuffer(b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in contents), ">i8").astype("i8")


def _widened(values: pa.Array) -> pa.Array:
    """Convert texts to a type whose arrays may be larger than 2 GB."""
    return values.cast(pa.large_binary()) if pa.types.is_string(values.type) else values


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of events; a column may hold lists in some of them and be empty in others.

    Raises:
      pa.ArrowInvalid: a column holds values of different kinds; `Tally.problems` reports it.
    """
    names = tables[0].column_names
    return pa.table({name: _joined([chunk for one in tables for chunk in one[name].chunks]) for name in names})


def _joined(chunks: Sequence[pa.Array]) -> pa.Array:
    kind = next((_value_type(chunk) for chunk in chunks if chunk.null_count < len(chunk)), None)
    if kind is None:
        kind = _value_type(chunks[0]) if chunks else pa.large_binary()
    if any(is_list(chunk.type) for chunk in chunks):
        return pa.concat_arrays([_as_lists(chunk, kind) for chunk in chunks])
    return pa.concat_arrays([_cast(chunk, kind) for chunk in chunks] or [pa.array([], kind)])


def _value_type(chunk: pa.Array) -> pa.DataType:
    return chunk.type.value_type if is_list(chunk.type) else chunk.type


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    return pa.nulls(len(values), kind) if values.null_count == len(values) else values.cast(kind)


def _as_lists(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(values_per_row(chunk))])
    values = chunk.flatten() if is_list(chunk.type) else chunk.drop_null()
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), _cast(values, kind))
