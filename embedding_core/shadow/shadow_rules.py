"""Declares what a new version must keep to when recorded requests are replayed on it and on an old version."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from embedding_core.schema import (
    FROM_NUMPY,
    ByName,
    Count,
    Listed,
    Mistakes,
    NonNegative,
    Positive,
    PositiveNumber,
    Rule,
    Section,
    Text,
)

_Part = Annotated[float, Field(ge=0, le=1), FROM_NUMPY, Rule("a number from 0 to 1")]


class OutputBounds(Section):
    """The bounds of one output; at least one.

    The difference between two answers to a row is the largest difference of its numbers. Scores of ranked tokens are
    compared by token; the difference of ranked tokens is the share of them that one answer lacks.

    Attributes:
      mean: largest accepted mean of the differences over all rows.
      p50, p90, p99: largest accepted quantile of the differences; quantiles are at most 1% off.
      max: largest accepted difference.
      min_overlap: least mean share of tokens that both answers contain, for an output of ranked tokens.
    """

    mean: NonNegative | None = None
    p50: NonNegative | None = None
    p90: NonNegative | None = None
    p99: NonNegative | None = None
    max: NonNegative | None = None
    min_overlap: _Part | None = None

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if all(getattr(self, name) is None for name in OutputBounds.model_fields):
            yield "", f"has no bound: give it one of {', '.join(OutputBounds.model_fields)}."


class LatencyBounds(Section):
    """The bounds of the latency of the new version.

    Attributes:
      p50, p95, p99: largest accepted ratio of the new version's quantile to the old version's, such as 1.5.
    """

    p50: PositiveNumber | None = None
    p95: PositiveNumber | None = None
    p99: PositiveNumber | None = None


class ShadowRules(Section):
    """How recorded requests are replayed on two versions, and what the new version must keep to.

    Attributes:
      outputs: bounds of the difference between the answers, by output: `probability`, or `raw/probability` for the
        output of one signature. Without bounds, differences of numbers are only reported.
      max_refused: largest accepted share of rows that the old version answers and the new version refuses.
      max_not_finite: largest accepted share of rows where an output of the new version has a NaN or an infinity, and
        that of the old version has numbers.
      latency: bounds of the latency.
      max_memory: largest accepted ratio of the new version's peak of resident memory to the old version's.
      min_rows: least number of rows that both versions must have answered.
      model: name of the served model whose requests are replayed; null if the log has requests for one model only.
      slices: columns of the requests by whose values the differences are also reported.
      worst_rows: number of rows with the largest differences that are reported for each output.
    """

    outputs: ByName[OutputBounds] = Field(default_factory=dict)
    max_refused: _Part = 0.0
    max_not_finite: _Part = 0.0
    latency: LatencyBounds = LatencyBounds()
    max_memory: PositiveNumber | None = None
    min_rows: Positive = 1
    model: Text | None = None
    slices: Listed[Text] = ()
    worst_rows: Count = 10
