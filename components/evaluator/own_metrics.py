"""Defines metrics that TFMA lacks or computes wrongly: means over rows, areas, and metrics of users and rankings.

TFMA's own cross-entropy takes the logarithm of 0 for probabilities that round to 0 or 1, and one such row makes the
whole metric NaN or infinite. TFMA's AUC is wrong if probabilities are close to each other, see `bucket_of`. The
metrics of users and rankings need more than one row at a time. Evaluator computes them, and TFMA reads them, shows them
and compares them with thresholds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import tensorflow_model_analysis as tfma

from embedding_core.errors import ConfigError, DataError
from embedding_core.training.eval_metrics import area_under_roc

# Adds up rows by bucket of their predicted probability, and computes the areas under two curves from the sums.
#
# TFMA computes these areas from 10,000 buckets of equal width. A model whose probabilities are all below 0.0001 has one
# such bucket, and an AUC of 0.5. Here, a bucket is at most 1/16,384 as wide as its distance from 0 or 1, whichever is
# nearer.

_Codes: TypeAlias = npt.NDArray[np.int64]
_BucketSums: TypeAlias = npt.NDArray[np.float64]
Area: TypeAlias = Callable[[_BucketSums, _BucketSums], float]

_DROPPED_BITS = 9  # of the 23 bits of a float32's fraction; 14 are left
_MIDDLE = int(np.float32(0.5).view(np.int32)) >> _DROPPED_BITS
BUCKETS = 2 * _MIDDLE + 1
"""All bucket numbers are below this one. Few models use more than some hundred thousand of them."""


def bucket_of(probability: Any) -> _Codes:
    """Return the bucket of each probability, int64 of the same shape; larger probabilities have larger numbers.

    Raises:
      DataError: a probability is NaN.
    """
    given = np.clip(np.asarray(probability, np.float32), 0, 1)
    if np.isnan(given).any():
        raise DataError("the model predicts nan for a row of the eval split: a prediction must be finite.")
    distance = np.where(given > 0.5, 1 - given, given)  # exact: float32 holds 1 - p for each p above 0.5
    code = distance.view(np.int32).astype(np.int64) >> _DROPPED_BITS
    return np.where(given > 0.5, 2 * _MIDDLE - code, code)


def area_under_precision_recall(positive: _BucketSums, negative: _BucketSums) -> float:
    """Compute the area under precision by recall, interpolated by Davis and Goadrich (2006), as Keras' AUC does.

    Args:
      positive: weight of the rows with label 1, by increasing score, `[buckets]`.
      negative: weight of the rows with label 0.

    Returns:
      The area; NaN if label 1 does not occur.
    """
    total = positive.sum()
    if not total:
        return math.nan
    hits = np.append(np.cumsum(positive[::-1])[::-1], 0.0)  # weight of the positives from each bucket on
    chosen = np.append(np.cumsum((positive + negative)[::-1])[::-1], 0.0)
    more, gained = chosen[:-1] - chosen[1:], hits[:-1] - hits[1:]
    slope = np.divide(gained, more, out=np.zeros_like(gained), where=more > 0)
    start = hits[1:] - slope * chosen[1:]
    ratio = np.divide(chosen[:-1], chosen[1:], out=np.ones_like(more), where=chosen[1:] > 0)
    return float(np.sum(slope * (gained + start * np.log(ratio))) / total)


class AreaCombiner(beam.CombineFn):
    """Computes an area row by row, for TFMA's evaluation."""

    def __init__(self, key: Any, rows: Any, area: Area) -> None:
        """Take the key of the metric, TFMA's reader of rows, and the function of the sums."""
        self._key = key
        self._rows = rows
        self._area = area

    def create_accumulator(self) -> dict[int, tuple[float, float]]:
        """Return an empty mapping from a bucket to the weights of its rows with label 1 and with label 0."""
        return {}

    def add_input(self, accumulator: dict[int, tuple[float, float]], element: Any) -> dict[int, tuple[float, float]]:
        """Add a row."""
        for label, prediction, weight in self._rows(element):
            positive, total = float(np.sum(label)), float(np.sum(weight))
            _add(accumulator, int(bucket_of(prediction).item()), positive * total, (1 - positive) * total)
        return accumulator

    def merge_accumulators(
        self, accumulators: Iterable[Mapping[int, tuple[float, float]]]
    ) -> dict[int, tuple[float, float]]:
        """Add sums up."""
        merged: dict[int, tuple[float, float]] = {}
        for accumulator in accumulators:
            for bucket, sums in accumulator.items():
                _add(merged, bucket, *sums)
        return merged

    def extract_output(self, accumulator: Mapping[int, tuple[float, float]]) -> dict[Any, float]:
        """Return the area by the metric's key."""
        sums = np.array([accumulator[bucket] for bucket in sorted(accumulator)], np.float64).reshape(-1, 2)
        return self.output_of(sums[:, 0], sums[:, 1])

    def output_of(self, positive: _BucketSums, negative: _BucketSums) -> dict[Any, float]:
        """Return the area by the metric's key, from weights by increasing bucket, `[buckets]`."""
        return {self._key: self._area(positive, negative)}


def _add(sums: dict[int, tuple[float, float]], bucket: int, positive: float, negative: float) -> None:
    before = sums.get(bucket, (0.0, 0.0))
    sums[bucket] = before[0] + positive, before[1] + negative


_Losses: TypeAlias = Callable[[Any, Any], npt.NDArray[np.float64]]
_FIVE = 5
_LEAST = float(np.finfo(np.float64).eps)
"""Smallest distance of probabilities from 0 and 1; scikit-learn uses the same for the log loss of the report."""


@dataclasses.dataclass
class _Sums:
    loss: float = 0.0
    weight: float = 0.0


class LogLoss(tfma.metrics.Metric):
    """The weighted mean of `-label * log(p) - (1 - label) * log(1 - p)`, p between 2.2e-16 and 1 - 2.2e-16.

    The class must not have the name of a TFMA metric: TFMA would use its own, whatever module is configured.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "log_loss") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_mean_of(log_losses, float)), name=name)


class AreaUnderROC(tfma.metrics.Metric):
    """The area under the ROC curve, see `embedding_core.training.eval_metrics.area_under_roc`.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "area_under_roc") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_area(area_under_roc)), name=name)


class AreaUnderPrecisionRecall(tfma.metrics.Metric):
    """The area under precision by recall, see `area_under_precision_recall`.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "area_under_precision_recall") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_area(area_under_precision_recall)), name=name)


class RootMeanSquaredError(tfma.metrics.Metric):
    """The root of the weighted mean of `(label - prediction)^2`.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_mean_of(_squares, math.sqrt)), name=name)


class Ranking(tfma.metrics.Metric):
    """The mean over queries of a metric of the first K candidates, see `embedding_core/evaluation/ranking_metrics.py`.

    Args:
      name: name of the metric, such as "NDCG@20".
    """

    def __init__(self, name: str) -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_computed_by(RankingCombiner)), name=name)


class GroupAUC(tfma.metrics.Metric):
    """The mean of the users' AUCs, weighted by the weights of their rows (Zhou et al., 2018: DIN, section 5.2).

    Users whose rows all have the same label are left out.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "group_auc") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_computed_by(GroupAUCCombiner)), name=name)


class ClassLogLoss(tfma.metrics.Metric):
    """The weighted mean of `-log(p)`, p being the probability of the row's class, at least 2.2e-16.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "class_log_loss") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_mean_of(class_log_losses, float)), name=name)


class ClassAccuracy(tfma.metrics.Metric):
    """The weighted share of rows whose class has the largest probability.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "class_accuracy") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_mean_of(are_most_probable, float)), name=name)


class ClassTop5Accuracy(tfma.metrics.Metric):
    """The weighted share of rows whose class is among the five most probable classes.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "class_top_5_accuracy") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_mean_of(_is_in_five, float)), name=name)


def _mean_of(losses: _Losses, output: Callable[[float], float]) -> Callable[..., list[Any]]:
    """Return the function that makes TFMA's `MetricComputation` of the rows' mean loss."""

    def combiner(key: Any, given: Mapping[str, Any]) -> beam.CombineFn:
        rows = functools.partial(tfma.metrics.to_label_prediction_example_weight, **given)
        return RowMeanCombiner(key, rows, losses, output)

    return _computed_by(combiner)


def _area(area: Area) -> Callable[..., list[Any]]:
    """Return the function that makes TFMA's `MetricComputation` of an area."""

    def combiner(key: Any, given: Mapping[str, Any]) -> beam.CombineFn:
        return AreaCombiner(key, functools.partial(tfma.metrics.to_label_prediction_example_weight, **given), area)

    return _computed_by(combiner)


def _computed_by(combiner: Callable[[Any, Mapping[str, Any]], beam.CombineFn]) -> Callable[..., list[Any]]:
    """Return the function that makes TFMA's `MetricComputation` of one metric.

    Args:
      combiner: makes the combiner, from the key of the metric and TFMA's arguments.
    """

    def computations(
        name: str,
        eval_config: Any = None,
        model_name: str = "",
        output_name: str = "",
        sub_key: Any = None,
        aggregation_type: Any = None,
        class_weights: Any = None,
        example_weighted: bool = False,
    ) -> list[Any]:
        key = tfma.metrics.MetricKey(
            name=name,
            model_name=model_name,
            output_name=output_name,
            sub_key=sub_key,
            example_weighted=example_weighted,
        )
        given = {
            "eval_config": eval_config,
            "model_name": model_name,
            "output_name": output_name,
            "sub_key": sub_key,
            "aggregation_type": aggregation_type,
            "class_weights": class_weights,
            "example_weighted": example_weighted,
        }
        made = combiner(key, given)
        return [tfma.metrics.MetricComputation(keys=[key], preprocessors=None, combiner=made)]

    return computations


class _ComputedByEvaluator(beam.CombineFn):
    """Placeholder for a metric that TFMA cannot compute because it is not a sum over rows."""

    def __init__(self, key: Any, given: Mapping[str, Any]) -> None:
        del given
        self.key = key

    def create_accumulator(self) -> None:
        """Refuse to add up rows."""
        raise ConfigError(f"TFMA cannot compute {self.key.name}: set `evaluation.engine` to vectorized.")

    def add_input(self, accumulator: None, element: Any) -> None:
        """Never called."""

    def merge_accumulators(self, accumulators: Iterable[None]) -> None:
        """Never called."""

    def extract_output(self, accumulator: None) -> dict[Any, float]:
        """Never called."""
        return {}


class RankingCombiner(_ComputedByEvaluator):
    """Placeholder for the metrics of `Ranking`."""


class GroupAUCCombiner(_ComputedByEvaluator):
    """Placeholder for `GroupAUC`."""


class RowMeanCombiner(beam.CombineFn):
    """Computes a function of the weighted mean of the rows' losses."""

    def __init__(self, key: Any, rows: Any, losses: _Losses, output: Callable[[float], float]) -> None:
        """Take the key of the metric, TFMA's reader of rows, the loss of a row, and the function of the mean."""
        self.losses = losses
        self._key = key
        self._rows = rows
        self._output = output

    def create_accumulator(self) -> _Sums:
        """Return sums of 0."""
        return _Sums()

    def add_input(self, accumulator: _Sums, element: Any) -> _Sums:
        """Add a row."""
        for label, prediction, weight in self._rows(element):
            accumulator.loss += float(np.sum(self.losses(label, prediction))) * float(np.sum(weight))
            accumulator.weight += float(np.sum(weight))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[_Sums]) -> _Sums:
        """Add sums up."""
        merged = _Sums()
        for accumulator in accumulators:
            merged.loss += accumulator.loss
            merged.weight += accumulator.weight
        return merged

    def extract_output(self, accumulator: _Sums) -> dict[Any, float]:
        """Return the metric by its key; NaN if no row has weight."""
        mean = accumulator.loss / accumulator.weight if accumulator.weight else math.nan
        return {self._key: self._output(mean)}


def log_losses(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    """Compute the loss of each predicted probability, given its label, 0 or 1."""
    probability = np.clip(np.asarray(prediction, np.float64), _LEAST, 1 - _LEAST)
    losses: npt.NDArray[np.float64] = -label * np.log(probability) - (1 - label) * np.log1p(-probability)
    return losses


def _squares(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    errors: npt.NDArray[np.float64] = np.asarray(label, np.float64) - np.asarray(prediction, np.float64)
    return errors * errors


def class_log_losses(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    """Compute the loss of each row `[n]` from its class's position and the probabilities `[n, classes]`."""
    losses: npt.NDArray[np.float64] = -np.log(np.maximum(_of_class(label, prediction), _LEAST))
    return losses


def are_most_probable(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    """Return for each row 1 if its class has the largest probability of all, else 0; see `class_log_losses`."""
    return (_rank(label, prediction) < 1).astype(np.float64)


def _is_in_five(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    return (_rank(label, prediction) < _FIVE).astype(np.float64)


def _rank(label: Any, prediction: Any) -> npt.NDArray[np.int64]:
    """Count the classes that rank before the row's class; equally probable classes rank by position."""
    own = _of_class(label, prediction)[:, np.newaxis]
    is_before = np.arange(np.shape(prediction)[1]) < np.asarray(label)[:, np.newaxis]
    ranks: npt.NDArray[np.int64] = ((prediction > own) | ((prediction == own) & is_before)).sum(axis=1)
    return ranks


def _of_class(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    positions = np.asarray(label).astype(np.int64)[:, np.newaxis]
    probabilities: npt.NDArray[np.float64] = np.take_along_axis(np.asarray(prediction, np.float64), positions, 1)[:, 0]
    return probabilities
