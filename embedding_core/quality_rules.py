"""Declares what a model must reach for a push: bounds of metrics, and rules for the rows of its eval split."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from embedding_core.schema import Count, Listed, Mistakes, Number, Positive, Section, Text
from embedding_core.tasks import Objective

MEASURES = ("Recall", "NDCG", "MRR", "HitRate")
"""What is measured among the first K candidates; `embedding_core/evaluation/ranking_metrics.py` defines each."""
LARGEST_K = 1000
GATE_METRICS = ("Recall@10", "Recall@50", "NDCG@10")
"""The metrics that QualityGate measures for every retrieval model."""
QUALITY_FILE = "quality.json"
"""File of a blessing of QualityGate, with every figure and the outcome of every rule."""
PREDICTIONS_FILE = "eval_predictions.npz"
"""File of a blessing of QualityGate, with the predictions for the eval split."""
NOTHING_LEFT_OUT = ", nothing left out"
"""What follows the name of a ranking metric in results of Evaluator, if seen candidates stay in the ranking."""
RANKING_RULE = f"{', '.join(f'{measure}@K' for measure in MEASURES)}, with a whole number K from 1 to {LARGEST_K}"
HIGHER_IS_BETTER = ("AUC", "CategoricalAccuracy")
"""The main metrics that grow as a model gets better; see `main_metric`."""
_OTHER_NAMES = {"hit": "HitRate", "hits": "HitRate", "hr": "HitRate", "hitratio": "HitRate"}
_CLOSE = 0.7  # a pair of letters that changed places, as in "ndgc"


def main_metric(task: Objective) -> str:
    """Return the metric by which a model is compared with the mean of the label."""
    if task.is_multiclass:
        return "CategoricalAccuracy"
    if task.is_binary:
        return "AUC"
    return "RootMeanSquaredError" if task.loss == "squared" else "MeanAbsoluteError"


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
    """Return the name of a ranking metric that was probably meant, such as "NDCG@10" for "ndgc@10"."""
    measure, _, k = name.replace(" ", "").partition("@")
    folded = "".join(filter(str.isalpha, measure)).casefold()
    known = {name.casefold(): name for name in MEASURES} | _OTHER_NAMES
    close = difflib.get_close_matches(folded, known, n=1, cutoff=_CLOSE)
    meant = f"{known[close[0]] if close else ''}@{k}"
    return meant if ranking_metric(meant) else None


def _ranking_name(value: Any) -> Any:
    if ranking_metric(value) is not None:
        return value
    meant = meant_ranking_metric(value) if isinstance(value, str) else None
    raise ValueError(f"it must be one of {RANKING_RULE}.{f' Did you mean {meant!r}?' if meant else ''}")


RankingName = Annotated[str, BeforeValidator(_ranking_name)]


class RankingProtocol(Section):
    """How the ranking metrics of a retrieval model are measured.

    Attributes:
      user: column of the data that names the user. One ranking per user is measured: its true candidates are
        those of all the user's positive rows in the eval split, and its query is the last of these rows; if the model
        reads a history, it is the row that precedes the others, as the histories tell. If null, each positive row is a
        query with one true candidate.
      exclude_seen: whether seen candidates are left out of a ranking: those in the user's positive rows of the train
        split, and those in features of the query's row with the candidates' vocabulary, such as a history. A true
        candidate that was seen is left out too, and is a miss; the report then also gives the metrics with nothing
        left out, and the number of such candidates.
      queries: largest number of measured users, or of rows if `user` is null. If there are more, a seeded sample of
        this size is measured. Null measures all.
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
      min_over_popularity: least improvement of a ranking metric, such as Recall@10, over a ranking by popularity; may
        be negative, and -1 accepts every model that can be measured.
    """

    min: Number | None = None
    max: Number | None = None
    min_improvement: Number | None = None
    min_over_popularity: Number | None = None

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if all(getattr(self, name) is None for name in Threshold.model_fields):
            yield "", "has no bound: give it `min`, `max`, `min_improvement` or `min_over_popularity`."
        elif self.min is not None and self.max is not None and self.min > self.max:
            yield "min", f"is {self.min!r}: it must be at most `max`, {self.max!r}."


class Rules(Section):
    """What a model has to pass.

    Attributes:
      protocol: how retrieval is measured.
      min_rows: least number of rows of the eval split.
      min_rows_per_class: least number of rows of each class in the eval split.
      draws_negatives: whether training draws negatives; if so, the eval split may hold only positives.
      retrieval: bounds by metric. If it is empty, a two-tower model must reach popularity's Recall@10 if no AUC can
        judge one of its labels: the eval split holds only positives, or a softmax trains it.
      bounded_elsewhere: whether Evaluator bounds a ranking metric; if so, the model need not reach popularity.
      bounded_metrics: the main metrics that Evaluator bounds, as `evaluation.thresholds` names them; on all others the
        model must be at least as good as the mean of the label.

    Raises:
      ConfigError: a number of rows is negative, or a metric or bound is unknown.
    """

    min_rows: Count = 0
    min_rows_per_class: Count = 0
    draws_negatives: bool = False
    protocol: RankingProtocol = RankingProtocol()
    retrieval: Mapping[RankingName, Threshold] = Field(default_factory=dict)
    bounded_elsewhere: bool = False
    bounded_metrics: Listed[Text] = ()
