"""Converts serialized tf.Examples to the tensors of the signature `raw`, for clients and for tests of the signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.columns import MISSING, Columns

Value: TypeAlias = bytes | int | float

_KINDS = {tf.string: "bytes_list", tf.int64: "int64_list", tf.float32: "float_list"}


def named_inputs(columns: Columns, rows: Sequence[bytes]) -> tuple[dict[str, npt.NDArray[Any]], list[int]]:
    """Read rows with the protobuf parser of Python into named tensors.

    Args:
      columns: raw columns of a model.
      rows: serialized tf.Examples.

    Returns:
      Arrays by input name, and the numbers of the rows they hold. Rows with several values in a column of one value
      are left out, because its tensor cannot hold them.
    """
    specs = columns.named_specs
    parsed = [_values(tf.train.Example.FromString(row), columns, specs) for row in rows]
    fits = [all(_fits(specs[name], values[name]) for name in specs) for values in parsed]
    kept = [number for number, good in enumerate(fits) if good]
    return {name: _array(spec, [parsed[number][name] for number in kept]) for name, spec in specs.items()}, kept


def _values(example: tf.train.Example, columns: Columns, specs: Mapping[str, tf.TensorSpec]) -> dict[str, list[Value]]:
    features = example.features.feature
    return {
        name: list(getattr(features[column], _KINDS[specs[name].dtype]).value) if column in features else []
        for name, column in columns.inputs.items()
    }


def _fits(spec: tf.TensorSpec, values: Sequence[Value]) -> bool:
    width = _width(spec)
    return width is None or len(values) in {0, width}


def _width(spec: tf.TensorSpec) -> int | None:
    """Return the number of values of a row; None for any number."""
    count = spec.shape[1:].num_elements()
    return None if count is None else int(count)


def _array(spec: tf.TensorSpec, rows: Sequence[Sequence[Value]]) -> npt.NDArray[Any]:
    width = _width(spec) or max(map(len, rows), default=0)
    dtype = object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
    padded = np.full((len(rows), width), MISSING[spec.dtype], dtype)
    for number, values in enumerate(rows):
        padded[number, : len(values)] = values
    return padded.reshape([len(rows), *(width if size is None else size for size in spec.shape[1:])])
