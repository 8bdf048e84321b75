"""Adds up batches of scored rows by slice, and derives the values of the metrics as TFMA does.

TFMA computes a metric in two steps: a combiner adds up rows, and derived computations turn the sums into values. This
module computes the sums with numpy, for the combiners of the metrics that a configuration may name. TFMA's own code
runs the second step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from tensorflow_model_analysis.proto import config_pb2

from components.evaluator import score_buckets, tfma_parts
from components.evaluator.group_auc import GroupSums
from components.evaluator.model_scores import ModelScores, Numbers, ScoredBatch
from components.evaluator.ranking_sums import RankingSums
from components.evaluator.slices import Positions
from components.evaluator.tfma_parts import Combiner, Metrics
from embedding_core.errors import ConfigError

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
        """Take the numbers of the buckets, below `buckets`, the quantities, and what makes metrics of their sums."""
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
        made: Metrics = combiner.extract_output({one: tfma_parts.bucket(one, *values) for one, values in entries})
        return made

    return _Buckets(bucket_of, _BUCKETS + 2, _means, output)


def _areas() -> _Buckets:
    """Make the buckets of `score_buckets`."""

    def output(combiner: Combiner, buckets: Positions, sums: Numbers) -> Metrics:
        del buckets
        made: Metrics = combiner.output_of(sums[:, 0], sums[:, 1])
        return made

    return _Buckets(score_buckets.bucket_of, score_buckets.BUCKETS, _labels, output)


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
        self._sums = {one: _Sums(_matrix(one), lambda _, sums: {"cells": sums}) for one in thresholds}

    def add(self, scores: ModelScores, rows: Positions, slices: Positions) -> None:
        for sums in self._sums.values():
            sums.add(scores, rows, slices)

    def of_slice(self, combiner: Combiner, number: int) -> Metrics:
        entries = {one: tfma_parts.confusion(*sums.of_slice(None, number)["cells"]) for one, sums in self._sums.items()}
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
        self._derived = [one for one in computations if tfma_parts.is_derived(one)]
        base = [one for one in computations if not tfma_parts.is_derived(one)]
        self._totals = [(one.combiner, one.keys[0], _total_of(one.combiner)) for one in base]

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
