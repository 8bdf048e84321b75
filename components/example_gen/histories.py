"""Makes histories: finds for each row the earlier events of its user, and writes the rows with them as examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.event_files import FRACTION, REMEMBERED, SIDE, TIE, UNIT, USER, WHOLE, column
from components.example_gen.ingest import Shards
from components.example_gen.prepared_rows import moments
from components.example_gen.row_selection import SplitLeaveOneOut
from components.example_gen.rows import Mask
from components.example_gen.settings import Histories, Settings
from components.example_gen.splits import SPLITS, Sides
from components.example_gen.tally import Tally

_Positions: TypeAlias = npt.NDArray[np.int64]

_SLICE = 16_384  # rows whose histories are in memory at once
_TRAIN, _EVAL = map(SPLITS.index, ("train", "eval"))


class Timeline(NamedTuple):
    """The rows of a table, sorted by user and time; `first`, `last` and `seen` are positions in this order.

    Attributes:
      order: position of each row in the table.
      first: position of the first row of the row's user.
      last: position after the last row of the row's user.
      seen: position after the last row that the row's history may hold.
    """

    order: _Positions
    first: _Positions
    last: _Positions
    seen: _Positions


class Windows(NamedTuple):
    """The events that histories hold, and the range of them that is each row's history.

    Attributes:
      events: positions in the table: first the events that rows of "train" see, then those that other rows see; each
        part is sorted by user and time.
      start, end: range of `events` that is the history of a row, for the rows sorted by user and time.
    """

    events: _Positions
    start: _Positions
    end: _Positions


def write_histories(table: pa.Table, part: int, settings: Settings, histories: Histories, folder: str) -> Tally:
    """Write the rows of one part, with their histories, as shards of examples.

    Args:
      table: all rows of some users, from `event_tables`.
      part: number of the part, for the shards' names and the seed that shuffles their rows.
      settings: settings of ExampleGen.
      histories: settings of the histories.
      folder: folder of the shards.
    """
    tally = Tally(filtered=[0] * len(settings.conditions))
    shards = Shards(folder, part, settings.seed, tally.shards)
    for columns, sides in rows_with_histories(table, settings, histories, part, tally):
        tally.add_rows(columns, sides)
        shards.add(columns, sides)
    shards.flush()
    return tally


def rows_with_histories(
    table: pa.Table, settings: Settings, histories: Histories, part: int, tally: Tally
) -> Iterator[tuple[Mapping[str, pa.Array], Sides]]:
    """Yield the rows of both splits with their histories, some at a time, in an order drawn from the seed.

    Args:
      table: all rows of some users.
      settings: settings of ExampleGen.
      histories: settings of the histories.
      part: number of the table, for the seed.
      tally: counts the rows that are left out.

    Yields:
      The columns of the examples, and the split of each row as a position in `SPLITS`.
    """
    timeline = timeline_of(table, apart=histories.ties == "apart")
    sides = _numbers(table, SIDE)[timeline.order].astype(np.int8)
    if isinstance(settings.split, SplitLeaveOneOut):
        sides = leave_one_out(timeline, settings.split)
    can_be_listed = _with_all_values(table, histories)
    remembered = _numbers(table, REMEMBERED).astype(bool)
    windows = windows_of(timeline, sides, remembered & can_be_listed, histories.max_length)
    is_long = windows.end - windows.start >= histories.min_length
    tally.waiting -= len(sides)
    tally.outside += int((sides < 0).sum())
    tally.short += int(((sides >= 0) & ~is_long).sum())
    tally.unlisted += int((remembered & ~can_be_listed).sum())
    kept = np.flatnonzero((sides >= 0) & is_long)
    # Rows of one user are adjacent: without shuffling, a shard would hold few users.
    kept = kept[np.random.RandomState([settings.seed & 0xFFFFFFFF, part]).permutation(len(kept))]
    for begin in range(0, len(kept), _SLICE):
        rows = kept[begin : begin + _SLICE]
        yield _columns(table, settings, histories, timeline.order[rows], windows, rows), sides[rows]


def timeline_of(table: pa.Table, *, apart: bool) -> Timeline:
    """Order the rows by user, time and `TIE`.

    Args:
      table: the rows.
      apart: whether rows of one user and time are kept out of each other's histories.
    """
    encoded = table[USER].combine_chunks().dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    user = ranks[encoded.indices.to_numpy()]
    whole, fraction = moments(*(_numbers(table, name) for name in (WHOLE, FRACTION, UNIT)))
    tie = _numbers(table, TIE)
    order = np.lexsort((tie, fraction, whole, user))
    user, whole, fraction = user[order], whole[order], fraction[order]
    other_user = np.concatenate([[True], user[1:] != user[:-1]])
    other_time = other_user | np.concatenate([[True], (whole[1:] != whole[:-1]) | (fraction[1:] != fraction[:-1])])
    first, last = _groups(other_user)
    seen = _groups(other_time)[0] if apart else np.arange(len(order))
    return Timeline(order, first, last, seen)


def _groups(starts: Mask) -> tuple[_Positions, _Positions]:
    """Return for each position the first position of its group, and the position after the last one."""
    firsts = np.flatnonzero(starts)
    group = np.cumsum(starts) - 1
    return firsts[group], np.append(firsts[1:], len(starts))[group]


def leave_one_out(timeline: Timeline, split: SplitLeaveOneOut) -> Sides:
    """Return the split of each row, in order of users and times, as a position in `SPLITS`, or -1 for neither."""
    after = timeline.last - 1 - np.arange(len(timeline.order))
    held_out = 0 if split.held_out == "last" else 1
    return np.where(after == held_out, _EVAL, np.where(after > held_out + split.gap, _TRAIN, -1)).astype(np.int8)


def windows_of(timeline: Timeline, sides: Sides, listed: Mask, max_length: int) -> Windows:
    """Find the history of each row: the latest events that it may see.

    A row for training sees events of the train split only, so that no history for training holds a row that the model
    is evaluated on.

    Args:
      timeline: the rows.
      sides: their splits, in order of users and times.
      listed: per row of the table, whether histories may hold it.
      max_length: largest number of events in a history.
    """
    in_order = listed[timeline.order]
    events, starts, ends = [], np.zeros(len(sides), np.int64), np.zeros(len(sides), np.int64)
    offset = 0
    for seeing, seen in ((sides == _TRAIN, in_order & (sides == _TRAIN)), (sides != _TRAIN, in_order)):
        before = np.concatenate([[0], np.cumsum(seen)])  # number of events before each position
        end = before[timeline.seen]
        start = np.maximum(before[timeline.first], end - max_length)
        starts, ends = np.where(seeing, start + offset, starts), np.where(seeing, end + offset, ends)
        events.append(timeline.order[seen])
        offset += len(events[-1])
    return Windows(np.concatenate(events), starts, ends)


def _with_all_values(table: pa.Table, histories: Histories) -> Mask:
    valid = [table[column(name)].is_valid().to_numpy() for name in histories.sources]
    mask: Mask = np.all(valid, axis=0)
    return mask


def _columns(
    table: pa.Table,
    settings: Settings,
    histories: Histories,
    places: _Positions,
    windows: Windows,
    rows: _Positions,
) -> dict[str, pa.Array]:
    """Return the columns of some rows, given their places in the table and in the order of users and times."""
    start, lengths = windows.start[rows], (windows.end - windows.start)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    listed = windows.events[np.repeat(start - offsets[:-1], lengths) + np.arange(offsets[-1])]
    columns = {name: _taken(table, name, places) for name in settings.from_data}
    for name, source in histories.columns.items():
        values = _taken(table, source, listed)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return columns


def _taken(table: pa.Table, name: str, places: _Positions) -> pa.Array:
    return table[column(name)].chunk(0).take(pa.array(places))


def _numbers(table: pa.Table, name: str) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = table[name].to_numpy()
    return numbers
