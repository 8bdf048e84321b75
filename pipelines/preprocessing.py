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

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_transform as tft

from components.transform_graph import range_output, recorded_range
from embedding_core.errors import DataError
from pipelines.pipeline.ranges import ranges_of, scaled_by

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

    Values that are missing, not finite or implausible (see `pipelines.pipeline.ranges.ranges_of`) become 0, and so do
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
