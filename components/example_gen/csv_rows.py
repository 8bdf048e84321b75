"""Rows of CSV files: every value a text, every bad row with its line."""

from __future__ import annotations

import csv
import io
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.example_gen.reading import check_columns, open_unpacked, reading
from components.example_gen.rows import BadRows, Batch
from components.example_gen.settings import Settings
from embedding_core.errors import DataError

__all__ = ["csv_batches"]

_BATCH = 16_384
_NOT_UTF8 = "bytes that are not UTF-8 in column {!r}"


def csv_batches(path: str, settings: Settings, bad: BadRows) -> Iterator[Batch]:
    """Batches of a CSV file (also gzip): UTF-8, comma, a header, fields in double quotes may hold commas and lines.

    Every value is text, exactly as it is in the file; "" is missing. Empty lines are skipped. A row is bad when it has
    another number of fields than the header, broken quotes, a NUL, or bytes that are not UTF-8 in a column that is
    read.

    Raises:
      DataError: the file is empty or damaged, its header names a column twice, or a needed column is absent.
    """
    with reading(path), open_unpacked(path) as stream:
        reader = csv.reader(
            io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline=""), strict=True
        )
        header = _header(path, reader, settings)
        wanted = header if settings.passthrough else settings.needed
        rows = _rows(path, reader, len(header), bad)
        while chunk := list(itertools.islice(rows, _BATCH)):
            yield _batch(path, header, wanted, chunk, bad)


def _header(path: str, reader: Any, settings: Settings) -> list[str]:
    try:
        header: list[str] = next(reader, [])
    except csv.Error as error:
        raise DataError(f"{path}:1: the header is no CSV ({error}): mend it.") from error
    if not header:
        raise DataError(f"{path} has no header: a CSV file must start with a line that names its columns.")
    for name in header:
        if not _is_utf8(name):
            raise DataError(f"{path}:1: the header holds bytes that are not UTF-8 ({name!r}): write the file as UTF-8.")
    check_columns(path, header, settings.needed)
    return header


def _rows(path: str, reader: Any, width: int, bad: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Each row of the right width with the line it starts at."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            bad.add(f"{path}:{line}", f"malformed CSV: {error}", rows=max(1, reader.line_num - line + 1))
            continue
        if len(row) == width:
            yield line, row
        elif row:
            fields = f"{len(row)} field{'s' if len(row) > 1 else ''}"
            bad.add(f"{path}:{line}", f"{fields}, the header has {width}", rows=reader.line_num - line + 1)


def _batch(
    path: str, header: Sequence[str], wanted: Sequence[str], chunk: Sequence[tuple[int, list[str]]], bad: BadRows
) -> Batch:
    lines, rows = zip(*chunk, strict=True)
    places = [header.index(name) for name in wanted]
    try:
        columns = {name: _texts(row[place] for row in rows) for name, place in zip(wanted, places, strict=True)}
    except UnicodeEncodeError:
        good = [pair for pair in chunk if _check_utf8(path, header, places, pair, bad)]
        if good:
            return _batch(path, header, wanted, good, bad)
        lines, rows, columns = (), (), {name: _texts([]) for name in wanted}
    return Batch(
        columns=columns,
        index=np.arange(len(rows)),
        place=lambda row: f"{path}:{lines[row]}",
        content=lambda index: _contents(header, rows, index),
        is_text=True,
    )


def _texts(values: Any) -> pa.Array:
    return pa.array([value or None for value in values], pa.string())


def _is_utf8(text: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


def _check_utf8(
    path: str, header: Sequence[str], places: Sequence[int], pair: tuple[int, list[str]], bad: BadRows
) -> bool:
    line, row = pair
    for place in places:
        if not _is_utf8(row[place]):
            bad.add(f"{path}:{line}", _NOT_UTF8.format(header[place]))
            return False
    return True


def _contents(header: Sequence[str], rows: Sequence[list[str]], index: npt.NDArray[np.int64]) -> list[bytes]:
    """All fields of each row in the order of their columns' names, with what no CSV field can hold between them."""
    by_name = sorted(range(len(header)), key=header.__getitem__)
    pick = operator.itemgetter(*by_name) if len(by_name) > 1 else lambda row: (row[0],)
    return ["\0".join(pick(rows[row])).encode("utf-8", "surrogateescape") for row in index.tolist()]
