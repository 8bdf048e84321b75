"""Wraps the internals of TFMA (0.47) that Evaluator uses: accumulators of metrics, validation, and file formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.contrib.aggregates.binary_confusion_matrices import Matrix, _ThresholdEntry
from tensorflow_model_analysis.evaluators.metrics_validator import validate_metrics
from tensorflow_model_analysis.metrics.calibration_histogram import Bucket
from tensorflow_model_analysis.metrics.metric_specs import to_computations
from tensorflow_model_analysis.proto import config_pb2, validation_result_pb2
from tensorflow_model_analysis.slicer.slicer_lib import get_slices_for_features_dicts
from tensorflow_model_analysis.writers.metrics_plots_and_validations_writer import (
    CombineValidations,
    convert_slice_metrics_to_proto,
)

Computation: TypeAlias = Any  # a MetricComputation or a DerivedMetricComputation
Combiner: TypeAlias = Any
Metrics: TypeAlias = dict[Any, Any]  # values by TFMA's keys
SliceKey: TypeAlias = tuple[tuple[str, Any], ...]
SlicedMetrics: TypeAlias = tuple[SliceKey, Metrics]
ValidationResult: TypeAlias = validation_result_pb2.ValidationResult


def computations_of(config: config_pb2.EvalConfig) -> list[Computation]:
    """Return the computations of all metrics, each after those that it needs, without duplicates."""
    distinct: dict[Any, Computation] = {}
    for one in to_computations(list(config.metrics_specs), eval_config=config):
        # A derived metric may have the same key as the sums that it is computed from.
        distinct.setdefault((is_derived(one), *one.keys), one)
    return list(distinct.values())


def is_derived(computation: Computation) -> bool:
    """Return whether the computation makes metrics from other metrics, and not from rows."""
    return isinstance(computation, tfma.metrics.DerivedMetricComputation)


def thresholds_of(combiner: Combiner) -> list[float]:
    """Return the thresholds of a combiner of confusion matrices."""
    return list(combiner._binary_confusion_matrices._thresholds)


def bucket(number: int, labels: float, predictions: float, weights: float) -> Bucket:
    """Make one bucket of a calibration histogram from its weighted sums."""
    return Bucket(number, labels, predictions, weights)


def confusion(tp: float, tn: float, fp: float, fn: float) -> Any:
    """Make the entry of one threshold in an accumulator of confusion matrices."""
    return _ThresholdEntry(Matrix(tp=tp, tn=tn, fp=fp, fn=fn), [], [], [], [])


def slice_keys(features: Mapping[str, Any], spec: tfma.slicer.SingleSliceSpec) -> list[SliceKey]:
    """Return the slices of one row, given the values of its columns."""
    return list(get_slices_for_features_dicts([features], None, [spec]))


def metrics_message(sliced: SlicedMetrics) -> bytes:
    """Serialize the metrics of a slice as TFMA's files hold them."""
    return bytes(convert_slice_metrics_to_proto(sliced, add_metrics_callbacks=[]).SerializeToString())


def validated(all_metrics: Iterable[SlicedMetrics], config: config_pb2.EvalConfig) -> ValidationResult:
    """Compare the metrics of all slices with the thresholds of the configuration."""
    combined = CombineValidations(config, rubber_stamp=True)
    result = combined.create_accumulator()
    for sliced in all_metrics:
        result = combined.add_input(result, validate_metrics(sliced, config))
    return combined.extract_output(result)


def eval_run_json(config: config_pb2.EvalConfig, data_location: str, models: Mapping[str, str]) -> str:
    """Return the content of `eval_config.json`, which TFMA keeps with an evaluation."""
    from tensorflow_model_analysis.writers import eval_config_writer

    return str(eval_config_writer._serialize_eval_run(config, data_location, "tfrecords_gzip", dict(models)))
