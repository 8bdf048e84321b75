"""Finds, fingerprints and opens the files of the data, and assigns them to workers. Only remote files load TFX.

`input_base` is literal: no character of it is a pattern. `pattern` is a glob with `*`, `?` and `[...]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import glob
import hashlib
import io
import itertools
import json
import lzma
import os
import posixpath
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

from components.example_gen.settings import Compression, DataFormat, Settings, compression_of, format_of, unpacked
from components.example_gen.spans import Gaps, PatternSpans
from embedding_core.errors import DataError, nearest
from embedding_core.schema import Json
from embedding_core.storage import bounds, check_regular, is_folder, is_remote, names_in

# Opens and decompresses files, local or on TFX's file systems, with errors that name the file.
#
# TensorFlow and TFX are loaded only for remote files; Python opens local files itself.

PROGRESS_BYTES = 1000
"""A unit of progress."""

_BUFFER = 1 << 20
_START = 10


_bytes = Counter[str]()


def bytes_read() -> int:
    """Return the bytes that this process read from files of the data, as they are stored."""
    return _bytes["read"]


def _count(read: int) -> int:
    _bytes["read"] += read
    return read


class _Local(io.FileIO):
    def readinto(self, buffer: Any) -> int:
        return _count(super().readinto(buffer))


class _Remote(io.RawIOBase):
    """Adapts a file of TFX's file systems to `io.RawIOBase`, which `io.BufferedReader` requires."""

    def __init__(self, path: str) -> None:
        from tfx.dsl.io import fileio

        self._file: Any = fileio.open(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return _count(len(data))

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Unpacked(io.BufferedReader):
    """A decompressed stream that also closes the compressed one, which decompressors leave open."""

    def __init__(self, packed: io.BufferedReader, compression: Compression) -> None:
        super().__init__(unpacked(packed, compression), buffer_size=_BUFFER)
        self._packed = packed

    def close(self) -> None:
        super().close()
        self._packed.close()


def open_file(path: str) -> io.BufferedReader:
    """Return the file as a seekable binary stream.

    Raises:
      OSError: it is missing, cannot be read, or is not a regular file.
    """
    if is_remote(path):
        return io.BufferedReader(_Remote(path), buffer_size=_BUFFER)
    check_regular(path)
    return io.BufferedReader(_Local(path), buffer_size=_BUFFER)


def open_unpacked(path: str, compression: Compression | None = None) -> io.BufferedReader:
    """Return the file as a decompressed binary stream.

    Args:
      path: the file.
      compression: the configured one; None recognizes it by the file's first bytes, not by its name.

    Raises:
      DataError: the file is not compressed as configured.
    """
    stream = open_file(path)
    present = compression_of(stream.peek(_START))
    if compression is not None and compression not in (present, "none"):
        stream.close()
        what = "not compressed" if present == "none" else f"compressed as {present}"
        raise DataError(
            f"{path}: `data.compression` is {compression!r}, and by its first bytes the file is {what}: correct the "
            "key, or leave it out to have every file recognized by its first bytes."
        )
    packing = present if compression is None else compression
    return stream if packing == "none" else _Unpacked(stream, packing)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert the errors of reading a file to a DataError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}): write it again.") from error
    except OSError as error:
        if error.errno is None:  # raised by a decompressor, not by the system
            raise DataError(f"{path} is truncated or damaged ({error}): write it again.") from error
        raise DataError(f"{path} cannot be read: {error}") from error
    except Exception as error:
        # TensorFlow's file systems raise OpError, which is available only if TensorFlow is loaded.
        if "tensorflow" in sys.modules and isinstance(error, sys.modules["tensorflow"].errors.OpError):
            raise DataError(f"{path} cannot be read: {error}") from error
        raise


def check_columns(path: str, present: Sequence[str], settings: Settings) -> None:
    """Check the names of a file's columns.

    Args:
      path: the file.
      present: names of its columns.
      settings: which columns are needed, which are made of them, and which names may be shown.

    Raises:
      DataError: there are too many columns, a name occurs twice, a needed column is absent, or a column has the name
        of a new one.
    """
    check_number_of_columns(path, len(present))
    counts = Counter(present)
    twice = next((name for name in present if counts[name] > 1), None)
    if twice is not None:
        places = [at for at, name in enumerate(present, start=1) if name == twice]
        raise DataError(
            f"{path}: column {settings.shown_name(twice)!r} occurs {len(places)} times in the header, first as columns "
            f"{places[0]} and {places[1]}: names must be unique."
        )
    for name in settings.needed:
        if name not in counts:
            known = map(settings.shown_name, present)
            raise DataError(f"{path}: column {name!r} is missing: {nearest(name, known)}")
    check_made(path, present, settings.made)


def check_number_of_columns(path: str, count: int) -> None:
    """Check that a file has at most `bounds.COLUMNS` columns.

    Raises:
      DataError: it has more.
    """
    if count > bounds.COLUMNS:
        raise DataError(
            f"{path} has {count:,} columns, and {bounds.COLUMNS:,} is the most that is read: correct the delimiter and "
            "the line breaks, or write only the columns that you need, and many similar ones as one column of lists."
        )


def check_made(path: str, present: Sequence[str], made: Sequence[str]) -> None:
    """Check that no column of the file has the name of a new column.

    Raises:
      DataError: a column has such a name.
    """
    for name in (name for name in made if name in present):
        raise DataError(
            f"{path}: there is a column {name!r}, and `data.histories.columns` makes one of this name: give the new "
            "one another name."
        )


# Finds the files of the data, and assigns them to workers. TFX is loaded for remote files only.

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


class NoMatchError(DataError):
    """No file has the name of the data, or the folder does not exist."""


class DataFiles(NamedTuple):
    """The files to read and the matching files that are ignored, both sorted, and the spans without a file.

    `eval` are the files whose rows are all for the eval split, sorted; `files` are then for the train split.
    """

    files: list[str]
    ignored: list[str]
    gaps: Gaps
    eval: Sequence[str] = ()


def find_files(
    input_base: str,
    pattern: str,
    data_format: str | None,
    spans: PatternSpans | None,
    eval_pattern: str | None = None,
) -> DataFiles:
    """Find the files that match, sorted by span and name.

    A glob ignores files whose names start with "_" or ".", which other programs use as markers. If the file name in
    `pattern` is "*" and some matching files have the extension of `data_format`, only these are taken. With spans, only
    files whose names have a date or number in place of the placeholders are taken. The other files are returned as
    ignored.

    Args:
      input_base: the folder of the data, taken literally.
      pattern: glob of the files below it; may have the placeholders of spans.
      data_format: format of the files to take if the file name in `pattern` is "*"; None takes all known formats.
      spans: the spans to read; None reads all files that match.
      eval_pattern: glob of the files whose rows are all for the eval split; None has none.

    Raises:
      NoMatchError: the folder does not exist, or no file matches.
      DataError: the folder cannot be read, or a file matches both patterns.
    """
    pattern = without_spans(pattern)
    with reading(posixpath.join(input_base, pattern)):
        matches = sorted(_matching(input_base, pattern))
    files = [path for path in matches if _is_meant(posixpath.basename(path), posixpath.basename(pattern))]
    if posixpath.basename(pattern) == "*":
        formats = get_args(DataFormat) if data_format is None else (data_format,)
        files = [path for path in files if format_of(path) in formats] or files
    numbered = [] if spans is None else _numbered(files, input_base, spans.pattern)
    ignored = {*matches} - {*(files if spans is None else (path for _, path in numbered))}
    spanned = [] if spans is None else _asked_for(numbered, spans)
    if spans is not None:
        files = [path for _, path in spanned]
    if not files:
        raise NoMatchError(_no_match(input_base, pattern, matches, spans))
    for_eval: list[str] = []
    if eval_pattern is not None:
        for_eval, others, *_ = find_files(input_base, eval_pattern, data_format, None)
        ignored = {*ignored, *others} - {*files, *for_eval}
    for path in sorted({*for_eval} & {*files}):
        raise DataError(
            f"{path} would be in both splits: it is among the files of `data.path` and of `data.eval_path`; give paths "
            "that have no file in common."
        )
    gaps = Gaps() if spans is None else spans.gaps({span for span, _ in spanned})
    return DataFiles(files, sorted(ignored), gaps, for_eval)


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
    return _asked_for(_numbered(files, input_base, spans.pattern), spans)


def _numbered(files: Sequence[str], input_base: str, pattern: str) -> list[tuple[int, str]]:
    """List the files that are of a span, whichever it is, with its number, sorted."""
    expression = re.compile(re.escape(posixpath.join(input_base, "")) + _expression(pattern), re.DOTALL)
    matches = [(expression.fullmatch(path), path) for path in files]
    numbered = ((_span(match.groupdict()), path) for match, path in matches if match)
    return sorted((span, path) for span, path in numbered if span is not None)


def _asked_for(numbered: Sequence[tuple[int, str]], spans: PatternSpans) -> list[tuple[int, str]]:
    (first, last), left_out = spans.numbers, spans.left_out
    return [(span, path) for span, path in numbered if first <= span <= last and span not in left_out]


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


def _span(parts: Mapping[str, str]) -> int | None:
    """Return the number of a span: for a date its day since year 1, or None if the date is invalid."""
    if "span" in parts:
        return int(parts["span"])
    try:
        return datetime.date(int(parts["year"]), int(parts["month"]), int(parts["day"])).toordinal()
    except ValueError:
        return None


def _no_match(input_base: str, pattern: str, matches: Sequence[str], spans: PatternSpans | None) -> str:
    full = posixpath.join(input_base, pattern)
    if matches and spans:
        first = "the first" if spans.first is None else spans.first
        last = "the last" if spans.last is None else spans.last
        return (
            f"none of the {len(matches)} files that match {full!r} is of a span from {first} to {last}: change "
            "`data.spans`, or correct the placeholders in `data.path`."
        )
    folder = posixpath.dirname(pattern)
    if any(sign in folder for sign in "*?["):
        return f"no file matches {full!r}: correct the path or the glob."
    folder = posixpath.join(input_base, folder).rstrip("/")
    if not is_folder(folder):
        return f"the folder {folder!r} does not exist: give the path of the data (here {full!r})."
    known = names_in(folder)
    return f"no file matches {full!r}: " + (nearest(posixpath.basename(full), known) if known else "it is empty.")


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


# Describes the data that was read, span by span or file by file, so that a later run can recognize it.

Span: TypeAlias = str | int


@dataclasses.dataclass(frozen=True)
class Piece:
    """The files of one span; or one file, if the pattern has no spans.

    Attributes:
      span: a date "2011-10-01", a number, or None.
      source: the pattern of the files with its placeholders, or the path of the one file.
      files: their paths.
      size: bytes of all of them.
      state: digest of their sizes and times of change: if it is the same, so are the contents. Empty if the storage of
        the files has no times.
    """

    span: Span | None
    source: str
    files: tuple[str, ...]
    size: int
    state: str

    def sha256(self, digest_of: Callable[[str], str]) -> str:
        """Compute one digest over the contents of the files; names and order do not count.

        Args:
          digest_of: function that returns the sha256 of a file.
        """
        digests = self.digests(digest_of)
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def digests(self, digest_of: Callable[[str], str]) -> list[str]:
        """Return the sha256 of each file, sorted."""
        return sorted(map(digest_of, self.files))


def find_pieces(files: Sequence[str], input_base: str, spans: PatternSpans | None) -> list[Piece]:
    """Group the files into pieces: one per span, in order, or one per file without spans.

    Args:
      files: paths that `find_files` returned.
      input_base: the folder of the data.
      spans: the spans that are read; None if the pattern has none.
    """
    if spans is None:
        return [_piece(None, path, (path,)) for path in files]
    source = posixpath.join(input_base, spans.pattern)
    grouped = itertools.groupby(span_numbers(files, input_base, spans), key=lambda item: item[0])
    return [_piece(spans.name_of(span), source, tuple(path for _, path in members)) for span, members in grouped]


def _piece(span: Span | None, source: str, paths: tuple[str, ...]) -> Piece:
    states = sorted(map(file_state, paths))
    state = ""
    if all(all(times) for _, *times in states):
        state = hashlib.sha256(json.dumps(states).encode()).hexdigest()
    return Piece(span, source, paths, sum(size for size, *_ in states), state)


def pieces_fact(
    pieces: Iterable[Piece], settings_json: str, digests: Mapping[str, str], eval_pieces: Iterable[Piece] = ()
) -> Json:
    """Describe the data of Examples: `pieces`, and `rows`, which is a digest of the settings that select rows.

    Args:
      pieces: pieces of the data.
      settings_json: the settings of ExampleGen.
      digests: sha256 of every file.
      eval_pieces: the files that only the eval split is made of, described as `eval` if there are any: nothing is
        trained on them.
    """
    for_eval = _entries(eval_pieces, digests)
    fact = {"rows": rows_digest(settings_json), "pieces": _entries(pieces, digests)}
    return {**fact, "eval": for_eval} if for_eval else fact


def _entries(pieces: Iterable[Piece], digests: Mapping[str, str]) -> list[Json]:
    return [
        {
            "span": piece.span,
            "source": piece.source,
            "files": len(piece.files),
            "size": piece.size,
            "sha256": piece.sha256(digests.__getitem__),
            "state": piece.state,
            **({"digests": piece.digests(digests.__getitem__)} if len(piece.files) > 1 else {}),
        }
        for piece in pieces
    ]


def rows_digest(settings_json: str) -> str:
    """Compute a digest of the settings that determine the rows of each split: `row_filters`, `split`, `histories`."""
    given = json.loads(settings_json)
    chosen = {key: given.get(key) or None for key in ("row_filters", "split")}
    if given.get("histories"):
        chosen["histories"] = given["histories"]
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
