"""Finds the slices that each row belongs to, by TFMA's own rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from components.evaluator.tfma_parts import SliceKey, slice_keys
from embedding_core.errors import DataError

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
            return slice_keys(features, self.spec)
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
