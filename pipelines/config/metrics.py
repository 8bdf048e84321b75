"""Declares the section `evaluation`: metrics, slices, and the bounds that a model must reach to be pushed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from embedding_core.errors import nearest
from embedding_core.quality_rules import (
    GATE_METRICS,
    LARGEST_K,
    MEASURES,
    RANKING_RULE,
    RankingProtocol,
    Threshold,
    meant_ranking_metric,
    ranking_metric,
)
from embedding_core.schema import ByName, Count, Listed, Mistakes, Rule, Text
from embedding_core.tasks import Task, metric_name

Baseline: TypeAlias = Literal["mean", "regression", "trees"]
Metric: TypeAlias = Literal[
    "AUC",
    "AUCPrecisionRecall",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "Calibration",
    "CategoricalAccuracy",
    "CategoricalCrossEntropy",
    "ExampleCount",
    "GroupAUC",
    "MeanAbsoluteError",
    "MeanLabel",
    "MeanPrediction",
    "MeanSquaredError",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
    "Top5CategoricalAccuracy",
]
METRICS: tuple[str, ...] = get_args(Metric)
_OF_CLASSES = ("AUC", "AUCPrecisionRecall", "BinaryAccuracy", "BinaryCrossEntropy", "GroupAUC", "Precision", "Recall")
_OF_SEVERAL = ("CategoricalAccuracy", "CategoricalCrossEntropy", "Top5CategoricalAccuracy")
_OF_ANY = "ExampleCount"
_OTHER_NAMES = {
    "acc": "BinaryAccuracy",
    "accuracy": "BinaryAccuracy",
    "categoricalcrossentropy": "CategoricalCrossEntropy",
    "sparsecategoricalaccuracy": "CategoricalAccuracy",
    "sparsecategoricalcrossentropy": "CategoricalCrossEntropy",
    "topkcategoricalaccuracy": "Top5CategoricalAccuracy",
    "auprc": "AUCPrecisionRecall",
    "averageprecision": "AUCPrecisionRecall",
    "brier": "MeanSquaredError",
    "brierscore": "MeanSquaredError",
    "bce": "BinaryCrossEntropy",
    "count": "ExampleCount",
    "crossentropy": "BinaryCrossEntropy",
    "logloss": "BinaryCrossEntropy",
    "gauc": "GroupAUC",
    "loss": "BinaryCrossEntropy",
    "mae": "MeanAbsoluteError",
    "mse": "MeanSquaredError",
    "rmse": "RootMeanSquaredError",
    "prauc": "AUCPrecisionRecall",
    "aucpr": "AUCPrecisionRecall",
    "rocauc": "AUC",
    "aucroc": "AUC",
}  # names in other libraries, in lower case and without punctuation
_SHARES = (  # in 0 .. 1
    *("AUC", "AUCPrecisionRecall", "BinaryAccuracy", "CategoricalAccuracy", "GroupAUC", "Precision", "Recall"),
    "Top5CategoricalAccuracy",
)
_LOWER_IS_BETTER = (
    *("BinaryCrossEntropy", "CategoricalCrossEntropy"),
    *("MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError"),
)
_RULE = f"one of {', '.join(METRICS)}, or of {RANKING_RULE}"
_AT_K = {"type": "string", "pattern": rf"^({'|'.join(MEASURES)})@([1-9]\d{{0,2}}|{LARGEST_K})$"}


def _metrics(value: Any) -> Any:
    if isinstance(value, str):
        known = value in METRICS or ranking_metric(value) is not None
        raise ValueError(f"it must be a list{f': write [{value}].' if known else f'.{_meant(value)}'}")
    return value


def _metric(value: Any) -> Any:
    if value in METRICS or ranking_metric(value) is not None:
        return value
    meant = _meant(value) if isinstance(value, str) else ""
    raise ValueError(f"it must be {_RULE}.{meant}")


def _meant(metric: str) -> str:
    """Return the metric that was probably meant, as a question; "" if no name is near."""
    other = _OTHER_NAMES.get("".join(filter(str.isalnum, metric)).casefold())
    other = other or meant_ranking_metric(metric)
    remedy = f"did you mean {other!r}?" if other else nearest(metric, (*METRICS, *GATE_METRICS))
    if "@" in metric and other is None:
        return ""  # the rule names the measures and the range of K; no name with another K is meant
    return f" D{remedy[1:]}" if remedy.startswith("did you mean") else ""


_TEXTS = {"type": "array", "items": {"type": "string"}}


def _slice(value: Any) -> tuple[str, ...]:
    columns = [value] if isinstance(value, str) else value
    if (
        not isinstance(columns, list | tuple)
        or not columns
        or not all(isinstance(column, str) and column for column in columns)
    ):
        raise ValueError("it must be a column, or a list of columns that are crossed.")
    return tuple(columns)


_Slice = Annotated[tuple[Text, ...], BeforeValidator(_slice), WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS]})]


def _fits(task: Task, metric: str) -> bool:
    """Return whether a metric can be computed for a task."""
    if task.is_multiclass or metric in _OF_SEVERAL:
        return metric == _OF_ANY or (task.is_multiclass and metric in _OF_SEVERAL)
    return task.is_binary or not _is_of_classes(metric)


_METRIC_SCHEMA = {"anyOf": [{"type": "string", "enum": list(METRICS)}, _AT_K]}
_Metric = Annotated[str, Rule(_RULE), BeforeValidator(_metric), WithJsonSchema(_METRIC_SCHEMA)]


class Evaluation(RankingProtocol):
    """How the model is judged before it is pushed.

    Attributes:
      metrics: names of metrics; null takes AUC, BinaryCrossEntropy, Calibration and ExampleCount for a binary label,
        RootMeanSquaredError, MeanAbsoluteError, Calibration and ExampleCount for a number, and CategoricalAccuracy,
        CategoricalCrossEntropy, Top5CategoricalAccuracy and ExampleCount for a multiclass label. A model that retrieves
        also has Recall@K, NDCG@K, MRR@K and HitRate@K, K from 1 to 1000, among all candidates of the vocabulary.
        GroupAUC is the mean of the AUC of each `user`, weighted by rows.
      slices: columns (or lists of columns, crossed) by which the metrics are also computed.
      thresholds: bounds of metrics, by name: one of `metrics`, or any metric at K of a model that retrieves. If there
        are several labels, the name of a label and a slash come before the metric: click/AUC. Without bounds, a model
        is refused if it is worse than the mean of a label: by AUC (of a mean 0.5), CategoricalAccuracy (of the most
        frequent class), RootMeanSquaredError, or MeanAbsoluteError of a regression whose loss is not squared. `min` or
        `max` of that metric replaces this rule. A two-tower model that a softmax trains, or whose eval split holds
        positives alone, must reach popularity's Recall@10; a bound of any metric at K replaces this rule.
      min_rows: least number of rows of the eval split; with fewer, nothing is pushed.
      min_rows_per_class: least number of rows of the eval split with label 0, and with label 1; if training draws
        negatives, the split may hold positives alone.
      baseline: model to compare with: "pushed", "served" or "trained" as in `warm_start`, or a URI; null compares with
        none. "latest" is the old name of "pushed".
      baselines: what the report compares the model with: "mean" (of the label), "regression" (on the one-hot features)
        and "trees", scikit-learn's gradient boosting on at most 50,000 rows, which takes longest.
      engine: program that computes the metrics: "vectorized" adds up batches of rows, "tfma" is TFX's Evaluator, which
        goes row by row on Beam. Both write the same files, with figures that differ by less than 1e-6.
    """

    PATHS = ("baseline",)

    metrics: Annotated[Listed[_Metric] | None, BeforeValidator(_metrics)] = None
    slices: Listed[_Slice] = ()
    thresholds: ByName[Threshold] = Field(default_factory=dict)
    baseline: Text | None = None
    baselines: Listed[Baseline] = ("mean", "regression")
    min_rows: Count = 100
    min_rows_per_class: Count = 10
    engine: Literal["vectorized", "tfma"] = "vectorized"

    @property
    def protocol(self) -> RankingProtocol:
        """How rankings are measured."""
        return RankingProtocol(**{name: getattr(self, name) for name in RankingProtocol.model_fields})

    @property
    def ranked(self) -> tuple[str, ...]:
        """The metrics of rankings among `metrics`."""
        return tuple(name for name in self.metrics or () if ranking_metric(name) is not None)

    @property
    def retrieval(self) -> dict[str, Threshold]:
        """The bounds of QualityGate by metric: `min_over_popularity`, and `min` if Evaluator does not apply it."""
        bounds = {}
        for name, given in self.thresholds.items():
            least = None if name in self.ranked else given.min
            if ranking_metric(name) is not None and (least, given.min_over_popularity) != (None, None):
                bounds[name] = Threshold(min=least, min_over_popularity=given.min_over_popularity)
        return bounds

    def metrics_of(self, task: Task) -> tuple[str, ...]:
        """Return the metrics that are computed for a task."""
        if self.metrics is not None:
            return tuple(metric for metric in self.metrics if _fits(task, metric))
        if task.is_multiclass:
            return (*_OF_SEVERAL, _OF_ANY)
        first = ("AUC", "BinaryCrossEntropy") if task.is_binary else ("RootMeanSquaredError", "MeanAbsoluteError")
        return (*first, "Calibration", _OF_ANY)

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        metrics = self.metrics or ()
        if self.metrics == ():
            yield "metrics", "is []: it must name at least one metric; leave the key out for the usual ones."
        for index, metric in enumerate(metrics):
            if metric in metrics[:index]:
                yield f"metrics.{index}", f"is {metric!r}, a duplicate: name each metric once."

    def mistakes_for(self, tasks: Sequence[Task]) -> Mistakes:
        """Yield the metrics and bounds that do not fit the labels."""
        yield from self._metrics_that_do_not_fit(tasks)
        judged = {metric_name(tasks, task, name): name for task in tasks for name in self.metrics_of(task)}
        for name, threshold in self.thresholds.items():
            metric: str = judged.get(name, name)
            for bound in ("min", "max"):
                value = getattr(threshold, bound)
                if value is not None and _is_share(metric) and not 0 <= value <= 1:
                    yield f"thresholds.{name}.{bound}", f"is {value!r}: {name} is between 0 and 1; so must its bound."
            is_ranking = ranking_metric(name) is not None
            is_compared = threshold.min_improvement is not None and (name in self.ranked or not is_ranking)
            if is_compared and self.baseline is None:
                yield (
                    f"thresholds.{name}.min_improvement",
                    f"is {threshold.min_improvement!r}, but `evaluation.baseline` is null: name a baseline.",
                )
            if is_ranking:
                yield from self._bounds_of_ranking(name, threshold)
                continue
            if threshold.min_over_popularity is not None:
                rule = f"only metrics at K, such as {GATE_METRICS[0]}, are compared with popularity; write `min`."
                yield f"thresholds.{name}.min_over_popularity", f"is {threshold.min_over_popularity!r}: {rule}"
            if name not in judged:
                yield f"thresholds.{name}", f"is for a metric that is not computed: {self._remedy(name, tasks, judged)}"
            elif threshold.min_improvement is not None and direction_of(metric) == 0:
                rule = f"neither a higher nor a lower {metric} is better; write `min` and `max`."
                yield f"thresholds.{name}.min_improvement", f"is {threshold.min_improvement!r}: {rule}"

    def _metrics_that_do_not_fit(self, tasks: Sequence[Task]) -> Mistakes:
        for index, given in enumerate(self.metrics or ()):
            if _is_of_classes(given) and not any(task.is_binary for task in tasks):
                yield f"metrics.{index}", f"is {given!r}, which is of labels that are 0 or 1: no label is binary."
            elif not any(_fits(task, given) for task in tasks):
                kinds = "multiclass labels: no label is" if given in _OF_SEVERAL else "numbers: each label is"
                yield f"metrics.{index}", f"is {given!r}, which is of {kinds} multiclass."
            elif given in self.ranked and len(tasks) > 1:
                rule = "with several labels only `thresholds` takes it (QualityGate measures it): write a bound there."
                yield f"metrics.{index}", f"is {given!r}: {rule}"
            if given == "GroupAUC" and self.user is None:
                yield f"metrics.{index}", f"is {given!r}, but `evaluation.user` is null: name the column of the user."
            if self.engine == "tfma" and (given in self.ranked or given == "GroupAUC"):
                yield (
                    f"metrics.{index}",
                    f"is {given!r}, which `evaluation.engine` 'tfma' lacks: write vectorized there.",
                )

    def _bounds_of_ranking(self, name: str, threshold: Threshold) -> Mistakes:
        over = threshold.min_over_popularity
        if over is not None and not -1 <= over <= 1:
            yield f"thresholds.{name}.min_over_popularity", f"is {over!r}: two values of {name} differ by at most 1."
        for bound in ("max", "min_improvement"):
            value = getattr(threshold, bound)
            if value is not None and name not in self.ranked:
                rule = (
                    f"a metric that is not in `evaluation.metrics` takes `min` and `min_over_popularity`; add {name}."
                )
                yield f"thresholds.{name}.{bound}", f"is {value!r}: {rule}"

    def _remedy(self, name: str, tasks: Sequence[Task], judged: Mapping[str, str]) -> str:
        if len(tasks) > 1:
            return nearest(name, judged)
        if name in METRICS:
            return f"`evaluation.metrics`, {list(judged)}, does not have it; add it there."
        at_k = f" A metric at K is one of {RANKING_RULE}." if "@" in name else ""
        return f"`evaluation.metrics` is {list(judged)}, and it is not a metric.{at_k}{_meant(name)}"


def _is_of_classes(metric: str) -> bool:
    """Return whether the metric needs labels that are 0 or 1."""
    return metric in _OF_CLASSES or ranking_metric(metric) is not None


def _is_share(metric: str) -> bool:
    """Return whether the metric is between 0 and 1."""
    return metric in _SHARES or ranking_metric(metric) is not None


def direction_of(metric: str) -> int:
    """Return 1 if a higher value of the metric is better, -1 if a lower one is, and 0 if neither is."""
    return 1 if _is_share(metric) else -1 if metric in _LOWER_IS_BETTER else 0
