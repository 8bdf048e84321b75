"""What Transform does to the dense features, the label and the sample weight.

`preprocessing_fn` is used where the configuration names none. A function of your own has the same
signature and may call the functions below::

    def preprocessing_fn(inputs, custom_config):
        outputs = preprocessing.dense_features(inputs, custom_config)
        outputs |= preprocessing.sample_weights(inputs, custom_config)
        outputs["my_label"] = preprocessing.checked_label(my_rule(inputs), "my_label")
        return outputs

Categorical features are no business of Transform, but for those with `after_transform`, which such a
function returns as text or whole numbers under the name of their column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from components.transform_graph import range_output
from embedding_core.errors import DataError
from pipelines.pipeline.ranges import Range, range_of, scaled_by

__all__ = [
    "checked_label",
    "dense_features",
    "fill_missing",
    "labels",
    "one_value",
    "preprocessing_fn",
    "sample_weights",
    "scaled",
]

Inputs: TypeAlias = Mapping[str, Any]


def preprocessing_fn(inputs: Inputs, custom_config: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return the dense features (missing is the mean, z-score), the label and the sample weight.

    Args:
      inputs: raw columns by name; dense, sparse or ragged tensors.
      custom_config: as made by `pipelines.pipeline.component_inputs.transform_config`.

    Returns:
      float32 tensors [B, 1]: each dense feature under its own name, "label", and "sample_weight" where the
      configuration names one; and [B, 5], the range of each dense feature.
    """
    return {
        **dense_features(inputs, custom_config),
        **sample_weights(inputs, custom_config),
        **labels(inputs, custom_config),
    }


def dense_features(inputs: Inputs, custom_config: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Every dense feature of the configuration by name, scaled, and the range of each, which the trainer records.

    The ranges are those of `custom_config["ranges"]` if it has one of the same column and `log1p`: with a warm start
    these are the ranges that the earlier model was trained with. Others are measured, as `scaled` does.
    """
    outputs = {}
    for feature in custom_config["dense"]:
        name, column = feature["name"], feature["column"]
        value = _number(_column(inputs, column), column, log1p=feature["log1p"])
        span = _range_of(value, feature, custom_config.get("ranges", {}).get(name))
        outputs[name] = scaled_by(value, span)
        outputs[range_output(name)] = tf.repeat(tf.stack(span)[None], tf.shape(value)[0], axis=0)
    return outputs


def _range_of(value: tf.Tensor, feature: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> Range:
    """The range of an earlier model if it is one of this very feature, else that of the train split."""
    same = earlier is not None and all(earlier.get(key) == feature[key] for key in ("column", "log1p"))
    return range_of(tf.boolean_mask(value, tf.math.is_finite(value)), earlier if same else None)


def labels(inputs: Inputs, custom_config: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The label column as float32 [B, 1] under "label"; nothing where the label is no column of the data."""
    column = custom_config["label_column"]
    if column is None:
        return {}
    value = one_value(_column(inputs, column), column)
    return {custom_config["label_key"]: checked_label(value, column)}


def sample_weights(inputs: Inputs, custom_config: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The weights as float32 [B, 1] under "sample_weight"; nothing where the configuration names no column.

    A row without a weight, or with one below 0, is an error when the row is read.
    """
    column = custom_config["sample_weight_column"]
    if column is None:
        return {}
    value = one_value(_column(inputs, column), column)
    rule = f"sample weight `{column}`: a row has no finite weight >= 0; set it, or leave such rows out (row_filters)."
    return {"sample_weight": _checked(value, tf.math.is_finite(value) & (value >= 0), rule)}


def scaled(tensor: Any, column: str, *, log1p: bool = False) -> tf.Tensor:
    """Scale a number per row to mean 0 and variance 1 over the train split; what is no plausible number becomes 0.

    That is a missing value, one that is not finite, and one far beyond all but 1 in 100 of the others
    (`pipelines.pipeline.ranges.range_of`).

    Args:
      tensor: the raw column, at most one number per row.
      column: its name, for messages.
      log1p: whether sign(x) log(1 + |x|) is scaled instead of x.

    Returns:
      float32 [B, 1].
    """
    value = _number(tensor, column, log1p=log1p)
    return scaled_by(value, range_of(tf.boolean_mask(value, tf.math.is_finite(value))))


def _number(tensor: Any, column: str, *, log1p: bool) -> tf.Tensor:
    value = one_value(tensor, column)
    return tf.sign(value) * tf.math.log1p(tf.abs(value)) if log1p else value


def checked_label(value: tf.Tensor, name: str) -> tf.Tensor:
    """The label as float32, where a missing (NaN) one, or one that is not 0 or 1, is an error when the row is read."""
    value = tf.cast(value, tf.float32)
    rule = (
        f"label `{name}`: a row has none, or one that is not 0 or 1; correct the data, or leave such rows out by a row "
        "filter (column, in: [0, 1])."
    )
    return _checked(value, (value == 0) | (value == 1), rule)  # NaN is neither


def one_value(tensor: Any, column: str) -> tf.Tensor:
    """The one number of every row as float32 [B, 1]; NaN where a row has none."""
    return fill_missing(tensor, float("nan"), column, dtype=tf.float32)


def fill_missing(tensor: Any, default: Any, column: str, *, dtype: tf.DType | None = None) -> tf.Tensor:
    """The one value of every row as a dense tensor [B, 1], the default where a row has none.

    Args:
      tensor: dense [B] or [B, 1], sparse [B, any] or ragged [B, None].
      default: value for rows without one.
      column: name of the column, for the message where a row has several values.
      dtype: type to cast to before filling; None keeps the tensor's.
    """
    if isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_sparse()
    if tensor.dtype == tf.string and dtype is not None and dtype != tf.string:
        raise DataError(f"column {column!r} holds text: it must hold numbers to be a dense feature, label or weight.")
    tensor = tf.cast(tensor, dtype) if dtype is not None else tensor
    if not isinstance(tensor, tf.SparseTensor):
        return tf.reshape(tensor, [-1, 1])
    rule = f"column `{column}`: a row has several values where one is expected; make it a multivalent feature."
    indices = _checked(tensor.indices, tensor.indices[:, 1] < 1, rule)
    shape = tf.stack([tensor.dense_shape[0], 1])
    dense = tf.sparse.to_dense(tf.SparseTensor(indices, tensor.values, shape), default_value=default)
    return tf.reshape(dense, [-1, 1])


def _column(inputs: Inputs, column: str) -> Any:
    if column not in inputs:
        raise DataError(
            f"the data has no column {column!r}: it has {', '.join(sorted(inputs))}; correct the configuration."
        )
    return inputs[column]


def _checked(value: tf.Tensor, good: tf.Tensor, message: str) -> tf.Tensor:
    """The value, with an assertion on `good`; `pipelines.console.expected_errors` finds the message again."""
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [f"DataError: {message}"])]):
        return tf.identity(value)
