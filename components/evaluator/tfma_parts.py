"""Wraps the internals of TFMA (0.47) that Evaluator uses: accumulators, validation, file formats, and slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
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
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from embedding_core.errors import DataError

Computation: TypeAlias = Any  # a MetricComputation or a DerivedMetricComputation
Combiner: TypeAlias = Any
Metrics: TypeAlias = dict[Any, Any]  # values by TFMA's keys
SliceKey: TypeAlias = tuple[tuple[str, Any], ...]
SlicedMetrics: TypeAlias = tuple[SliceKey, Metrics]
ValidationResult: TypeAlias = validation_result_pb2.ValidationResult


def computations_of(config: config_pb2.EvalConfig) -> list[Computation]:
    """Return the computations of all metrics, each after those that it needs, without duplicates."""
    distinct: dict[Any, Computation] = {}
    for computation in to_computations(list(config.metrics_specs), eval_config=config):
        # A derived metric may have the same key as the sums that it is computed from.
        distinct.setdefault((is_derived(computation), *computation.keys), computation)
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


# Finds the slices that each row belongs to, by TFMA's own rules.

Positions: TypeAlias = npt.NDArray[np.int64]
_Row: TypeAlias = tuple[tuple[Any, ...], ...]
"""The values of one row in the columns of a slicing specification."""


class SliceGroups:
    """Numbers the slices in the order of their first rows; the slice of all rows is number 0.

    Attributes:
      keys: TFMA's key of each slice, by number.
    """

    def __init__(self, config: config_pb2.EvalConfig) -> None:
        """Take the slices that the configuration asks for."""
        columns = [sorted({*spec.feature_keys, *spec.feature_values}) for spec in config.slicing_specs]
        specs = [tfma.slicer.SingleSliceSpec(spec=spec) for spec in config.slicing_specs]
        given = zip(specs, columns, strict=True)
        self._slicings = [_Slicing(spec, named, {}) for spec, named in given if named]
        self._decoder = ExamplesToRecordBatchDecoder() if self._slicings else None
        self._numbers: dict[SliceKey, int] = {(): 0}
        self.keys: list[SliceKey] = [()]

    def of_rows(self, serialized: npt.NDArray[np.object_]) -> tuple[Positions, Positions]:
        """Return all pairs of a row and one of its slices, as an array of rows and an array of slices.

        Args:
          serialized: tf.Examples.
        """
        rows, slices = [np.arange(len(serialized))], [np.zeros(len(serialized), np.int64)]
        if self._decoder is not None:
            records = self._decoder.DecodeBatch(serialized.tolist())
            for slicing in self._slicings:
                numbers = [self._numbers_of(slicing, row) for row in slicing.rows(records)]
                rows.append(np.repeat(rows[0], [len(each) for each in numbers]))
                slices.append(np.array([number for each in numbers for number in each], np.int64))
        return np.concatenate(rows), np.concatenate(slices)

    def _numbers_of(self, slicing: _Slicing, row: _Row) -> list[int]:
        numbers = slicing.known.get(row)
        if numbers is None:
            numbers = slicing.known[row] = [self._number(key) for key in slicing.keys_of(row)]
        return numbers

    def _number(self, key: SliceKey) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number


@dataclasses.dataclass(frozen=True)
class _Slicing:
    """One slicing specification, its columns, and a cache of slice numbers by the values of a row in these columns."""

    spec: tfma.slicer.SingleSliceSpec
    columns: list[str]
    known: dict[_Row, list[int]]

    def rows(self, records: pa.RecordBatch) -> Iterator[_Row]:
        return zip(*(_cells(records, name) for name in self.columns), strict=True)

    def keys_of(self, row: _Row) -> list[SliceKey]:
        cells = zip(self.columns, row, strict=True)
        features = {name: _array(values) for name, values in cells if values}
        try:
            return list(get_slices_for_features_dicts([features], None, [self.spec]))
        except ValueError as error:  # a text is not UTF-8, which TFMA requires
            raise DataError(f"cannot slice the metrics by {self.columns}: {error}; slice by another column.") from error


def _array(values: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Return an array of the values; bytes become objects, because NumPy's bytes type drops NULs at their end."""
    return np.array(values, object if isinstance(values[0], bytes) else None)


def _cells(records: pa.RecordBatch, name: str) -> list[tuple[Any, ...]]:
    """Return the values of each row of a column; rows of an absent column have none."""
    index = records.schema.get_field_index(name)
    if index < 0:
        return [()] * records.num_rows
    return [tuple(values or ()) for values in records.column(index).to_pylist()]
