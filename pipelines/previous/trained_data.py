"""Compares the data that a run reads with the data that previous runs trained on, and finds new spans."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from components.component_spec import DATA_FACT
from components.example_gen.data_files import (
    NoMatchError,
    Piece,
    Span,
    file_state,
    find_files,
    find_pieces,
    rows_digest,
)
from components.example_gen.spans import PatternSpans
from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import file_digest
from pipelines.config import PipelineConfig
from pipelines.config.pipeline_config import PUSHED
from pipelines.config.sections import data_location, data_spans, eval_pattern
from pipelines.lineage.graph import Node
from pipelines.pipeline import component_inputs
from pipelines.previous.finished_trainings import BASE, START, finished_trainings, references, trainings_behind


@dataclasses.dataclass(frozen=True)
class TrainedPiece:
    """A piece of data that a previous run was trained on; the fields are those that its Examples record.

    Attributes:
      state: digest of sizes and times; empty if the storage has no times, or if a release that did not record it wrote
        the Examples.
      digests: sha256 of each file if there are several; empty if a release that did not record it wrote the Examples.
    """

    span: Span | None
    source: str
    files: int
    size: int
    sha256: str
    state: str = ""
    digests: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TrainedData:
    """What one previous run was trained on: a digest of the settings that chose its rows, and the pieces."""

    rows: str
    pieces: Sequence[TrainedPiece]


@dataclasses.dataclass(frozen=True)
class RunData:
    """What this run reads: a digest of the settings that choose its rows, and the pieces.

    Attributes:
      for_eval: pieces that only the eval split is made of.
    """

    rows: str
    pieces: Sequence[Piece]
    for_eval: Sequence[Piece] = ()


Kind: TypeAlias = Literal["same", "part", "none"]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """What the data of this run and of a previous one have in common.

    Attributes:
      kind: relation of the two. "same" if both have the same spans (without spans, the same contents) and choose rows
        by the same settings; "none" if they share no data; "part" otherwise.
      shared: the pieces of this run that the previous one was trained on, each with the matching previous piece.
      changed: the shared pieces whose contents have changed since.
    """

    kind: Kind
    shared: Sequence[tuple[Piece, TrainedPiece]]
    changed: Sequence[Piece]


def data_of_run(config: PipelineConfig) -> RunData:
    """Find the data that the configuration names, as ExampleGen finds it."""
    rows = rows_digest(component_inputs.example_settings(config).to_json())
    judged = eval_pattern(config.data)
    return RunData(rows, _trained_on(config), () if judged is None else _pieces(config, judged, None))


def _trained_on(config: PipelineConfig) -> list[Piece]:
    return _pieces(config, data_location(config.data)[1], data_spans(config.data))


def _pieces(config: PipelineConfig, pattern: str, spans: PatternSpans | None) -> list[Piece]:
    base, _ = data_location(config.data)
    return find_pieces(find_files(base, pattern, component_inputs.data_format(config), spans).files, base, spans)


def trained_data(examples: Node | None) -> TrainedData | None:
    """Return what the Examples were made of; None if they do not record it."""
    fact: Mapping[str, Any] | None = None if examples is None else examples.facts.get(DATA_FACT)
    if not fact:
        return None
    pieces = [{**piece, "digests": tuple(piece.get("digests", ()))} for piece in fact["pieces"]]
    return TrainedData(fact["rows"], [TrainedPiece(**piece) for piece in pieces])


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
    several = [trained_piece for trained_piece in trained.pieces if trained_piece.digests]
    shared: list[tuple[Piece, TrainedPiece]] = []
    used: set[int] = set()  # two pieces of equal content do not match one that was trained on once
    for piece in data.pieces:
        match = by_span.get((piece.span, piece.source)) or _same_content(
            piece, by_size.get(piece.size, ()), several, used
        )
        if match is not None:
            shared.append((piece, match))
            used.add(id(match))
    is_same = (
        len(used) == len(data.pieces) == len(trained.pieces)
        and all(piece.span == match.span for piece, match in shared)
        and data.rows == trained.rows
    )
    changed = [piece for piece, match in shared if has_changed(piece, match)]
    return Overlap("same" if is_same else "part" if shared else "none", shared, changed)


def has_changed(piece: Piece, trained: TrainedPiece) -> bool:
    """Return whether the files of a piece have other contents than when it was trained on.

    Reads the files only if count and size are equal and the times differ or are not known.
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


def _same_content(
    piece: Piece, of_size: Sequence[TrainedPiece], several: Sequence[TrainedPiece], used: Collection[int]
) -> TrainedPiece | None:
    """Return a trained piece with the content of a piece; for a file without a span, also one that has such a file.

    Args:
      piece: a piece of this run.
      of_size: the trained pieces of its size.
      several: the trained pieces of several files.
      used: ids of the trained pieces that others match; one that is not among them is preferred.
    """
    same = [entry for entry in of_size if entry.sha256 == content_of(piece)]
    if not same and piece.span is None:
        same = [entry for entry in several if content_of(piece) in entry.digests]
    return min(same, key=lambda entry: (entry.span != piece.span, id(entry) in used), default=None)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What the newest pushed version was trained on.

    Attributes:
      spans: what the Examples recorded of each span behind its tables, when it was last trained on; empty before the
        first push.
      contents: the span that each content was trained on as, by bytes and digest.
      runs: number of runs that used the current TransformGraph, including the run that made it; 0 before the first
        push.
      model_run: id of the version's ModelRun in ML Metadata; None before the first push.
    """

    spans: Mapping[Span, TrainedPiece] = dataclasses.field(default_factory=dict)
    contents: Mapping[tuple[int, str], Span] = dataclasses.field(default_factory=dict)
    runs: int = 0
    model_run: int | None = None


@dataclasses.dataclass(frozen=True)
class Arrived:
    """The spans that have arrived and that were not trained on, or not with the files that they have now.

    Attributes:
      new: those after the last span that was trained on, in order.
      late: those before it: training on them now would be out of order.
      changed: those that were trained on, and whose files have other contents now.
      copied: those whose files equal those of a span that was trained on, or of a new one, byte for byte; each with
        that span. They are neither new nor late.
    """

    new: tuple[Span, ...] = ()
    late: tuple[Span, ...] = ()
    changed: tuple[Span, ...] = ()
    copied: Mapping[Span, Span] = dataclasses.field(default_factory=dict)


def check_follows(config: PipelineConfig) -> None:
    """Check that each run of a configuration goes on from the one before, by spans.

    Raises:
      ConfigError: the path has no spans, or the tables or vocabularies do not start from the pushed version.
    """
    if not config.data.has_spans:
        raise ConfigError(
            f"`data.path` is {config.data.path!r}: `follow` needs spans in it, {{SPAN}} or {{YYYY}}-{{MM}}-{{DD}}, so "
            "that new files can be told from those that were trained on."
        )
    given = references(config)
    for key in (START, BASE):
        if given[key] != PUSHED:
            section = key.partition(".")[0]
            raise ConfigError(
                f"`{key}` is {given[key]!r}: with `follow` each run goes on from the pushed version; set `{section}: "
                f"{PUSHED}`."
            )
    if config.data.spans is not None and config.data.spans.last is not None:
        raise ConfigError(
            f"`data.spans.last` is {config.data.spans.last!r}: `follow` reads spans as they arrive; leave it out."
        )


def trained_spans(config: PipelineConfig) -> Trained:
    """Read from ML Metadata which spans the newest pushed version was trained on.

    Raises:
      ConfigError: the pushed versions and the metadata do not agree; see `FinishedTrainings.candidates`.
      DataError: a training behind the version does not record its spans.
    """
    trainings = finished_trainings(config)
    newest = next(trainings.candidates(PUSHED), None)
    if newest is None:
        return Trained()
    spans: dict[Span, TrainedPiece] = {}
    contents: dict[tuple[int, str], Span] = {}
    for run, examples in trainings_behind(trainings, trainings.checkpoint_of(newest).uri):
        data = trained_data(examples)
        pieces = [] if data is None else data.pieces
        if not pieces or any(piece.span is None for piece in pieces):
            raise DataError(
                f"the training #{run.id} behind {newest.name} does not record the spans that it read: `follow` cannot "
                "tell what is new; begin in another `work_dir`."
            )
        for piece in pieces:
            if piece.span is not None:
                spans.setdefault(piece.span, piece)
                contents.setdefault((piece.size, piece.sha256), piece.span)
    graphs = sum(1 for _ in trainings.transform_graphs_of(newest.run))
    return Trained(spans, contents, graphs, newest.run.id)


def arrived_spans(config: PipelineConfig, trained: Trained) -> Arrived:
    """List the spans that have files and that were not trained on.

    Spans are copies only if `warm_start.repeated_data` refuses data that was trained on.

    Raises:
      DataError: the data cannot be listed.
    """
    try:
        pieces = {piece.span: piece for piece in _trained_on(config) if piece.span is not None}
    except NoMatchError:  # nothing has arrived yet
        return Arrived()
    left = {span: files for span, files in pieces.items() if span not in trained.spans}
    trains_again = config.warm_start is not None and config.warm_start.repeated_data == "train"
    copied = {} if trains_again else _copied(left, trained)
    left = {span: files for span, files in left.items() if span not in copied}
    last = max(map(span_order, trained.spans), default=None)
    late = tuple(span for span in left if last is not None and span_order(span) < last)
    kept = [(span, files) for span, files in pieces.items() if span in trained.spans]
    changed = tuple(span for span, files in kept if has_changed(files, trained.spans[span]))
    return Arrived(tuple(span for span in left if span not in late), late, changed, copied)


def _copied(left: Mapping[Span, Piece], trained: Trained) -> dict[Span, Span]:
    """Return each span whose content equals that of a trained span or of an earlier new span, with that span."""
    sizes = collections.Counter([files.size for files in left.values()])
    sizes.update({size for size, _ in trained.contents})
    copied = {}
    contents = dict(trained.contents)
    for span, files in left.items():
        if sizes[files.size] > 1:  # only then its files are read
            before = contents.setdefault((files.size, content_of(files)), span)
            if before != span:
                copied[span] = before
    return copied


def chosen_spans(
    config: PipelineConfig, new: tuple[Span, ...], trained: Trained, refused: tuple[Span, ...] = ()
) -> tuple[Span, ...]:
    """Choose the spans of the next run: all new ones, or the first `follow.spans_per_run`.

    If the last run pushed nothing, the next run reads its spans again plus `spans_per_run` new ones.

    Args:
      config: the configuration.
      new: the spans that have arrived and that were not trained on.
      trained: what the pushed version was trained on.
      refused: spans of the last run, if it pushed nothing.
    """
    count = config.follow.spans_per_run
    if count is None or not trained.spans:
        return new
    return new[: count + len(refused)] if new[: len(refused)] == refused else new[:count]


def span_order(span: Span) -> tuple[int, str]:
    """Order spans: numbers by value, ISO dates as text."""
    return (span, "") if isinstance(span, int) else (0, span)
