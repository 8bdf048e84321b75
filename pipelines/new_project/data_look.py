"""Looks at the first rows of the user's data with ExampleGen's readers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import pyarrow as pa

from components.example_gen.arrays import UnsupportedTypeError, normal
from components.example_gen.csv_format import CsvFormat
from components.example_gen.data_files import find_files, without_spans
from components.example_gen.formats import EXTENSIONS, format_of
from components.example_gen.parquet_rows import opened_parquet
from components.example_gen.readers import read_batches
from components.example_gen.rows import BadRows, FirstRows
from components.example_gen.sampling import Column, sample
from components.example_gen.settings import Settings
from embedding_core.errors import ConfigError, DataError
from embedding_core.schema import Json
from embedding_core.storage import bounds, is_remote
from pipelines.config.data import Data
from pipelines.config.files import data_location
from pipelines.config.paths import resolve
from pipelines.new_project.csv_guess import guess_csv, guess_missing


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataLook:
    """What the first rows hold.

    Attributes:
      files: all files of the data.
      rows: how many rows were looked at.
      whole: whether these are all rows.
      bad: how many of them cannot be read.
      section: the keys of the section `data` that differ from their defaults, without the path.
      reasons: why each of these keys was guessed.
      columns: the columns that can be read, in the order of the data.
      unreadable: the columns that are left out because an example cannot hold them, with the reason.
    """

    files: tuple[str, ...]
    rows: int
    whole: bool
    bad: int
    section: Json
    reasons: dict[str, str]
    columns: dict[str, Column]
    unreadable: dict[str, str]


def look_at(path: str, rows: int | None = None) -> DataLook:
    """Look at the first rows of a file, a folder or a glob.

    Args:
      path: as the key `data.path` has it; a relative one starts at the current folder.
      rows: approximate number of rows to look at; None is `bounds.SAMPLE_ROWS`.

    Raises:
      ConfigError: there is no such file, or the format cannot be told from its name.
      DataError: a file is damaged or beyond a bound, has more than `bounds.GUESSED_COLUMNS`, or has no rows.
    """
    files, data_format = _files(path)
    section, reasons = guess_csv(files[0]) if data_format == "csv" else ({}, {})
    csv = CsvFormat(**section)
    readable, unreadable = _columns(files, data_format, csv)
    if "" in readable:  # the index that pandas writes
        readable, unreadable = [name for name in readable if name], {**unreadable, "": "it has no name in the header"}
    if not readable:
        raise _nothing_readable(files[0], data_format, csv)
    if len(readable) > bounds.GUESSED_COLUMNS:
        raise DataError(
            f"{files[0]} has {len(readable):,} columns, and {bounds.GUESSED_COLUMNS:,} is the most of which features "
            "are made: write a configuration that names those that you need, or a file that has only these."
        )
    settings = Settings(columns=dict.fromkeys(readable, "token"), csv=csv)
    read = sample(files, data_format, settings, rows)
    missing, where = guess_missing(read.columns) if data_format == "csv" else ([], "")
    if missing:
        section["missing"], reasons["missing"] = missing, where
        settings = settings.replace(csv=CsvFormat(**section))
        read = sample(files, data_format, settings, rows)
    bad = 0 if read.tally is None else read.tally.bad.count
    seen = max((column.rows for column in read.columns.values()), default=0)
    if not seen:
        raise DataError(f"{files[0]} has no rows: give a file with rows.")
    return DataLook(
        files=tuple(files),
        rows=seen,
        whole=read.whole,
        bad=bad,
        section=section,
        reasons=reasons,
        columns={name: read.columns[name] for name in readable},
        unreadable=unreadable,
    )


def _files(path: str) -> tuple[list[str], str]:
    """Return the files and their format."""
    try:
        data = Data(path=resolve(path, os.getcwd()))
    except ConfigError as error:
        raise ConfigError(f"`--data` {error}") from error
    if is_remote(path):
        from pipelines.local.file_systems import check_address

        check_address("`--data`", path)
    base, pattern = data_location(data)
    try:
        files = find_files(base, without_spans(pattern), None, None).files
    except DataError as error:
        raise ConfigError(
            f"`--data` is {path!r}: there is no such file; give a file, a folder with files, or a glob."
        ) from error
    formats = {format_of(file) for file in files}
    if len(formats) > 1 or None in formats:
        known = ", ".join(sorted(map(str, formats)))
        raise ConfigError(
            f"`--data` is {path!r}, whose files are of the formats {known}: give files of one, named {EXTENSIONS}."
            if None not in formats
            else f"`--data` is {path!r}: the name of a file does not tell its format; give files named {EXTENSIONS}."
        )
    return files, str(formats.pop())


def _columns(files: Sequence[str], data_format: str, csv: CsvFormat) -> tuple[list[str], dict[str, str]]:
    """Return the columns that all files have, and those that no example can hold, with the reason."""
    if data_format != "parquet":
        return list(sample(files, data_format, Settings(columns={}, passthrough=True, csv=csv), 1).names), {}
    unreadable = _unreadable(files[0])
    with opened_parquet(files[0]) as file:
        readable = [name for name in file.schema_arrow.names if name not in unreadable]
    if not readable:
        return [], unreadable
    names = {*sample(files, data_format, Settings(columns={readable[0]: "token"}), 1).names}
    return [name for name in readable if name in names], unreadable


def _nothing_readable(path: str, data_format: str, csv: CsvFormat) -> DataError:
    """Return the error of a file without rows, or without any that can be read."""
    bad = BadRows()
    first = FirstRows(bounds.SAMPLE_ROWS)
    next(iter(read_batches(path, data_format, Settings(columns={}, passthrough=True, csv=csv), bad, first)), None)
    if bad.first:
        return DataError(f"{path}: no row can be read. The first:\n  {bad.first[0]}")
    return DataError(f"{path} has no rows, or no column that can be read: give a file with rows.")


def _unreadable(path: str) -> dict[str, str]:
    """Return the columns of a Parquet file whose types no example can hold, with the reason."""
    with opened_parquet(path) as file:
        fields: Sequence[pa.Field] = list(file.schema_arrow)
    found = {}
    for field in fields:
        try:
            normal(pa.array([], field.type))
        except (UnsupportedTypeError, pa.ArrowNotImplementedError):
            found[field.name] = f"of type {field.type}, which an example cannot hold"
    return found
