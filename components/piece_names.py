"""Names the pieces of data that were read, span by span or file by file. Imports neither TFX nor TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from embedding_core.schema import Json


class Named(Protocol):
    """A piece of data, named by its span, or by its file if it has none."""

    @property
    def span(self) -> str | int | None:
        """A date, a number, or None."""

    @property
    def source(self) -> str:
        """The pattern of the files, or the path of the one file."""


def describe_pieces(pieces: Sequence[Named]) -> str:
    """Name the pieces by their spans or files; if there are more than three, name only the first and the last."""
    return _described([(piece.span, piece.source) for piece in pieces])


def describe_fact(pieces: Iterable[Json]) -> str:
    """Name pieces as `describe_pieces` does, from the custom property `DATA_FACT` of Examples."""
    return _described([(piece["span"], piece["source"]) for piece in pieces])


def _described(pieces: Sequence[tuple[str | int | None, str]]) -> str:
    names = [str(source if span is None else span) for span, source in pieces]
    kind = "span" if pieces and pieces[0][0] is not None else "file"
    if len(names) > 3:
        return f"{len(names)} {kind}s, {names[0]} to {names[-1]}"
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
