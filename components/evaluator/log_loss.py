"""Computes the binary cross-entropy in TFMA, also for probabilities that round to 0 or 1.

TFMA's own metric takes the logarithm of 0 there, and one such row makes the whole metric NaN or infinite.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import tensorflow_model_analysis as tfma

_LEAST = float(np.finfo(np.float64).eps)
"""Smallest distance of probabilities from 0 and 1; scikit-learn uses the same for the log loss of the report."""


@dataclasses.dataclass
class _Sums:
    loss: float = 0.0
    weight: float = 0.0


class LogLoss(tfma.metrics.Metric):
    """The weighted mean of `-label * log(p) - (1 - label) * log(1 - p)`, p between 2.2e-16 and 1 - 2.2e-16.

    The class must not have the same name as TFMA's: TFMA would use its own, even if another module is named.

    Args:
      name: name of the metric, in results.
    """

    def __init__(self, name: str = "log_loss") -> None:
        super().__init__(tfma.metrics.merge_per_key_computations(_computations), name=name)


def _computations(
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
    rows = functools.partial(
        tfma.metrics.to_label_prediction_example_weight,
        eval_config=eval_config,
        model_name=model_name,
        output_name=output_name,
        sub_key=sub_key,
        aggregation_type=aggregation_type,
        class_weights=class_weights,
        example_weighted=example_weighted,
    )
    return [tfma.metrics.MetricComputation(keys=[key], preprocessors=None, combiner=_LogLossCombiner(key, rows))]


class _LogLossCombiner(beam.CombineFn):
    def __init__(self, key: Any, rows: Any) -> None:
        self._key = key
        self._rows = rows

    def create_accumulator(self) -> _Sums:
        return _Sums()

    def add_input(self, accumulator: _Sums, element: Any) -> _Sums:
        for label, prediction, weight in self._rows(element):
            accumulator.loss += float(np.sum(log_losses(label, prediction))) * float(np.sum(weight))
            accumulator.weight += float(np.sum(weight))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[_Sums]) -> _Sums:
        merged = _Sums()
        for one in accumulators:
            merged.loss += one.loss
            merged.weight += one.weight
        return merged

    def extract_output(self, accumulator: _Sums) -> dict[Any, float]:
        return {self._key: accumulator.loss / accumulator.weight if accumulator.weight else float("nan")}


def log_losses(label: Any, prediction: Any) -> npt.NDArray[np.float64]:
    """Compute the loss of each predicted probability, given its label, 0 or 1."""
    probability = np.clip(np.asarray(prediction, np.float64), _LEAST, 1 - _LEAST)
    losses: npt.NDArray[np.float64] = -label * np.log(probability) - (1 - label) * np.log1p(-probability)
    return losses
