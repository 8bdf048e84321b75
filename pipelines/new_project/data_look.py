"""Looks at the first rows of the user's data with ExampleGen's readers, and guesses how a CSV file is written."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from components.example_gen.data_files import find_files, open_unpacked, reading
from components.example_gen.readers import opened_parquet, read_batches
from components.example_gen.rows import BadRows, FirstRows, UnsupportedTypeError, flat_values, normal
from components.example_gen.sampling import Column, sample
from components.example_gen.settings import (
    COMMON_DELIMITERS,
    EXTENSIONS,
    ColumnKind,
    CsvFormat,
    Settings,
    allow_long_values,
    format_of,
)
from embedding_core.errors import ConfigError, DataError
from embedding_core.schema import Json
from embedding_core.storage import bounds, is_remote
from pipelines.config.sections import Data, data_location, resolve

# Guesses how a CSV file is written: encoding, delimiter, header, decimal separator, signs of missing values.

_BYTES = 1 << 18
_LINES = 200
_AGREE = 0.9  # share of the lines that must have as many fields as most lines have
_UNIT = "\x1f"
_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*\Z")
_WITH_COMMA, _WITH_POINT = re.compile(r"\s*[+-]?\d+,\d+\s*\Z"), re.compile(r"\s*[+-]?\d+\.\d+\s*\Z")
_OTHER = 0.1  # share of the frequent values that may be words if the others are numbers: such words mean missing
# Marks that are not words of a language: missing wherever they occur.
_MARKS = frozenset({"?", "na", "n/a", "#n/a", "null", "nan", r"\n"})


def guess_csv(path: str) -> tuple[Json, dict[str, str]]:
    """Guess the keys of the section `data` that differ from their defaults, and why each does.

    Args:
      path: a CSV file, compressed or not.

    Raises:
      DataError: the file cannot be read, or is not text.
    """
    with reading(path), open_unpacked(path) as stream:
        start = stream.read(_BYTES)
    values: Json = {}
    reasons: dict[str, str] = {}
    encoding, text = _decoded(start)
    if encoding != "utf-8":
        values["encoding"], reasons["encoding"] = encoding, "the first bytes are not UTF-8"
    if "\0" in text:
        raise DataError(f"{path} holds a NUL character: it is not a text file, or it is damaged; give a CSV file.")
    allow_long_values()  # of all that was read
    lines = text.splitlines()[:_LINES]
    if len(start) == _BYTES and len(lines) > 1:
        lines = lines[:-1]  # may be cut off
    delimiter = _delimiter(lines)
    if delimiter != ",":
        values["delimiter"], reasons["delimiter"] = delimiter, "it splits the lines into equally many fields"
    rows = _split(lines, delimiter)
    if rows and any(_NUMBER.match(field) for field in rows[0]) and not _is_header(rows):
        values["columns"] = [f"column_{number}" for number in range(1, len(rows[0]) + 1)]
        reasons["columns"] = "the first line holds a number, so it is a row and not a header; give your own names"
    fields = [field for row in rows for field in row]
    if delimiter != "," and any(map(_WITH_COMMA.match, fields)) and not any(map(_WITH_POINT.match, fields)):
        values["decimal"], reasons["decimal"] = ",", "numbers have a comma and none has a point"
    return values, reasons


def guess_missing(columns: Mapping[str, Column]) -> tuple[list[str], str]:
    """Guess the texts that mean a missing value, and say in which columns they are; an empty list if there are none."""
    columns_by_text: dict[str, list[str]] = {}
    values: set[str] = set()  # of columns that hold no numbers: what is missing elsewhere is a value there
    for name, column in columns.items():
        texts = [value.decode("utf-8", "replace") for value, _ in column.frequent]
        words = [text for text in texts if not _NUMBER.match(text)]
        among_numbers = len(words) <= _OTHER * len(texts)
        values.update(() if among_numbers else words)
        for text in words:
            if among_numbers or text.strip().casefold() in _MARKS:
                columns_by_text.setdefault(text, []).append(name)
    columns_by_text = {
        text: names
        for text, names in columns_by_text.items()
        if text not in values or text.strip().casefold() in _MARKS
    }
    places = sorted({name for names in columns_by_text.values() for name in names})
    return sorted(columns_by_text), f"in {', '.join(places[:5])}{', ...' if len(places) > 5 else ''}"


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has a word, which does not mean "missing", above numbers: years may be names too."""
    for place, name in enumerate(rows[0]):
        below = [row[place] for row in rows[1:] if place < len(row) and row[place].strip()]
        is_word = name.strip().casefold() not in {"", *_MARKS} and not _NUMBER.match(name)
        if is_word and below and all(map(_NUMBER.match, below)):
            return True
    return False


def _decoded(start: bytes) -> tuple[str, str]:
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16", start[: len(start) // 2 * 2].decode("utf-16", "replace")
    try:
        return "utf-8", start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start >= len(start) - 3 and error.reason == "unexpected end of data":
            return "utf-8", start[: error.start].decode("utf-8-sig")
    try:
        return "cp1252", start.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1", start.decode("latin-1")


def _delimiter(lines: Sequence[str]) -> str:
    """Return the delimiter that splits most lines into equally many fields, and into the most; a comma if none does."""
    best, most = ",", 1
    for sign in (",", *(delimiter for delimiter in COMMON_DELIMITERS if delimiter != ",")):
        counts = [len(row) for row in _split(lines, sign)]
        usual = statistics.mode(counts) if counts else 0
        if usual > most and counts.count(usual) >= _AGREE * len(counts):
            best, most = sign, usual
    return best


def _split(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    sign = delimiter if len(delimiter) == 1 else _UNIT
    return [row for row in csv.reader((line.replace(delimiter, sign) for line in lines), delimiter=sign) if row]


# Looks at the first rows of the user's data with ExampleGen's readers.

_NAMELESS = "it has no name"  # as the index that pandas writes


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataLook:
    """What the first rows hold.

    Attributes:
      files: all files of the data.
      rows: number of rows that were looked at.
      whole: whether these are all rows.
      bad: number of these rows that cannot be read.
      section: the keys of the section `data` that differ from their defaults, without the path.
      reasons: reason of the guess, for each of these keys.
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


def look_at(path: str) -> DataLook:
    """Look at the first rows of a file, a folder or a glob.

    Args:
      path: as the key `data.path` has it; a relative one starts at the current folder.

    Raises:
      ConfigError: there is no such file, or the format cannot be told from its name.
      DataError: a file is damaged or beyond a bound, has more than `bounds.GUESSED_COLUMNS`, or has no rows.
    """
    files, data_format = _files(path)
    section, reasons = guess_csv(files[0]) if data_format == "csv" else ({}, {})
    csv = CsvFormat(**section)
    readable, unreadable = _columns(files, data_format, csv)
    if not readable:
        raise _nothing_readable(files[0], data_format, csv)
    if len(readable) > bounds.GUESSED_COLUMNS:
        raise DataError(
            f"{files[0]} has {len(readable):,} columns, and {bounds.GUESSED_COLUMNS:,} is the most of which features "
            "are made: write a configuration that names those that you need, or a file that has only these."
        )
    settings = Settings(columns=readable, csv=csv)
    read = sample(files, data_format, settings)
    missing, where = guess_missing(read.columns) if data_format == "csv" else ([], "")
    if missing:
        section["missing"], reasons["missing"] = missing, where
        settings = settings.replace(csv=CsvFormat(**section))
        read = sample(files, data_format, settings)
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
        from pipelines.local.storage_errors import check_address

        check_address("`--data`", path)
    base, pattern = data_location(data)
    try:
        files = find_files(base, pattern, None, None).files
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


def _columns(files: Sequence[str], data_format: str, csv: CsvFormat) -> tuple[dict[str, ColumnKind], dict[str, str]]:
    """Return how to read the columns that all files have, and why no example can hold the others."""
    if data_format != "parquet":
        names = sample(files, data_format, Settings(columns={}, passthrough=True, csv=csv), 1).names
        return {name: "token" for name in names if name}, {"": _NAMELESS} if "" in names else {}
    kinds: dict[str, ColumnKind] = {}
    unreadable = {}
    with opened_parquet(files[0]) as file:
        fields: Sequence[pa.Field] = list(file.schema_arrow)
    for field in fields:
        try:
            values = flat_values(normal(pa.array([], field.type)))
        except (UnsupportedTypeError, pa.ArrowNotImplementedError):
            unreadable[field.name] = f"of type {field.type}, which an example cannot hold"
        else:  # an example has no place for a token that is a float64
            kinds[field.name] = "float" if pa.types.is_floating(values.type) else "token"
    if kinds.pop("", None):
        unreadable[""] = _NAMELESS
    if not kinds:
        return {}, unreadable
    first = next(iter(kinds))
    there = {*sample(files, data_format, Settings(columns={first: kinds[first]}), 1).names}
    return {name: kind for name, kind in kinds.items() if name in there}, unreadable


def _nothing_readable(path: str, data_format: str, csv: CsvFormat) -> DataError:
    """Return the error of a file without rows, or without any that can be read."""
    bad = BadRows()
    first = FirstRows(bounds.SAMPLE_ROWS)
    next(iter(read_batches(path, data_format, Settings(columns={}, passthrough=True, csv=csv), bad, first)), None)
    if bad.first:
        return DataError(f"{path}: no row can be read. The first:\n  {bad.first[0]}")
    return DataError(f"{path} has no rows, or no column that can be read: give a file with rows.")
