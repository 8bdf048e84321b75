"""Guesses how a CSV file is written: encoding, delimiter, header, decimal separator, signs of missing values."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from components.example_gen.csv_format import COMMON_DELIMITERS, allow_long_values
from components.example_gen.opened_files import open_unpacked, reading
from components.example_gen.sampling import Column
from embedding_core.errors import DataError
from embedding_core.schema import Json

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
    found: dict[str, list[str]] = {}
    for name, column in columns.items():
        texts = [value.decode("utf-8", "replace") for value, _ in column.frequent]
        words = [text for text in texts if not _NUMBER.match(text)]
        among_numbers = len(words) <= _OTHER * len(texts)
        for text in words:
            if among_numbers or text.strip().casefold() in _MARKS:
                found.setdefault(text, []).append(name)
    places = sorted({name for names in found.values() for name in names})
    return sorted(found), f"in {', '.join(places[:5])}{', ...' if len(places) > 5 else ''}"


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
    for sign in (",", *(one for one in COMMON_DELIMITERS if one != ",")):
        counts = [len(row) for row in _split(lines, sign)]
        usual = statistics.mode(counts) if counts else 0
        if usual > most and counts.count(usual) >= _AGREE * len(counts):
            best, most = sign, usual
    return best


def _split(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    sign = delimiter if len(delimiter) == 1 else _UNIT
    return [row for row in csv.reader((line.replace(delimiter, sign) for line in lines), delimiter=sign) if row]
