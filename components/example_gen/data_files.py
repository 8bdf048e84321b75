"""Finds the files of the data, and assigns them to workers. TFX is loaded for remote files only.

`input_base` is literal: no character of it is a pattern. `pattern` is a glob with `*`, `?` and `[...]`.
"""

from __future__ import annotations

import datetime
import glob
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from components.example_gen.formats import format_of
from components.example_gen.opened_files import reading
from components.example_gen.spans import Gaps, PatternSpans
from embedding_core.errors import DataError, nearest
from embedding_core.storage import is_remote

# Bytes of text or records that one worker takes at a time, and the assumed unpacked bytes per packed byte.
_GROUP_BYTES = 64 << 20
_UNPACKED = {".gz": 6, ".bz2": 6, ".xz": 6, ".zst": 6, ".parquet": 4}
_PARTS = {
    "{YYYY}": r"(?P<year>\d{4})",
    "{MM}": r"(?P<month>\d{2})",
    "{DD}": r"(?P<day>\d{2})",
    "{SPAN}": r"(?P<span>\d+)",
}
_PIECE = re.compile(r"\{(?:YYYY|MM|DD|SPAN)\}|\[!?\]?[^]]*\]|.", re.DOTALL)


def without_spans(pattern: str) -> str:
    """Return the pattern as a glob that matches the files of every span."""
    for part in _PARTS:
        pattern = pattern.replace(part, "*")
    return pattern


def escaped(path: str) -> str:
    """Escape the path for globs of TensorFlow's file systems, so that it matches only itself."""
    return glob.escape(path.replace("\\", "\\\\"))


class Found(NamedTuple):
    """The files to read and the matching files that are ignored, both sorted, and the spans without a file."""

    files: list[str]
    ignored: list[str]
    gaps: Gaps = Gaps(0, ())


def find_files(input_base: str, pattern: str, data_format: str | None, spans: PatternSpans | None) -> Found:
    """Find the files that match, sorted by span and name.

    A glob ignores files whose names start with "_" or ".", which other programs use as markers. If the file name in
    `pattern` is "*" and some matching files have the extension of `data_format`, only these are taken. The other files
    are returned as ignored.

    Args:
      input_base: the folder of the data, taken literally.
      pattern: glob of the files below it.
      data_format: format of the files to take if the file name in `pattern` is "*"; None takes all known formats.
      spans: the spans to read; None reads all files that match.

    Raises:
      DataError: the folder does not exist, or no file matches.
    """
    full = posixpath.join(input_base, pattern)
    with reading(full):
        matches = sorted(_matching(input_base, pattern))
    files = [path for path in matches if _is_meant(posixpath.basename(path), posixpath.basename(pattern))]
    if posixpath.basename(pattern) == "*":
        wanted = (format_of(path) for path in files)
        named = [path for path, one in zip(files, wanted, strict=True) if one and one == (data_format or one)]
        files = named or files
    ignored = sorted({*matches} - {*files})
    spanned = [] if spans is None else span_numbers(files, input_base, spans)
    if spans is not None:
        files = [path for _, path in spanned]
    if not files:
        raise DataError(_no_match(input_base, pattern, matches, spans))
    return Found(files, ignored, Gaps(0, ()) if spans is None else spans.gaps({span for span, _ in spanned}))


def check_gaps(gaps: Gaps, spans: PatternSpans | None, data: str) -> None:
    """Check that every span has a file, if the settings ask for that.

    Raises:
      DataError: a span has no file.
    """
    if gaps.total and spans is not None and spans.missing == "error":
        raise DataError(
            f"{data}: {gaps.total} spans have no file ({gaps}), and `data.spans.missing` is 'error': bring their "
            "files, change `first` and `last`, or set it to warn."
        )


def _matching(input_base: str, pattern: str) -> list[str]:
    if not is_remote(input_base):
        # TensorFlow's own globs treat a backslash in a name as an escape, and a bracket in a folder as a pattern.
        return [path for path in glob.glob(posixpath.join(glob.escape(input_base), pattern)) if os.path.isfile(path)]
    from tfx.dsl.io import fileio

    matches = fileio.glob(posixpath.join(escaped(input_base), pattern))
    return [str(path) for path in matches if not fileio.isdir(path)]


def _is_meant(name: str, pattern: str) -> bool:
    return name[0] not in "._" or pattern[0] == name[0]


def span_numbers(files: Sequence[str], input_base: str, spans: PatternSpans) -> list[tuple[int, str]]:
    """List the files of the requested spans with their numbers, sorted; a date's number is its day since year 1."""
    expression = re.compile(re.escape(posixpath.join(input_base, "")) + _expression(spans.pattern), re.DOTALL)
    matches = [(expression.fullmatch(path), path) for path in files]
    spanned = [(_span(match.groupdict()), path) for match, path in matches if match]
    (first, last), left_out = spans.numbers, spans.left_out
    return [(span, path) for span, path in sorted(spanned) if first <= span <= last and span not in left_out]


def _expression(pattern: str) -> str:
    """Convert a glob with placeholders to a regular expression; equal placeholders must have equal values."""
    seen: set[str] = set()
    parts = []
    for piece in _PIECE.findall(pattern):
        group = _PARTS.get(piece)
        if group is None:
            parts.append(_glob_piece(piece))
        else:
            parts.append(f"(?P={group[4:].partition('>')[0]})" if piece in seen else group)
            seen.add(piece)
    return "".join(parts)


def _glob_piece(piece: str) -> str:
    if piece == "*":
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if len(piece) == 1:
        return re.escape(piece)
    negated = piece.startswith("[!")
    inside = piece[2 if negated else 1 : -1].replace("\\", "\\\\").replace("[", r"\[").replace("]", r"\]")
    return f"[{'^' if negated else ''}{inside}]" if negated or not inside.startswith("^") else f"[\\{inside}]"


def _span(parts: Mapping[str, str]) -> int:
    """Return the number of a span: for a date its day since year 1, or -1 if the date is invalid."""
    if "span" in parts:
        return int(parts["span"])
    try:
        return datetime.date(int(parts["year"]), int(parts["month"]), int(parts["day"])).toordinal()
    except ValueError:
        return -1


def _no_match(input_base: str, pattern: str, matches: Sequence[str], spans: PatternSpans | None) -> str:
    full = posixpath.join(input_base, pattern)
    if matches and spans:
        return f"none of the {len(matches)} files that match {full!r} belongs to the spans asked for: {spans!r}."
    folder = posixpath.dirname(pattern)
    if any(sign in folder for sign in "*?["):
        return f"no file matches {full!r}: correct the path or the glob."
    folder = posixpath.join(input_base, folder).rstrip("/")
    if not _is_folder(folder):
        return f"the folder {folder!r} does not exist: give the path of the data (here {full!r})."
    known = _names_in(folder)
    return f"no file matches {full!r}: " + (nearest(posixpath.basename(full), known) if known else "it is empty.")


def _is_folder(path: str) -> bool:
    if not is_remote(path):
        return os.path.isdir(path)
    from tfx.dsl.io import fileio

    return bool(fileio.isdir(path))


def _names_in(folder: str) -> list[str]:
    if not is_remote(folder):
        return os.listdir(folder)
    from tfx.dsl.io import fileio

    return [str(name) for name in fileio.listdir(folder)]


def unpacked_bytes(files: Sequence[str]) -> int:
    """Return the estimated bytes of the files' text or records."""
    return sum(size_of(path) * _UNPACKED.get(os.path.splitext(path)[1].lower(), 1) for path in files)


def group_files(files: Sequence[str]) -> list[list[str]]:
    """Form groups of consecutive files, about 64 MB unpacked (estimated); the same files give the same groups."""
    groups: list[list[str]] = [[]]
    size = 0
    for path in files:
        if size >= _GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += unpacked_bytes([path])
    return groups


def size_of(path: str) -> int:
    """Return the bytes of a file.

    Raises:
      DataError: it cannot be read.
    """
    return file_state(path)[0]


def file_state(path: str) -> tuple[int, ...]:
    """Return the bytes of a file and its times of change in nanoseconds, which differ after it was written.

    A local file has the times of its content and of its inode. Programs set the first one (`cp --preserve`,
    `touch --reference`), and then two contents can have the same; the second one is the kernel's. A remote file has
    one time, 0 if its storage has none. TFX's `stat`, which rounds times to seconds, is for remote files only.

    Raises:
      DataError: it cannot be read.
    """
    with reading(path):
        if not is_remote(path):
            local = os.stat(path)
            return local.st_size, local.st_mtime_ns, local.st_ctime_ns
        from tfx.dsl.io import fileio

        remote = fileio.stat(path)
        return int(remote.length), int(remote.mtime_nsec)
