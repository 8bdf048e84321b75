"""Stores rows of tables in the types that are served, and computes the float32 rows that they stand for.

float16 rows are rounded to 11 significant bits. An int8 row of n values has n + 8 bytes: a level from -127 to 127 for
each value, then the row's scale and offset, float32. A value is level * scale + offset. The offset is the middle of the
row's values, and the scale is the difference between the largest and the smallest, divided by 254. Rows of equal values
have the scale 0 and are exact. The error of a value is at most the sum of

- half the scale,
- 2**-22 of the row's largest absolute value, for four roundings of float32,
- 2**-118, because a scale or offset below the normal numbers of float32 becomes 0.

A row is stored whole, so that one operation gathers it, and one write replaces it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.rows_dtype import INT8_FACTS, RowsDtype

Floats = npt.NDArray[np.float32]

_LEVELS = 127
_NORMAL = float(np.finfo(np.float32).tiny)


def encoded(rows: Floats, dtype: RowsDtype) -> npt.NDArray[Any]:
    """Store rows, float32 `[N, dim]`, as `[N, row_width(dim, dtype)]` of type `dtype`.

    Values that float16 cannot hold become infinite, and a row that int8 cannot hold has a scale or offset that is not
    finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _int8(rows) if dtype == "int8" else rows.astype(dtype, copy=False)


def _int8(rows: Floats) -> npt.NDArray[np.int8]:
    least, most = rows.min(1).astype(np.float64), rows.max(1).astype(np.float64)
    facts = np.stack([(most - least) / (2 * _LEVELS), (most + least) / 2], 1).astype(np.float32)
    facts[np.abs(facts) < _NORMAL] = 0  # TensorFlow computes with denormal numbers as with 0
    scale, offset = facts[:, :1].astype(np.float64), facts[:, 1:].astype(np.float64)
    levels = np.rint((rows - offset) / np.where(scale == 0, np.inf, scale))
    stored = np.empty((len(rows), rows.shape[1] + INT8_FACTS), np.int8)
    stored[:, :-INT8_FACTS] = np.nan_to_num(np.clip(levels, -_LEVELS, _LEVELS))
    stored[:, -INT8_FACTS:] = facts.view(np.int8)
    return stored


def decoded(rows: tf.Tensor) -> tf.Tensor:
    """Return the float32 rows `[..., dim]` that stored rows `[..., width]` stand for; their type says how."""
    if rows.dtype == tf.float32:
        return rows
    if rows.dtype != tf.int8:
        return tf.cast(rows, tf.float32)
    dim = rows.shape[-1] - INT8_FACTS
    scale = tf.bitcast(rows[..., dim : dim + 4], tf.float32)[..., tf.newaxis]
    offset = tf.bitcast(rows[..., dim + 4 :], tf.float32)[..., tf.newaxis]
    return tf.cast(rows[..., :dim], tf.float32) * scale + offset


def rounded(rows: Floats, dtype: RowsDtype) -> Floats:
    """Return the float32 rows that are served for `rows`, computed by NumPy."""
    stored = encoded(rows, dtype)
    if dtype != "int8":
        return stored.astype(np.float32, copy=False)
    facts = np.ascontiguousarray(stored[:, -INT8_FACTS:]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = stored[:, :-INT8_FACTS].astype(np.float32) * facts[:, :1] + facts[:, 1:]
    return values
