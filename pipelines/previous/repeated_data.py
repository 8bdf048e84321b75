"""Compares the data that a run reads with the data that previous runs were trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from components.component_spec import DATA_FACT
from components.example_gen.data_files import (
    Piece,
    Span,
    file_state,
    find_files,
    find_pieces,
    rows_digest,
)
from embedding_core.storage import file_digest
from pipelines.config import PipelineConfig
from pipelines.config.data import data_location
from pipelines.lineage.graph import Node
from pipelines.pipeline import component_inputs


@dataclasses.dataclass(frozen=True)
class TrainedPiece:
    """A piece of data that a previous run was trained on; the fields are those that its Examples record.

    `state` is empty if it is not known, as to the releases that did not record it.
    """

    span: Span | None
    source: str
    files: int
    size: int
    sha256: str
    state: str = ""


@dataclasses.dataclass(frozen=True)
class TrainedData:
    """What one previous run was trained on: a digest of the settings that chose its rows, and the pieces."""

    rows: str
    pieces: Sequence[TrainedPiece]


@dataclasses.dataclass(frozen=True)
class RunData:
    """What this run reads: a digest of the settings that choose its rows, and the pieces."""

    rows: str
    pieces: Sequence[Piece]


Kind: TypeAlias = Literal["same", "part", "none"]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """What the data of this run and of a previous one have in common.

    Attributes:
      kind: "same" if both are the data of one step: the same spans (without spans, the same contents) with rows chosen
        by the same settings. "part" if they share data in any other way, and "none" if they share none.
      shared: the pieces of this run that the previous one was trained on, each with the matching previous piece.
      changed: the shared pieces whose contents have changed since.
    """

    kind: Kind
    shared: Sequence[tuple[Piece, TrainedPiece]]
    changed: Sequence[Piece]


def data_of_run(config: PipelineConfig) -> RunData:
    """Find the data that the configuration names, as ExampleGen finds it."""
    settings = component_inputs.example_settings(config)
    base, pattern = data_location(config.data)
    files = find_files(base, pattern, component_inputs.data_format(config), settings.spans).files
    rows = rows_digest(settings.to_json())
    return RunData(rows, find_pieces(files, base, settings.spans))


def trained_data(examples: Node | None) -> TrainedData | None:
    """Return what the Examples were made of; None if they do not record it."""
    fact: Mapping[str, Any] | None = None if examples is None else examples.facts.get(DATA_FACT)
    if not fact:
        return None
    return TrainedData(fact["rows"], [TrainedPiece(**piece) for piece in fact["pieces"]])


def compare(data: RunData, trained: TrainedData) -> Overlap:
    """Compare this run's data with that of a previous run."""
    by_span: dict[tuple[Span | None, str], TrainedPiece] = {
        (trained_piece.span, trained_piece.source): trained_piece
        for trained_piece in trained.pieces
        if trained_piece.span is not None
    }
    by_size: dict[int, list[TrainedPiece]] = {}
    for trained_piece in trained.pieces:
        by_size.setdefault(trained_piece.size, []).append(trained_piece)
    matches = [
        (piece, by_span.get((piece.span, piece.source)) or _same_content(piece, by_size)) for piece in data.pieces
    ]
    shared = [(piece, match) for piece, match in matches if match is not None]
    is_same = (
        len(shared) == len(data.pieces) == len(trained.pieces)
        and all(piece.span == match.span for piece, match in shared)
        and data.rows == trained.rows
    )
    changed = [piece for piece, match in shared if has_changed(piece, match)]
    return Overlap("same" if is_same else "part" if shared else "none", shared, changed)


def has_changed(piece: Piece, trained: TrainedPiece) -> bool:
    """Return whether the files of a piece have other contents than when it was trained on.

    The files are read only if their number and size are the same and their state is another: one was written or moved.
    """
    if (len(piece.files), piece.size) != (trained.files, trained.size):
        return True
    same_state = piece.state and piece.state == trained.state
    return not same_state and content_of(piece) != trained.sha256


_DIGESTS: dict[str, tuple[tuple[int, ...], str]] = {}
"""The sha256 of each file that this process read, with the state that it had: `follow` looks every few seconds."""


def content_of(piece: Piece) -> str:
    """Return the digest of a piece's contents; a file is read once for each of its states."""
    return piece.sha256(_digest)


def _digest(path: str) -> str:
    state = file_state(path)
    known = _DIGESTS.get(path)
    if known is None or known[0] != state:
        known = _DIGESTS[path] = state, str(file_digest(path)["sha256"])
    return known[1]


def _same_content(piece: Piece, by_size: Mapping[int, Sequence[TrainedPiece]]) -> TrainedPiece | None:
    same = [candidate for candidate in by_size.get(piece.size, ()) if candidate.sha256 == content_of(piece)]
    return next((candidate for candidate in same if candidate.span == piece.span), same[0] if same else None)
