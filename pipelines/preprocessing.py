"""Transforms the dense features, the label and the sample weight.

The configuration uses `preprocessing_fn` by default. Your own function has the same signature and may call the
functions below::

    def preprocessing_fn(inputs, custom_config):
        outputs = preprocessing.dense_features(inputs, custom_config)
        outputs |= preprocessing.sample_weights(inputs, custom_config)
        outputs["my_label"] = preprocessing.checked_label(my_rule(inputs), "my_label")
        return outputs

Transform does not handle categorical features, except those with `after_transform`: your function returns these as
text or whole numbers, under the name of their column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from components.transform_graph import range_output, recorded_range
from embedding_core.errors import DataError

Column: TypeAlias = "tf.Tensor | tf.SparseTensor | tf.RaggedTensor"
Inputs: TypeAlias = Mapping[str, Column]
Settings: TypeAlias = Mapping[str, Any]
"""Transform's `custom_config`, as `pipelines.pipeline.component_inputs.transform_config` makes it."""


def preprocessing_fn(inputs: Inputs, custom_config: Settings) -> dict[str, tf.Tensor]:
    """Return the dense features (z-scores; a missing value gets the mean), the label and the sample weight.

    Args:
      inputs: raw columns by name; dense, sparse or ragged tensors.
      custom_config: the settings.

    Returns:
      float32 tensors [B, 1]: each dense feature under its own name, each label under its key, and "sample_weight" if
      the configuration names one. Also the range of each dense feature, [B, 5].
    """
    return {
        **dense_features(inputs, custom_config),
        **sample_weights(inputs, custom_config),
        **labels(inputs, custom_config),
    }


def dense_features(inputs: Inputs, custom_config: Settings) -> dict[str, tf.Tensor]:
    """Return every dense feature of the configuration, scaled, and its range, which the trainer records.

    With a warm start that keeps ranges, `custom_config["ranges"]` has those of the previous model: the range of a
    feature is used if its column and `log1p` are the same. Other ranges are computed from the train split, as `scaled`
    does.
    """
    features = custom_config["dense"]
    if not features:
        return {}
    values = [
        _number(_column(inputs, feature["column"]), feature["column"], log1p=feature["log1p"]) for feature in features
    ]
    previous = custom_config.get("ranges", {})
    spans = ranges_of(tf.concat(values, axis=1), [recorded_range(feature, previous) for feature in features])
    outputs = {}
    for feature, value, span in zip(features, values, spans, strict=True):
        outputs[feature["name"]] = scaled_by(value, span)
        outputs[range_output(feature["name"])] = tf.repeat(tf.stack(span)[None], tf.shape(value)[0], axis=0)
    return outputs


def labels(inputs: Inputs, custom_config: Settings) -> dict[str, tf.Tensor]:
    """Return each label as float32 [B, 1] under its key; labels that your function computes are left out.

    A label of kind "multiclass" is the position of its class. A label of kind "positive" is 1 in each row. Any other
    label is its column. If there are several labels, a label that a row lacks is NaN.
    """
    made = {}
    several = len(custom_config["labels"]) > 1
    for label in custom_config["labels"]:
        column, key = label["column"], label["key"]
        if label["kind"] == "positive":
            made[key] = tf.ones([_rows(inputs), 1])
        elif label["kind"] == "multiclass" and column is not None:
            made[key] = class_ids(_column(inputs, column), column, key)
        elif column is not None:
            value = one_value(_column(inputs, column), column)
            made[key] = checked_label(value, column, label["kind"], may_lack=several)
    return made


def class_ids(tensor: Column, column: str, key: str) -> tf.Tensor:
    """Return the position of each row's class among the classes of the train split, float32 [B, 1].

    The position is NaN for a row without a class, and for a class that the train split does not have: such rows of the
    eval split are not judged. The classes are ordered by their fingerprints (a hash), not by their counts: a later run
    with the same classes continues the output layer of this run.

    Args:
      tensor: at most one text or whole number per row.
      column: name of its column, for messages.
      key: key under which your `preprocessing_fn` returns the result; the vocabulary has this name.
    """
    values = tensor if tensor.dtype == tf.string else _as_text(tensor)
    texts = fill_missing(values, "", column)
    ids = tft.compute_and_apply_vocabulary(texts, vocab_filename=key, fingerprint_shuffle=True)
    return tf.where(ids >= 0, tf.cast(ids, tf.float32), tf.fill(tf.shape(ids), float("nan")))


def _as_text(tensor: Column) -> Column:
    if isinstance(tensor, tf.SparseTensor):
        return tensor.with_values(tf.strings.as_string(tensor.values))
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(tf.strings.as_string(tensor.flat_values))
    return tf.strings.as_string(tensor)


def _rows(inputs: Inputs) -> tf.Tensor:
    column = next(iter(inputs.values()))
    if isinstance(column, tf.SparseTensor):
        return column.dense_shape[0]
    return column.nrows() if isinstance(column, tf.RaggedTensor) else tf.shape(column)[0]


def sample_weights(inputs: Inputs, custom_config: Settings) -> dict[str, tf.Tensor]:
    """Return the weights as float32 [B, 1] under "sample_weight"; nothing if the configuration names no column.

    A weight that is missing, negative or not finite is an error when the row is read.
    """
    column = custom_config["sample_weight_column"]
    if column is None:
        return {}
    value = one_value(_column(inputs, column), column)
    rule = f"sample weight `{column}`: a row has no finite weight >= 0; set it, or leave such rows out (row_filters)."
    return {"sample_weight": _checked(value, tf.math.is_finite(value) & (value >= 0), rule)}


def scaled(tensor: Column, column: str, *, log1p: bool = False) -> tf.Tensor:
    """Scale one number per row to mean 0 and variance 1 over the train split.

    Values that are missing, not finite or implausible (see `pipelines.preprocessing.ranges_of`) become 0, and so do
    all values of a constant column.

    Args:
      tensor: the raw column, at most one number per row.
      column: its name, for messages.
      log1p: whether sign(x) log(1 + |x|) is scaled instead of x.

    Returns:
      float32 [B, 1].
    """
    value = _number(tensor, column, log1p=log1p)
    return scaled_by(value, *ranges_of(value, [None]))


def _number(tensor: Column, column: str, *, log1p: bool) -> tf.Tensor:
    value = one_value(tensor, column)
    return tf.sign(value) * tf.math.log1p(tf.abs(value)) if log1p else value


def checked_label(value: tf.Tensor, name: str, kind: str = "binary", *, may_lack: bool = False) -> tf.Tensor:
    """Return the label as float32; a missing label (NaN), or an invalid one, is an error when the row is read.

    Args:
      value: the label of each row.
      name: its name, for the error.
      kind: "binary" (0 or 1), "regression" (a finite number) or "count" (a finite number of at least 0).
      may_lack: whether a missing label is valid.
    """
    value = tf.cast(value, tf.float32)
    if kind == "binary":
        good, words, condition = (value == 0) | (value == 1), "0 or 1", "column, in: [0, 1]"
    elif kind == "count":
        good, words, condition = tf.math.is_finite(value) & (value >= 0), "a number of at least 0", "column, min: 0"
    else:
        good, words, condition = tf.math.is_finite(value), "a finite number", "column, present: true"
    rule = (
        f"label `{name}`: a row has none, or one that is not {words}; correct the data, or leave such rows out by a "
        f"row filter ({condition})."
    )
    return _checked(value, good | tf.math.is_nan(value) if may_lack else good, rule)  # a comparison with NaN is false


def one_value(tensor: Column, column: str) -> tf.Tensor:
    """Return the one number of every row as float32 [B, 1]; NaN if a row has none."""
    return fill_missing(tensor, float("nan"), column, dtype=tf.float32)


def fill_missing(tensor: Column, default: float | str, column: str, *, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return the one value of every row as a dense tensor [B, 1], or the default if a row has none.

    Args:
      tensor: dense [B] or [B, 1], sparse [B, any] or ragged [B, None].
      default: value for rows without one.
      column: name of the column, for the error if a row has several values.
      dtype: type to cast to before filling; None keeps the tensor's.

    Raises:
      DataError: the tensor holds text, and `dtype` is numeric.
    """
    if isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_sparse()
    if tensor.dtype == tf.string and dtype is not None and dtype != tf.string:
        raise DataError(f"column {column!r} holds text: it must hold numbers to be a dense feature, label or weight.")
    tensor = tf.cast(tensor, dtype) if dtype is not None else tensor
    if not isinstance(tensor, tf.SparseTensor):
        return tf.reshape(tensor, [-1, 1])
    rule = f"column `{column}`: a row has several values, but one is expected; make it a multivalent feature."
    indices = _checked(tensor.indices, tensor.indices[:, 1] < 1, rule)
    shape = tf.stack([tensor.dense_shape[0], 1])
    dense = tf.sparse.to_dense(tf.SparseTensor(indices, tensor.values, shape), default_value=default)
    return tf.reshape(dense, [-1, 1])


def _column(inputs: Inputs, column: str) -> Column:
    if column not in inputs:
        raise DataError(
            f"the data has no column {column!r}: it has {', '.join(sorted(inputs))}; correct the configuration."
        )
    return inputs[column]


def _checked(value: tf.Tensor, good: tf.Tensor, message: str) -> tf.Tensor:
    """Assert `good` whenever the value is computed; `pipelines.console.expected_errors` finds the message."""
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [f"DataError: {message}"])]):
        return tf.identity(value)


# Computes the range that a dense feature is scaled by: mean, standard deviation and the largest plausible magnitude.
#
# Makes one pass over the data, and does not sum floats. A float32 is a whole number of 24 bits times a power of two, so
# whole numbers are summed per power of two. The range is then the same to the last bit, however Beam batches the rows.

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
