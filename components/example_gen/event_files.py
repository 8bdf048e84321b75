"""Makes Arrow tables of events from rows, and partitions them by user, in files that fit into memory."""

from __future__ import annotations

import hashlib
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that an Arrow file holds (CVE-2023-47248)

from components.example_gen.data_files import open_file
from components.example_gen.prepared_rows import Rows
from components.example_gen.rows import is_list, value_type, values_per_row
from components.example_gen.settings import Histories
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
    ties = np.arange(first, first + len(rows.sides)) if in_order else _digests(rows.batch.content(rows.batch.index))
    arrays = map(pa.array, (events.whole, events.fraction, events.unit, ties, rows.sides, events.remembered))
    keys = dict(zip(KEYS, (events.user, *arrays), strict=True))
    both = {**rows.columns, **events.values}  # `events.values` come last: they are scalars, never lists
    values = {column(name): _widened(values) for name, values in both.items()}
    return pa.table({**keys, **values})


def _digests(contents: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Hash each row, so that rows of one user and time have an order that does not depend on the files."""
    return np.frombuffer(
        b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents), ">i8"
    ).astype("i8")


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

    for table in event_tables(rows, histories, group * _GROUP_ROWS, tally):
        waiting.append(table)
        if sum(events.nbytes for events in waiting) >= _CHUNK_BYTES:
            write()
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
