"""Declares what a model must reach for a push: bounds of metrics, and rules for the rows of its eval split."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from embedding_core.config import RetrievalMetric
from embedding_core.schema import Count, Mistakes, Number, Section


class Threshold(Section):
    """The bounds that a metric must reach for the model to be blessed; at least one.

    Attributes:
      min, max: bounds of the metric itself.
      min_improvement: least improvement over the baseline model; may be negative.
      min_over_popularity: least difference to popularity's value of the same metric, for Recall@10 and Recall@50; may
        be negative, and -1 accepts every model.
    """

    min: Number | None = None
    max: Number | None = None
    min_improvement: Number | None = None
    min_over_popularity: Number | None = None

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
        if all(getattr(self, name) is None for name in Threshold.model_fields):
            yield "", "has no bound: give it `min`, `max`, `min_improvement` or `min_over_popularity`."
        elif self.min is not None and self.max is not None and self.min > self.max:
            yield "min", f"is {self.min!r}: it must be at most `max`, {self.max!r}."


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
    retrieval: Mapping[RetrievalMetric, Threshold] = Field(default_factory=dict)
