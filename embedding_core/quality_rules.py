"""Declares what a model must reach for a push: bounds of metrics, and rules for the rows of its eval split."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from embedding_core.schema import Count, Listed, Mistakes, Number, Positive, Section, Text

MEASURES = ("Recall", "NDCG", "MRR", "HitRate")
"""What is measured among the first K candidates; `embedding_core/evaluation/ranking.py` defines each."""
LARGEST_K = 1000
GATE_METRICS = ("Recall@10", "Recall@50")
"""The metrics that QualityGate measures for every model that retrieves."""
RANKING_RULE = f"{', '.join(f'{one}@K' for one in MEASURES)}, with a whole number K from 1 to {LARGEST_K}"
_OTHER_NAMES = {"hit": "HitRate", "hits": "HitRate", "hr": "HitRate", "hitratio": "HitRate"}


class RankingMetric(NamedTuple):
    """A metric of the first k candidates of a ranking.

    Attributes:
      measure: one of `MEASURES`.
      k: number of candidates, from 1 to `LARGEST_K`.
    """

    measure: str
    k: int

    @property
    def name(self) -> str:
        """The name in settings and reports, such as "NDCG@20"."""
        return f"{self.measure}@{self.k}"


def ranking_metric(name: object) -> RankingMetric | None:
    """Return the metric of that name; None if there is none."""
    found = re.fullmatch(rf"({'|'.join(MEASURES)})@([1-9]\d*)", name, re.ASCII) if isinstance(name, str) else None
    metric = None if found is None else RankingMetric(found[1], int(found[2]))
    return None if metric is None or metric.k > LARGEST_K else metric


def meant_ranking_metric(name: str) -> str | None:
    """Return the name of a ranking metric that was probably meant, such as "HitRate@10" for "hr@10"."""
    measure, _, k = name.replace(" ", "").partition("@")
    folded = "".join(filter(str.isalpha, measure)).casefold()
    known = {one.casefold(): one for one in MEASURES} | _OTHER_NAMES
    meant = f"{known.get(folded, '')}@{k}"
    return meant if ranking_metric(meant) else None


def _ranking_name(value: Any) -> Any:
    if ranking_metric(value) is not None:
        return value
    meant = meant_ranking_metric(value) if isinstance(value, str) else None
    raise ValueError(f"it must be one of {RANKING_RULE}.{f' Did you mean {meant!r}?' if meant else ''}")


RankingName = Annotated[str, BeforeValidator(_ranking_name)]


class RankingProtocol(Section):
    """How the ranking metrics of a model that retrieves are measured.

    Attributes:
      user: column of the data that names the user. One ranking per user is measured. Its query is the user's last
        positive row of the eval split; its true candidates are those of all positive rows of the user there. If null,
        each positive row is a query with one true candidate.
      exclude_seen: whether candidates that the user has seen are left out of a ranking: those in the user's positive
        rows of the train split, and those in features of the query's row with the same vocabulary, such as a history. A
        true candidate is never left out.
      queries: largest number of users (without `user`: of rows) to measure. If there are more, a seeded sample is
        measured. Null measures all.
    """

    user: Text | None = None
    exclude_seen: bool = False
    queries: Positive | None = 20_000


class RankingSettings(RankingProtocol):
    """How Evaluator measures rankings, and the AUC of each user.

    Attributes:
      columns: all columns of the data.
      feature: feature that identifies a candidate, if the candidate tower reads several.
      seed: seed of the sample of queries.
    """

    columns: Listed[Text] = ()
    feature: Text | None = None
    seed: int = 0


class Threshold(Section):
    """The bounds that a metric must reach for the model to be blessed; at least one.

    Attributes:
      min, max: bounds of the metric itself.
      min_improvement: least improvement over the baseline model; may be negative.
      min_over_popularity: least difference from the value that a ranking by popularity reaches, for ranking metrics
        such as Recall@10; may be negative, and -1 accepts every model.
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
      protocol: how retrieval is measured.
      min_rows: least number of rows of the eval split.
      min_rows_per_class: least number of rows of each class of the eval split.
      draws_negatives: whether negatives are drawn while training; if so, the eval split may hold positives alone.
      retrieval: bounds by metric. If it is empty and the split holds positives alone, which no other metric can judge,
        a two-tower model has to reach popularity's Recall@10.
      bounded_elsewhere: whether Evaluator has a bound of a ranking metric, so that popularity need not be reached.

    Raises:
      ConfigError: a number of rows is negative, or a metric or bound is unknown.
    """

    min_rows: Count = 0
    min_rows_per_class: Count = 0
    draws_negatives: bool = False
    protocol: RankingProtocol = RankingProtocol()
    retrieval: Mapping[RankingName, Threshold] = Field(default_factory=dict)
    bounded_elsewhere: bool = False
