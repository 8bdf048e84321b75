"""Adds up scored rows, users and ranked queries by slice, and derives the values of the metrics as TFMA does.

TFMA computes a metric in two steps: a combiner adds up rows, and derived computations turn the sums into values. This
module computes the sums with numpy, for the combiners of the metrics that a configuration may name. TFMA's own code
runs the second step.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow_model_analysis.proto import config_pb2

from components.evaluator import own_metrics, tfma_parts
from components.evaluator.model_scores import ModelScores, Numbers, ScoredBatch, Scorer
from components.evaluator.tfma_parts import Combiner, Metrics, Positions, SliceGroups
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.evaluation.retrieval_figures import candidate_count, rank_queries
from embedding_core.evaluation.towers import ExportedTowers
from embedding_core.quality_rules import NOTHING_LEFT_OUT, RankingMetric, RankingSettings, ranking_metric
from embedding_core.tasks import POSITIVE
from embedding_core.training import Inputs
from embedding_core.vocabulary import load_vocabularies

# Computes the AUC of each user's rows, and the mean AUC of the users by slice.

_Singles = npt.NDArray[np.float32]


class GroupSums:
    """Keeps user, label, prediction and weight of each pair of a row and a slice: 28 bytes per pair."""

    def __init__(self) -> None:
        """Start without rows."""
        self._groups: list[npt.NDArray[np.int64]] = []  # `[2, pairs]`: slice and user
        self._rows: list[_Singles] = []  # `[3, pairs]`: prediction, label, weight; float32, as models give them
        self._in_order = False  # whether there is one array of each, sorted by slice

    def add(self, scores: ModelScores, rows: Positions, slices: Positions) -> None:
        """Add the pairs of a row and a slice."""
        if scores.user is None:
            raise ConfigError("GroupAUC needs users: set `evaluation.user`.")
        kept = scores.weight[rows] > 0
        rows, slices, self._in_order = rows[kept], slices[kept], False
        self._groups.append(np.stack([slices, scores.user[rows]]))
        self._rows.append(
            np.stack([scores.prediction[rows], scores.label[rows], scores.weight[rows]]).astype(np.float32)
        )

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        """Return the metric of a slice, by TFMA's key; NaN if no user has rows of both labels."""
        if not self._in_order:
            groups, rows = np.concatenate(self._groups, axis=1), np.concatenate(self._rows, axis=1)
            order = np.argsort(groups[0], kind="stable")
            self._groups, self._rows, self._in_order = [groups[:, order]], [rows[:, order]], True
        (slices, users), rows = self._groups[0], self._rows[0]
        inside = slice(*np.searchsorted(slices, [number, number + 1]))
        return {combiner.key: group_auc(users[inside], *rows[:, inside])}


def group_auc(users: npt.NDArray[np.int64], prediction: _Singles, label: _Singles, weight: _Singles) -> float:
    """Compute the mean of the users' AUCs, each weighted by the weights of the user's rows; inputs are `[rows]`.

    A pair of rows with equal predictions counts half, as in the trapezoidal rule. A user whose rows all have the same
    label has no AUC and is left out.

    Returns:
      The mean; NaN if no user has an AUC.
    """
    order = np.lexsort((prediction, users))
    users, prediction = users[order], prediction[order]
    positive = (weight * label)[order].astype(np.float64)
    negative = (weight * (1 - label))[order].astype(np.float64)
    new_user = np.diff(users, prepend=-1) != 0
    ties = np.cumsum(new_user | (np.diff(prediction, prepend=np.nan) != 0)) - 1
    owner = np.cumsum(new_user) - 1
    first = np.flatnonzero(new_user)
    before = np.cumsum(negative) - negative
    tied = np.bincount(ties, negative)
    start = np.flatnonzero(np.diff(ties, prepend=-1))
    lower = before[start][ties] - before[first][owner]  # weight of the user's negatives with a lower prediction
    won = np.bincount(owner, positive * (lower + tied[ties] / 2))
    pairs = np.bincount(owner, positive) * np.bincount(owner, negative)
    both, total = pairs > 0, np.bincount(owner, positive + negative)
    return float(np.average(won[both] / pairs[both], weights=total[both])) if both.any() else math.nan


# Ranks the queries of the eval split with exported models, and sums the queries' metrics by slice.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedData:
    """What the ranking reads besides the models.

    Attributes:
      settings: settings of the rankings.
      config: tables and features of the model.
      vocabularies: folder of the model's vocabularies.
      train_files, eval_files: TFRecord files of the splits.
    """

    settings: RankingSettings
    config: EmbeddingConfig
    vocabularies: str
    train_files: Sequence[str]
    eval_files: Sequence[str]

    def inputs(self) -> Inputs:
        """Return the inputs that read the ids of candidates and histories."""
        names = {table.vocabulary for table in self.config.tables if table.vocabulary is not None}
        files = {name: os.path.join(self.vocabularies, f"{name}.txt") for name in names}
        return Inputs(config=self.config, vocabularies=files, tasks=(POSITIVE,))

    def tokens(self, feature: str) -> list[bytes]:
        """Return the tokens of a feature in the order of their ids."""
        table = self.config.table_of(feature)
        if table.vocabulary is None:
            return [str(number).encode() for number in range(candidate_count(self.config, feature))]
        found: list[bytes] = load_vocabularies(self.vocabularies)[table.vocabulary].tokens.to_pylist()
        return found[: candidate_count(self.config, feature)]


class RankingSums:
    """The sums of one ranking metric over the queries of each slice.

    If true candidates are excluded because they were seen, also sums the metric over unfiltered rankings.
    """

    def __init__(self) -> None:
        """Start without queries."""
        self._sums: dict[str, Numbers] = {"": np.zeros(0)}  # by what follows the name of the metric
        self._counts: Numbers = np.zeros(0)

    def add(self, scores: Any, rows: Positions, slices: Positions) -> None:
        """Ignore the batch; `set` adds all queries after the last batch."""

    def set(self, values: Numbers, queries: Positions, slices: Positions, suffix: str = "") -> None:
        """Sum the values by slice; the query `queries[i]` belongs to the slice `slices[i]`.

        Args:
          values: the value of each query.
          queries: query of each pair of a query and a slice.
          slices: slice of each pair.
          suffix: what follows the name of the metric in results.
        """
        self._sums[suffix] = np.bincount(slices, values[queries]).astype(np.float64)
        self._counts = np.bincount(slices).astype(np.float64)

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        """Return the means over the queries of a slice, by TFMA's key; NaN without queries."""
        count = self._counts[number] if number < len(self._counts) else 0
        return {
            combiner.key._replace(name=combiner.key.name + suffix): float(sums[number] / count) if count else math.nan
            for suffix, sums in self._sums.items()
        }


def add_rankings(
    totals: Mapping[tuple[str, str], RankingSums],
    scorers: Mapping[str, Scorer],
    names: Sequence[str],
    data: RankedData,
    groups: SliceGroups,
) -> None:
    """Rank all queries of the eval split with several exported models, and add the values of the queries.

    Args:
      totals: sums to add to, by the names of model and metric.
      scorers: the models by name.
      names: names of the models; the first model determines the candidate feature.
      data: what the ranking reads besides the models.
      groups: the slices; a query belongs to the slices of its row.

    Raises:
      DataError: a model cannot retrieve, or the data cannot be ranked.
    """
    settings = data.settings
    source = (data.config, settings.columns)
    first = ExportedTowers(scorers[names[0]].model, *source, (), settings.feature)
    tokens = data.tokens(first.feature)
    queries, slices, count = [], [], 0

    def on_rows(serialized: tf.Tensor) -> None:
        nonlocal count
        rows, numbers = groups.of_rows(serialized.numpy())
        queries.append(rows + count)
        slices.append(numbers)
        count += len(serialized)

    ranked = rank_queries(
        [ExportedTowers(scorers[name].model, *source, tokens, first.feature) for name in names],
        data.inputs(),
        scorers[names[0]].positive,
        settings,
        train_files=data.train_files,
        eval_files=data.eval_files,
        seed=settings.seed,
        counted=False,
        on_rows=on_rows,
    )
    pairs = np.concatenate(queries), np.concatenate(slices)
    rankings = {"": ranked}
    if ranked.nothing_left_out is not None:
        rankings[NOTHING_LEFT_OUT] = ranked.nothing_left_out
    for suffix, ranking in rankings.items():
        for model, ranks in zip(names, ranking.ranks, strict=True):
            mine = {metric: total for (name, metric), total in totals.items() if name == model}
            metrics = [metric for metric in map(ranking_metric, mine) if isinstance(metric, RankingMetric)]
            for name, values in ranking.values(metrics, ranks).items():
                # If no true candidate was ranked, every metric is 0 for every model and would meet a threshold
                # relative to the baseline; report NaN.
                measured = values if len(ranking.truths.values) else np.full_like(values, math.nan)
                mine[name].set(measured, *pairs, suffix)


# Adds up batches of scored rows by slice, and derives the values of the metrics as TFMA does.

_Quantities: TypeAlias = Callable[[ModelScores], list[Numbers]]

_BUCKETS = 10_000


class _Sums:
    """Sums of some quantities by slice."""

    def __init__(self, quantities: _Quantities, output: Callable[[Combiner, list[float]], Metrics]) -> None:
        self._quantities = quantities
        self._output = output
        self._sums: list[Numbers] = []

    def add(self, scores: ModelScores, rows: Positions, slices: Positions) -> None:
        added = [np.bincount(slices, values[rows]).astype(np.float64) for values in self._quantities(scores)]
        before = self._sums or [np.zeros(0)] * len(added)
        self._sums = [_added(old, new) for old, new in zip(before, added, strict=True)]

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        return self._output(combiner, [float(sums[number]) for sums in self._sums])


def _added(before: Numbers, new: Numbers) -> Numbers:
    """Add two arrays, after padding the shorter one with zeros."""
    total = np.zeros(max(len(before), len(new)))
    total[: len(before)] += before
    total[: len(new)] += new
    return total


class _Buckets:
    """Sums of some quantities by slice and bucket of the prediction; empty buckets are not kept."""

    def __init__(
        self,
        bucket_of: Callable[[Numbers], Positions],
        buckets: int,
        quantities: _Quantities,
        output: Callable[[Combiner, Positions, Numbers], Metrics],
    ) -> None:
        """Start without rows.

        Args:
          bucket_of: function that returns the bucket of each prediction.
          buckets: number of buckets; all bucket numbers are below it.
          quantities: function that returns the quantities of each row.
          output: function that computes the metrics of a slice, from its bucket numbers and their sums.
        """
        self._bucket_of = bucket_of
        self._buckets = buckets
        self._quantities = quantities
        self._output = output
        self._codes = np.zeros(0, np.int64)
        self._sums: Numbers | None = None

    def add(self, scores: ModelScores, rows: Positions, slices: Positions) -> None:
        added = np.stack(self._quantities(scores), axis=1)[rows]
        codes = np.concatenate([self._codes, slices * self._buckets + self._bucket_of(scores.prediction)[rows]])
        sums = added if self._sums is None else np.concatenate([self._sums, added])
        self._codes, inverse = np.unique(codes, return_inverse=True)
        self._sums = np.stack([np.bincount(inverse, column, len(self._codes)) for column in sums.T], axis=1)

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        start, end = np.searchsorted(self._codes, [number * self._buckets, (number + 1) * self._buckets])
        sums = np.zeros((0, 2)) if self._sums is None else self._sums[start:end]
        return self._output(combiner, self._codes[start:end] - number * self._buckets, sums)


def _histogram() -> _Buckets:
    """Make the buckets from which TFMA computes areas and curves."""

    def bucket_of(prediction: Numbers) -> Positions:
        return np.clip(prediction * _BUCKETS + 1, 0, _BUCKETS + 1).astype(np.int64)

    def output(combiner: Combiner, buckets: Positions, sums: Numbers) -> Metrics:
        entries = zip(buckets.tolist(), sums.tolist(), strict=True)
        made: Metrics = combiner.extract_output(
            {number: tfma_parts.bucket(number, *values) for number, values in entries}
        )
        return made

    return _Buckets(bucket_of, _BUCKETS + 2, _means, output)


def _areas() -> _Buckets:
    """Make the buckets of `own_metrics.bucket_of`."""

    def output(combiner: Combiner, buckets: Positions, sums: Numbers) -> Metrics:
        del buckets
        made: Metrics = combiner.output_of(sums[:, 0], sums[:, 1])
        return made

    return _Buckets(own_metrics.bucket_of, own_metrics.BUCKETS, _labels, output)


def _counts(scores: ModelScores) -> list[Numbers]:
    return [scores.weight]


def _output_count(combiner: Combiner, sums: list[float]) -> Metrics:
    output: Metrics = combiner.extract_output(sums[0])
    return output


def _means(scores: ModelScores) -> list[Numbers]:
    return [scores.label * scores.weight, scores.prediction * scores.weight, scores.weight]


def _labels(scores: ModelScores) -> list[Numbers]:
    return [scores.label * scores.weight, (1 - scores.label) * scores.weight]


def _squares(scores: ModelScores) -> list[Numbers]:
    return [np.square(scores.label - scores.prediction) * scores.weight, scores.weight]


def _magnitudes(scores: ModelScores) -> list[Numbers]:
    return [np.abs(scores.label - scores.prediction) * scores.weight, scores.weight]


def _losses(combiner: Combiner) -> _Quantities:
    return lambda scores: [combiner.losses(scores.label, scores.prediction) * scores.weight, scores.weight]


def _into(*names: str) -> Callable[[Combiner, list[float]], Metrics]:
    """Return a function that writes sums into these fields of a combiner's accumulator and extracts the metrics."""

    def output(combiner: Combiner, sums: list[float]) -> Metrics:
        total = combiner.create_accumulator()
        for name, value in zip(names, sums, strict=True):
            setattr(total, name, value)
        metrics: Metrics = combiner.extract_output(total)
        return metrics

    return output


def _matrix(threshold: float) -> _Quantities:
    def cells(scores: ModelScores) -> list[Numbers]:
        above = scores.prediction > threshold
        positive, negative = scores.label * scores.weight, (1 - scores.label) * scores.weight
        return [positive * above, negative * ~above, negative * above, positive * ~above]

    return cells


class _Confusion:
    """Sums of the confusion matrix at each threshold, by slice."""

    def __init__(self, thresholds: list[float]) -> None:
        self._sums = {threshold: _Sums(_matrix(threshold), lambda _, sums: {"cells": sums}) for threshold in thresholds}

    def add(self, scores: ModelScores, rows: Positions, slices: Positions) -> None:
        for sums in self._sums.values():
            sums.add(scores, rows, slices)

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        entries = {
            threshold: tfma_parts.confusion(*sums.of_slice(None, number)["cells"])
            for threshold, sums in self._sums.items()
        }
        output: Metrics = combiner.extract_output(entries)
        return output


_Total: TypeAlias = _Sums | _Buckets | _Confusion | GroupSums | RankingSums


def _total_of(combiner: Combiner) -> _Total:
    """Return the object that adds up rows in place of one of TFMA's combiners."""
    known: Mapping[str, Callable[[], _Total]] = {
        "_CalibrationHistogramCombiner": _histogram,
        "_ExampleCountCombiner": lambda: _Sums(_counts, _output_count),
        "_WeightedLabelsPredictionsExamplesCombiner": lambda: _Sums(
            _means, _into("total_weighted_labels", "total_weighted_predictions", "total_weighted_examples")
        ),
        "_MeanSquaredErrorCombiner": lambda: _Sums(_squares, _into("total_regression_error", "total_example_weights")),
        "_BinaryConfusionMatrixCombiner": lambda: _Confusion(tfma_parts.thresholds_of(combiner)),
        "_MeanAbsoluteErrorCombiner": lambda: _Sums(
            _magnitudes, _into("total_regression_error", "total_example_weights")
        ),
        "AreaCombiner": _areas,
        "GroupAUCCombiner": GroupSums,
        "RankingCombiner": RankingSums,
        "RowMeanCombiner": lambda: _Sums(_losses(combiner), _into("loss", "weight")),
    }
    name = type(combiner).__name__
    if name not in known:
        raise ConfigError(f"`eval_config` needs TFMA's {name}: only TFMA computes it; set `evaluation.engine` to tfma.")
    return known[name]()


class MetricValues:
    """The metrics of one evaluation: adds up batches, then gives the values of each slice."""

    def __init__(self, config: config_pb2.EvalConfig) -> None:
        """Take the metrics and models of the configuration.

        Raises:
          ConfigError: a metric is not one that this project computes.
        """
        self._baselines = [spec.name for spec in config.model_specs if spec.is_baseline]
        computations = tfma_parts.computations_of(config)
        self._derived = [computation for computation in computations if tfma_parts.is_derived(computation)]
        base = [computation for computation in computations if not tfma_parts.is_derived(computation)]
        self._totals = [
            (computation.combiner, computation.keys[0], _total_of(computation.combiner)) for computation in base
        ]

    @property
    def rankings(self) -> dict[tuple[str, str], RankingSums]:
        """The totals of ranking metrics, by the names of model and metric; `add` does not change them."""
        totals = ((key, total) for _, key, total in self._totals if isinstance(total, RankingSums))
        return {(key.model_name, key.name): total for key, total in totals}

    @property
    def needs_users(self) -> bool:
        """Whether a metric needs the user of each row."""
        return any(isinstance(total, GroupSums) for _, _, total in self._totals)

    def add(self, batch: ScoredBatch, rows: Positions, slices: Positions) -> None:
        """Add the rows of a batch to their slices.

        Args:
          batch: the rows and their scores.
          rows: row of each pair of a row and a slice, from `SliceGroups.of_rows`.
          slices: slice of each pair.
        """
        for _, key, total in self._totals:
            scores = batch.scores[key.model_name, key.output_name]
            if not key.example_weighted:
                scores = dataclasses.replace(scores, weight=scores.known)
            total.add(scores, rows, slices)

    def of_slice(self, number: int) -> Metrics:
        """Return the metrics of a slice, by TFMA's keys, with the differences to a baseline model."""
        metrics: Metrics = {}
        for combiner, _, total in self._totals:
            metrics.update(total.of_slice(combiner, number))
        for computation in self._derived:
            metrics.update(computation.result(metrics))
        shown = {key: value for key, value in metrics.items() if not key.name.startswith("_")}
        for baseline in self._baselines:
            changes = {
                key.make_diff_key(): value - shown[key.make_baseline_key(baseline)]
                for key, value in shown.items()
                if key.model_name != baseline
            }
            shown.update(changes)
        return shown
