"""Which data a run reads, which data earlier runs were trained on, and what the two have in common."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from components.example_gen.files import find_files, without_spans
from components.example_gen.pieces import DATA_FACT, Piece, Span, find_pieces, rows_digest
from embedding_core.checkpoint.sealed import file_digest
from pipelines.checks.early_checks import check_data_settings
from pipelines.config import PipelineConfig
from pipelines.lineage.graph import Node
from pipelines.pipeline import component_inputs

__all__ = ["AskedData", "Known", "Overlap", "TrainedData", "asked_data", "compare", "trained_data", "words_of"]


@dataclasses.dataclass(frozen=True)
class Known:
    """A piece of data that an earlier run was trained on; the fields are those of its Examples."""

    span: Span | None
    source: str
    files: int
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class TrainedData:
    """What one earlier run was trained on: a digest of the settings that chose its rows, and the pieces."""

    rows: str
    pieces: Sequence[Known]


@dataclasses.dataclass(frozen=True)
class AskedData:
    """What this run reads; contents are read only if the sizes agree."""

    rows: str
    pieces: Sequence[Piece]

    @functools.cached_property
    def _digests(self) -> dict[Piece, str]:
        return {}

    def sha256(self, piece: Piece) -> str:
        """The digest of a piece, computed once."""
        if piece not in self._digests:
            self._digests[piece] = piece.sha256(lambda path: str(file_digest(path)["sha256"]))
        return self._digests[piece]


Kind: TypeAlias = Literal["same", "part", "none"]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """What the data of this run and of an earlier one have in common.

    Attributes:
      kind: "same" if it is the data of the same step (the same spans; without spans, the same contents; rows chosen
        alike), "part" if some of it is shared otherwise, or "none".
      shared: the pieces of this run that the earlier one was trained on, each with the piece it was.
      changed: those of them whose contents are not what they were.
    """

    kind: Kind
    shared: Sequence[tuple[Piece, Known]]
    changed: Sequence[Piece]


def asked_data(config: PipelineConfig) -> AskedData:
    """The data that the configuration names, found as ExampleGen finds it."""
    settings = check_data_settings(config)
    base, pattern = component_inputs.input_location(config)
    files = find_files(base, without_spans(pattern), component_inputs.data_format(config), settings.spans).files
    rows = rows_digest(json.dumps(component_inputs.example_settings(config)))
    return AskedData(rows, find_pieces(files, base, settings))


def trained_data(examples: Node | None) -> TrainedData | None:
    """What the Examples were made of; None if they do not say."""
    fact: Mapping[str, Any] | None = None if examples is None else examples.facts.get(DATA_FACT)
    if not fact:
        return None
    return TrainedData(fact["rows"], [Known(**piece) for piece in fact["pieces"]])


def compare(asked: AskedData, trained: TrainedData) -> Overlap:
    """What this run's data has in common with that of an earlier run."""
    by_span: dict[tuple[Span | None, str], Known] = {}
    for one in trained.pieces:
        if one.span is not None:
            by_span[one.span, one.source] = one
    by_size: dict[int, list[Known]] = {}
    for one in trained.pieces:
        by_size.setdefault(one.size, []).append(one)
    found = [(piece, _match(asked, piece, by_span, by_size)) for piece in asked.pieces]
    shared = [(piece, known) for piece, known in found if known is not None]
    alike = (
        len(shared) == len(asked.pieces) == len(trained.pieces)
        and all(piece.span == known.span for piece, known in shared)
        and asked.rows == trained.rows
    )
    changed = [piece for piece, known in shared if known.size != piece.size or asked.sha256(piece) != known.sha256]
    return Overlap("same" if alike else "part" if shared else "none", shared, changed)


def _match(
    asked: AskedData,
    piece: Piece,
    by_span: Mapping[tuple[Span | None, str], Known],
    by_size: Mapping[int, Sequence[Known]],
) -> Known | None:
    if (piece.span, piece.source) in by_span:
        return by_span[piece.span, piece.source]
    same = [one for one in by_size.get(piece.size, ()) if one.sha256 == asked.sha256(piece)]
    return next((one for one in same if one.span == piece.span), same[0] if same else None)


def words_of(pieces: Sequence[Piece | Known]) -> str:
    """The pieces as a person names them: spans, or files; the first and the last if there are many."""
    spans = [str(piece.source if piece.span is None else piece.span) for piece in pieces]
    kind = "span" if pieces and pieces[0].span is not None else "file"
    if len(spans) > 3:
        return f"{len(spans)} {kind}s, {spans[0]} to {spans[-1]}"
    return f"{kind}{'s' if len(spans) > 1 else ''} {', '.join(spans)}"
