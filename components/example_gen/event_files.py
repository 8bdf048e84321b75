"""Partitions events by user, in files: a part holds all events of its users, and fits into memory."""

from __future__ import annotations

import posixpath
import uuid
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that an Arrow file holds (CVE-2023-47248)

from components.example_gen.event_tables import USER, event_tables, joined
from components.example_gen.history_section import Histories
from components.example_gen.opened_files import open_file
from components.example_gen.prepared_rows import Rows
from components.example_gen.tally import Tally

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
        if sum(one.nbytes for one in waiting) >= _CHUNK_BYTES:
            write()
    if waiting and not tally.kinds_differ:
        write()
    return files


def _write(table: pa.Table, path: str, parts: int) -> None:
    from tfx.dsl.io import fileio  # not loaded by a check of the data, which writes nothing

    part = _parts(table[USER].combine_chunks(), parts)
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
    return pa.record_batch([pa.concat_arrays(one.chunks) for one in table.columns], schema=table.schema)


def _parts(users: pa.Array, parts: int) -> npt.NDArray[np.int64]:
    """Return the part of each row, by a hash of its user."""
    encoded = users.dictionary_encode()
    of_users = np.array([zlib.crc32(user) % parts for user in encoded.dictionary.to_pylist()], np.int64)
    part: npt.NDArray[np.int64] = of_users[encoded.indices.to_numpy()]
    return part


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
