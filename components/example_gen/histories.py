"""Makes histories: partitions events by user, finds each row's earlier events, and writes both as one example.

Events are Arrow tables. The file of a partition holds all events of its users, and fits into memory.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that an Arrow file holds (CVE-2023-47248)

from components.example_gen.data_files import open_file
from components.example_gen.prepared_rows import Rows, Shards, moments
from components.example_gen.row_selection import SplitLeaveOneOut
from components.example_gen.rows import Mask, is_list, value_type, values_per_row
from components.example_gen.settings import Histories, Settings
from components.example_gen.splits import SPLITS, Sides, digests
from components.example_gen.tally import Tally
from embedding_core.vocabulary import partition_of

# Makes Arrow tables of events from rows: user, time and order, and the columns of examples and histories.

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
    for batch in rows:
        tally.waiting += len(batch.sides)
        if not tally.kinds_differ:
            yield _event_table(batch, histories, first)
        first += len(batch.sides)


def _event_table(rows: Rows, histories: Histories, first: int) -> pa.Table:
    events = rows.events
    assert events is not None  # the settings have histories
    in_order = histories.ties == "in_order"
    ties = np.arange(first, first + len(rows.sides)) if in_order else _order(rows.batch.content(rows.batch.index))
    arrays = map(pa.array, (events.whole, events.fraction, events.unit, ties, rows.sides, events.remembered))
    keys = dict(zip(KEYS, (events.user, *arrays), strict=True))
    both = {**rows.columns, **events.values}  # `events.values` come last: they are scalars, never lists
    values = {column(name): _widened(values) for name, values in both.items()}
    return pa.table({**keys, **values})


def _order(contents: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Hash each row, so that rows of one user and time have an order that does not depend on the files."""
    return np.frombuffer(b"".join(digests(contents)), ">i8").astype("i8")


def _widened(values: pa.Array) -> pa.Array:
    """Convert texts to a type whose arrays may be larger than 2 GB."""
    return values.cast(pa.large_binary()) if pa.types.is_string(values.type) else values


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of events; a column may hold lists in some of them and be empty in others.

    Raises:
      pa.ArrowInvalid: a column holds values of different kinds; `Tally.problems` reports it.
    """
    names = tables[0].column_names
    return pa.table({name: _joined([chunk for table in tables for chunk in table[name].chunks]) for name in names})


def _joined(chunks: Sequence[pa.Array]) -> pa.Array:
    kind = next((value_type(chunk) for chunk in chunks if chunk.null_count < len(chunk)), None)
    if kind is None:
        kind = value_type(chunks[0]) if chunks else pa.large_binary()
    if any(is_list(chunk.type) for chunk in chunks):
        return pa.concat_arrays([_as_lists(chunk, kind) for chunk in chunks])
    return pa.concat_arrays([_cast(chunk, kind) for chunk in chunks] or [pa.array([], kind)])


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    return pa.nulls(len(values), kind) if values.null_count == len(values) else values.cast(kind)


def _as_lists(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(values_per_row(chunk))])
    values = chunk.flatten() if is_list(chunk.type) else chunk.drop_null()
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), _cast(values, kind))


# Partitions events by user, in files: a part holds all events of its users, and fits into memory.

_CHUNK_BYTES = 64 << 20  # of Arrow tables that one worker holds before it writes them
_PART_BYTES = 64 << 20  # of text or records, unpacked; a part's tables and examples take several times that
_GROUP_ROWS = 1 << 40  # more than any group of files has


def number_of_parts(unpacked_bytes: int) -> int:
    """Return the number of parts for data of this size; the number of workers does not change it."""
    return 1 + unpacked_bytes // _PART_BYTES


def write_events(
    rows: Iterable[Rows], group: int, histories: Histories, folder: str, parts: int, tally: Tally
) -> list[str]:
    """Write the events of one group of files to Arrow files, each with one record batch per part.

    Args:
      rows: the rows.
      group: number of the group.
      histories: settings of the histories.
      folder: folder of the files; no other attempt at this group uses the same names.
      parts: number of parts.
      tally: counts the rows that wait for their histories.

    Returns:
      The names of the files.
    """
    files: list[str] = []
    waiting: list[pa.Table] = []
    attempt = uuid.uuid4().hex

    def write() -> None:
        files.append(f"events-{group:05d}-{len(files):05d}-{attempt}.arrow")
        _write(joined(waiting), posixpath.join(folder, files[-1]), parts)
        waiting.clear()

    held = 0
    for table in event_tables(rows, histories, group * _GROUP_ROWS, tally):
        waiting.append(table)
        held += table.nbytes
        if held >= _CHUNK_BYTES:
            write()
            held = 0
    if waiting and not tally.kinds_differ:
        write()
    return files


def _write(table: pa.Table, path: str, parts: int) -> None:
    from tfx.dsl.io import fileio  # not loaded by a check of the data, which writes nothing

    users = table[USER].combine_chunks().dictionary_encode()
    part = partition_of(users.dictionary, parts)[users.indices.to_numpy()]
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(parts + 1))
    table = table.take(pa.array(order)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            writer.write_batch(_batch(table.slice(start, end - start)))
    with fileio.open(path, "wb") as file:
        file.write(sink.getvalue().to_pybytes())


def _batch(table: pa.Table) -> pa.RecordBatch:
    return pa.record_batch([pa.concat_arrays(values.chunks) for values in table.columns], schema=table.schema)


def read_part(folder: str, files: Sequence[str], part: int) -> pa.Table | None:
    """Read one part from all files of events; None if the part has no rows.

    Args:
      folder: folder of the files.
      files: their names, in the order of the data.
      part: number of the part.
    """
    tables = []
    for name in files:
        with open_file(posixpath.join(folder, name)) as stream:
            batch = pa.ipc.open_file(stream).get_batch(part)
        if len(batch):
            tables.append(pa.Table.from_batches([batch]))
    return joined(tables) if tables else None


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
