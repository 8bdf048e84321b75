"""Computes the range that a dense feature is scaled by: mean, standard deviation and the largest plausible magnitude.

Makes one pass over the data, and does not sum floats. A float32 is a whole number of 24 bits times a power of two, so
whole numbers are summed per power of two. The range is then the same to the last bit, however Beam batches the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

_BINS = 256  # number of exponents of a float32; the first is that of 0 and of subnormal numbers
_RARE = 100  # fewer than one in this many values of a column may be implausible
_FAR = 10  # powers of two from the bound of most values to the bound of implausible values
_CONSTANT = 2.0**-22  # a deviation below this share of the mean is a rounding error of float32
_FLOAT_MAX = float(np.finfo(np.float32).max)


class Range(NamedTuple):
    """What a feature is scaled by, as scalar tensors.

    Attributes:
      mean, deviation: float32, of the plausible values; the deviation of a constant column is 0.
      limit: float32; a value of a larger magnitude is implausible, and scaled like a missing one.
      values: float32, how many finite values were analysed.
      implausible: float32, how many of them are beyond the limit.
    """

    mean: tf.Tensor
    deviation: tf.Tensor
    limit: tf.Tensor
    values: tf.Tensor
    implausible: tf.Tensor


def ranges_of(values: tf.Tensor, recorded: Sequence[Mapping[str, float] | None]) -> list[Range]:
    """Analyse the ranges of columns over the train split, all in one analysis, since each analysis costs Beam time.

    Let p be the smallest power of two that 99 of 100 values other than 0 stay below. A value is implausible if its
    magnitude is at least 2^10 * p. So two rows of 3e38 among thousands of fares do not change the mean and deviation.

    Args:
      values: float32 [B, columns], a batch; values that are not finite count as missing.
      recorded: for each column, the mean, deviation and limit of a previous model, to use instead of measuring this
        data; None measures it.
    """
    sums = tf.cast(tft.sum(_sums_by_exponent(values)[None], reduce_instance_dims=False), tf.float64)
    counts = sums[:, :, 0]
    total = tf.reduce_sum(counts, axis=1)
    from_above = tf.cumsum(counts, axis=1, reverse=True, exclusive=True)  # values of larger exponents, by exponent
    others = tf.maximum(tf.reduce_sum(counts[:, 1:], axis=1, keepdims=True), 1.0)
    usual = tf.argmax(tf.cast(_RARE * from_above < others, tf.int32), axis=1)
    last = tf.minimum(usual + _FAR, _BINS - 2)  # the last exponent means a value that is not finite
    known = np.array([column is not None for column in recorded])
    limits = np.array([column["limit"] if column else 0.0 for column in recorded], np.float32)
    last = tf.where(known, (limits.view(np.int32) >> 23).astype(np.int64), last)
    plausible = tf.cast(tf.range(_BINS, dtype=tf.int64) <= last[:, None], tf.float64)
    mean, deviation = _moments(sums * plausible[:, :, None])
    limit = tf.where(last < _BINS - 2, _largest_of_exponent(last), _FLOAT_MAX)
    implausible = total - tf.reduce_sum(counts * plausible, axis=1)
    measured = {"mean": mean, "deviation": deviation, "limit": limit}
    span = [
        tf.where(known, np.array([column[name] if column else 0.0 for column in recorded], np.float64), value)
        for name, value in measured.items()
    ]
    columns = tf.unstack(tf.cast(tf.stack([*span, total, implausible], axis=1), tf.float32))
    return [Range(*tf.unstack(column)) for column in columns]


def scaled_by(value: tf.Tensor, span: Range) -> tf.Tensor:
    """Return the value with mean 0 and deviation 1; 0 if it is missing (NaN), infinite or implausible, or constant."""
    plausible = tf.abs(value) <= span.limit  # false for NaN
    normal = tf.math.divide_no_nan(value - span.mean, span.deviation)
    return tf.where(plausible, normal, tf.zeros_like(normal))


def _sums_by_exponent(values: tf.Tensor) -> tf.Tensor:
    """Return int64 [columns, 256, 4]: count, sum of mantissas, sums of the upper and lower halves of their squares."""
    columns = values.shape[1]
    bits = tf.cast(tf.bitcast(values, tf.int32), tf.int64)
    exponent = (bits // 2**23) % _BINS  # floor division: the sign bit only adds a multiple of _BINS
    mantissa = bits % 2**23 + tf.where(exponent > 0, tf.constant(2**23, tf.int64), tf.constant(0, tf.int64))
    square = mantissa * mantissa
    signed = tf.where(bits < 0, -mantissa, mantissa)
    added = tf.stack([tf.ones_like(mantissa), signed, square // 2**24, square % 2**24], axis=2)
    place = tf.range(columns, dtype=tf.int64) * _BINS + exponent
    place = tf.where(tf.math.is_finite(values), place, -tf.ones_like(place))  # a negative place is left out
    sums = tf.math.unsorted_segment_sum(added, place, columns * _BINS)
    return tf.reshape(sums, [columns, _BINS, 4])


def _moments(sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute mean and deviation of each column, float64, from the variance within and between the exponents."""
    exponents = np.maximum(np.arange(_BINS), 1) - 150.0
    unit = tf.constant(np.exp2(np.minimum(exponents, 104.0)), tf.float64)
    counts, totals = sums[:, :, 0], sums[:, :, 1]
    means = tf.math.divide_no_nan(totals, counts)
    within = tf.math.divide_no_nan(sums[:, :, 2] * 2.0**24 + sums[:, :, 3], counts) - means**2
    total = tf.reduce_sum(counts, axis=1)
    mean = tf.math.divide_no_nan(tf.reduce_sum(totals * unit, axis=1), total)
    squares = counts * (tf.maximum(within, 0.0) * unit**2 + (means * unit - mean[:, None]) ** 2)
    deviation = tf.sqrt(tf.math.divide_no_nan(tf.reduce_sum(squares, axis=1), total))
    return mean, tf.where(deviation > _CONSTANT * tf.abs(mean), deviation, tf.zeros_like(deviation))


def _largest_of_exponent(exponent: Any) -> tf.Tensor:
    """Return the largest float32 of an exponent, as float64: one step below the next power of two."""
    powers = np.exp2(np.arange(_BINS) - 126.0) * (1 - 2.0**-24)
    return tf.gather(tf.constant(np.minimum(powers, _FLOAT_MAX), tf.float64), exponent)
