"""Which files are the data, and which worker reads which."""

from __future__ import annotations

import datetime
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfx.dsl.io import fileio

from components.example_gen.reading import reading
from components.example_gen.settings import Settings, Spans
from embedding_core.errors import DataError, nearest

__all__ = ["Found", "find_files", "group_files", "without_spans"]

# Bytes of text or records that one worker takes at a time, and what a packed byte counts for.
_GROUP_BYTES = 64 << 20
_UNPACKED = {".gz": 6, ".parquet": 4}
_NAMES = {"csv": r"\.csv(\.gz)?$", "tfrecord": r"tfrecords?(\.gz)?(-\d+-of-\d+)?(\.gz)?$", "parquet": r"\.parquet$"}
_PARTS = {
    "{YYYY}": r"(?P<year>\d{4})",
    "{MM}": r"(?P<month>\d{2})",
    "{DD}": r"(?P<day>\d{2})",
    "{SPAN}": r"(?P<span>\d+)",
}


def without_spans(pattern: str) -> str:
    """The pattern as a glob that matches the files of every span."""
    for part in _PARTS:
        pattern = pattern.replace(part, "*")
    return pattern


class Found(NamedTuple):
    """The files that are read, and those that match and are not read, each in order."""

    files: list[str]
    ignored: list[str]


def find_files(input_base: str, pattern: str, data_format: str, settings: Settings) -> Found:
    """The files that match, sorted: of the spans that the settings ask for, where they name some.

    A glob takes no file whose name starts with "_" or ".", as marks of other programs do; "*" alone, a whole folder,
    takes only files that are named like the format, where there are some. Such files are given as ignored.

    Raises:
      DataError: the folder does not exist, or no file matches.
    """
    full = posixpath.join(input_base, pattern)
    with reading(full):
        found = sorted(str(path) for path in fileio.glob(full) if not fileio.isdir(path))
    files = [path for path in found if _is_meant(posixpath.basename(path), posixpath.basename(pattern))]
    if posixpath.basename(pattern) == "*":
        files = [path for path in files if re.search(_NAMES[data_format], path.lower())] or files
    ignored = sorted({*found} - {*files})
    if settings.spans is not None:
        files = _of_spans(files, input_base, settings.spans)
    if not files:
        raise DataError(_no_match(full, found, settings))
    return Found(files, ignored)


def _is_meant(name: str, pattern: str) -> bool:
    return name[0] not in "._" or pattern[0] == name[0]


def _of_spans(files: Sequence[str], input_base: str, spans: Spans) -> list[str]:
    glob = re.escape(posixpath.join(input_base, spans.pattern)).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    for part, group in _PARTS.items():
        again = f"(?P={group[4:].partition('>')[0]})"  # a part that stands twice must be the same twice
        glob = glob.replace(re.escape(part), group, 1).replace(re.escape(part), again)
    matches = [(re.fullmatch(glob, path), path) for path in files]
    spanned = [(_span(match.groupdict()), path) for match, path in matches if match]
    return [path for span, path in sorted(spanned) if spans.first <= span <= spans.last]


def _span(parts: Mapping[str, str]) -> int:
    """The number of a span; that of a date is its day since the year 1, and -1 that of no date."""
    if "span" in parts:
        return int(parts["span"])
    try:
        return datetime.date(int(parts["year"]), int(parts["month"]), int(parts["day"])).toordinal()
    except ValueError:
        return -1


def _no_match(full: str, found: Sequence[str], settings: Settings) -> str:
    if found and settings.spans:
        return f"none of the {len(found)} files that match {full!r} is of the spans asked for: {settings.spans}."
    folder = posixpath.dirname(full)
    if any(sign in folder for sign in "*?["):
        return f"no file matches {full!r}: correct the path or the glob."
    if not fileio.isdir(folder):
        return f"the folder {folder!r} does not exist: give the path of the data (here {full!r})."
    known = [str(name) for name in fileio.listdir(folder)]
    return f"no file matches {full!r}: " + (nearest(posixpath.basename(full), known) if known else "it is empty.")


def group_files(files: Sequence[str]) -> list[list[str]]:
    """Consecutive files in groups of about 64 MB unpacked (estimated): the same files give the same groups."""
    groups: list[list[str]] = [[]]
    size = 0
    for path in files:
        if size >= _GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        with reading(path):
            size += fileio.stat(path).length * _UNPACKED.get(os.path.splitext(path)[1], 1)
    return groups
