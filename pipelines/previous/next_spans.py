"""Finds the spans that have arrived and that the pushed tables were not trained on."""

from __future__ import annotations

import dataclasses

from components.example_gen.pieces import Span
from embedding_core.errors import ConfigError, DataError
from pipelines.config import PipelineConfig
from pipelines.config.bases import PUSHED
from pipelines.previous.finished_trainings import finished_trainings, trainings_behind
from pipelines.previous.references import BASE, START, references
from pipelines.previous.repeated_data import data_of_run, trained_data


@dataclasses.dataclass(frozen=True)
class Trained:
    """What the newest pushed version was trained on.

    Attributes:
      spans: all spans behind its tables; empty before the first push.
      runs: number of runs since, and with, the one whose Transform analysed its data; 0 before the first push.
    """

    spans: frozenset[Span] = frozenset()
    runs: int = 0


@dataclasses.dataclass(frozen=True)
class Arrived:
    """The spans that have arrived and that were not trained on.

    Attributes:
      new: those after the last span that was trained on, in order.
      late: those before it: training on them now would be out of order.
    """

    new: tuple[Span, ...]
    late: tuple[Span, ...]


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
    spans: set[Span] = set()
    for run, examples in trainings_behind(trainings, trainings.checkpoint_of(newest).uri):
        data = trained_data(examples)
        pieces = [] if data is None else [one.span for one in data.pieces]
        if not pieces or None in pieces:
            raise DataError(
                f"the training #{run.id} behind {newest.name} does not record the spans that it read: `follow` cannot "
                "tell what is new; begin in another `work_dir`."
            )
        spans.update(one for one in pieces if one is not None)
    return Trained(frozenset(spans), sum(1 for _ in trainings.transform_graphs_of(newest.run)))


def arrived_spans(config: PipelineConfig, trained: Trained) -> Arrived:
    """List the spans that have files and that were not trained on.

    Raises:
      ConfigError: the data cannot be listed.
    """
    try:
        present = [one.span for one in data_of_run(config).pieces if one.span is not None]
    except DataError:  # nothing has arrived yet
        return Arrived((), ())
    left = [one for one in present if one not in trained.spans]
    if not trained.spans:
        return Arrived(tuple(left), ())
    last = max(trained.spans, key=_order)
    late = tuple(one for one in left if _order(one) < _order(last))
    return Arrived(tuple(one for one in left if one not in late), late)


def _order(span: Span) -> tuple[int, str]:
    """Order spans: numbers by value, ISO dates as text."""
    return (span, "") if isinstance(span, int) else (0, span)
