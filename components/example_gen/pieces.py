"""Describes the data that was read, span by span or file by file, so that a later run can recognize it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from components.example_gen.data_files import file_state, span_numbers
from components.example_gen.settings import Settings
from embedding_core.schema import Json

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
        digests = sorted(digest_of(path) for path in self.files)
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def find_pieces(files: Sequence[str], input_base: str, settings: Settings) -> list[Piece]:
    """Group the files into pieces: one per span, in order, or one per file without spans.

    Args:
      files: paths that `find_files` returned.
      input_base: the folder of the data.
      settings: settings of ExampleGen.
    """
    if settings.spans is None:
        return [_piece(None, path, (path,)) for path in files]
    source = posixpath.join(input_base, settings.spans.pattern)
    dated = sorted(span_numbers(files, input_base, settings.spans))
    grouped = itertools.groupby(dated, key=lambda one: one[0])
    by_name = [(settings.spans.name_of(span), tuple(path for _, path in members)) for span, members in grouped]
    return [_piece(span, source, paths) for span, paths in by_name]


def _piece(span: Span | None, source: str, paths: tuple[str, ...]) -> Piece:
    states = sorted(map(file_state, paths))
    state = ""
    if all(all(times) for _, *times in states):
        state = hashlib.sha256(json.dumps(states).encode()).hexdigest()
    return Piece(span, source, paths, sum(size for size, *_ in states), state)


def pieces_fact(pieces: Iterable[Piece], settings_json: str, digests: Mapping[str, str]) -> Json:
    """Describe the data of Examples: `pieces`, and `rows`, which is a digest of the settings that select rows.

    Args:
      pieces: pieces of the data.
      settings_json: the settings of ExampleGen.
      digests: sha256 of every file.
    """
    entries = [
        {
            "span": piece.span,
            "source": piece.source,
            "files": len(piece.files),
            "size": piece.size,
            "sha256": piece.sha256(digests.__getitem__),
            "state": piece.state,
        }
        for piece in pieces
    ]
    return {"rows": rows_digest(settings_json), "pieces": entries}


def rows_digest(settings_json: str) -> str:
    """Compute a digest of the settings that determine the rows of each split: `row_filters`, `split`, `histories`."""
    given = json.loads(settings_json)
    chosen = {key: given.get(key) or None for key in ("row_filters", "split")}
    if given.get("histories"):
        chosen["histories"] = given["histories"]
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
