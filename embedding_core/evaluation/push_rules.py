"""Applies the rules that a model's eval split and retrieval must pass before a push."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from embedding_core.config import RetrievalMetric
from embedding_core.evaluation.retrieval_figures import RetrievalFigures
from embedding_core.evaluation.split_counts import SplitCounts
from embedding_core.schema import Count, Section

_DEFAULT: RetrievalMetric = "Recall@10"


class RecallBounds(Section):
    """What one metric of retrieval has to reach.

    Attributes:
      min: least value.
      min_over_popularity: least difference to popularity's value.
    """

    min: float | None = None
    min_over_popularity: float | None = None


class Rules(Section):
    """What a model has to pass.

    Attributes:
      min_rows: least number of rows of the eval split.
      min_rows_per_class: least number of rows of each label there.
      draws_negatives: whether negatives are drawn while training: then the split may hold positives alone.
      retrieval: bounds by metric. If it is empty and the split holds positives alone, which no other metric can judge,
        a two-tower model has to reach popularity's Recall@10.

    Raises:
      ConfigError: a number of rows is negative, or a metric or bound is unknown.
    """

    min_rows: Count = 0
    min_rows_per_class: Count = 0
    draws_negatives: bool = False
    retrieval: Mapping[RetrievalMetric, RecallBounds] = Field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one rule.

    Attributes:
      name: name of the figure.
      value: measured value; None if it could not be measured.
      bound: required value, in words.
      met: whether the rule is met.
      reason: sentence that says why not; empty if the rule is met.
    """

    name: str
    value: float | None
    bound: str
    met: bool
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return dataclasses.asdict(self)


def judge(counts: SplitCounts, retrieval: RetrievalFigures | str, rules: Rules) -> list[Check]:
    """Apply the rules.

    Args:
      counts: counts of the eval split.
      retrieval: figures of the model's retrieval, or why they were not measured.
      rules: rules to apply.

    Returns:
      The outcome of each rule that applies.
    """
    return [*_floors(counts, rules), *_recalls(counts, retrieval, rules)]


def _floors(counts: SplitCounts, rules: Rules) -> Iterator[Check]:
    yield _floor("rows of the eval split", counts.rows, rules.min_rows, "min_rows")
    if rules.draws_negatives and not counts.negatives:
        return
    for label, rows in ((0, counts.negatives), (1, counts.positives)):
        yield _floor(f"rows of the eval split with label {label}", rows, rules.min_rows_per_class, "min_rows_per_class")


def _floor(name: str, rows: int, least: int, key: str) -> Check:
    reason = (
        f"{name}: {rows:,}, but `evaluation.{key}` is {least:,}: hold out more rows, or lower it and trust the "
        "figures less."
    )
    return Check(
        name=name, value=rows, bound=f"at least {least:,}", met=rows >= least, reason="" if rows >= least else reason
    )


def _recalls(counts: SplitCounts, retrieval: RetrievalFigures | str, rules: Rules) -> Iterator[Check]:
    bounds = dict(rules.retrieval)
    if not bounds and not counts.negatives and not isinstance(retrieval, str):
        bounds = {_DEFAULT: RecallBounds(min_over_popularity=0.0)}
    for name, bound in bounds.items():
        yield from _recall(name, retrieval, bound)


def _recall(name: str, retrieval: RetrievalFigures | str, bounds: RecallBounds) -> Iterator[Check]:
    least, over = bounds.min, bounds.min_over_popularity
    if isinstance(retrieval, str):
        yield Check(name=name, value=None, bound="any", met=False, reason=f"{name} could not be measured: {retrieval}")
        return
    value, popularity = retrieval.metrics[name], retrieval.popularity[name]
    if least is not None:
        yield _bound(name, value, least, f"at least {least:g}")
    if over is not None:
        more = f" {'+' if over > 0 else '-'} {abs(over):g}" if over else ""
        yield _bound(name, value, popularity + over, f"at least popularity's {popularity:.4f}{more}")


def _bound(name: str, value: float, least: float, words: str) -> Check:
    met = value >= least
    remedy = f"train better, or set `evaluation.thresholds.{name}` to what you accept."
    return Check(
        name=name,
        value=value,
        bound=words,
        met=met,
        reason="" if met else f"{name} is {value:.4f}: it must be {words}; {remedy}",
    )
