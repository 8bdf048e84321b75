"""Looks up rows of tables on CPU and combines them, in the same way in training and in the exported model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.config import Combiner
from embedding_core.feature_specs import Count, FeatureConfigs, FeatureSpec, Ids, Quantization, Weights, specs_of
from embedding_core.normal_form import NormalForm, Shape, normal_form, with_valid_ids
from embedding_core.structures import Nested, flat_like, flat_pairs
from embedding_core.tracing import as_written

Rows: TypeAlias = tf.Tensor  # float [N, dim]
Table: TypeAlias = "tf.Variable | tf.Tensor"  # [rows, dim]


@as_written
def cpu_embedding_lookup(
    inputs: Nested, weights: Nested, tables: Mapping[Any, Any], feature_config: FeatureConfigs
) -> Nested:
    """Look up and combine the rows of every feature; can be exported with an unknown batch size.

    A drop-in for `tf.tpu.experimental.embedding.serving_embedding_lookup`, with the differences that
    the documentation lists: dense [B, 1] gives [B, dim], trailing empty rows stay in the batch, an empty or
    zero-weight row gives zeros, weights are kept as given (NaN and infinity count as zero), and quantization is
    honoured.

    Args:
      inputs: dense, sparse or ragged ids in the structure of `feature_config`; keys of dicts and the end of a
        list or tuple may be left out.
      weights: None, or a structure like `inputs` whose leaves are weights or None.
      tables: [rows, dim] variables or tensors, keyed by TableConfig (this project's or TensorFlow's) or by name.
      feature_config: an EmbeddingConfig, or a structure of FeatureConfig (this project's or TensorFlow's).

    Returns:
      Activations in the structure of `inputs`: [B, dim] combined, [B, max_sequence_length, dim] for
      sequences, [*output_shape, dim] for ragged ids with an output shape, [*ids.shape[:-1], dim] for ids of rank
      > 2.

    Raises:
      DataError (ValueError): an input is not configured, a container has another type than the configured one, or an
        input or weight is of a kind that its feature cannot have.
      KeyError: a table is missing.
      tf.errors.InvalidArgumentError: an id is outside its table and `invalid_id` is "error".
    """
    specs = specs_of(feature_config, tables)
    pairs = flat_pairs("inputs", specs, inputs, partial=True)
    flat_weights = [None] * len(pairs) if weights is None else flat_like("weights", inputs, weights)
    activations = [
        _looked_up(spec, value, weight, tables[spec.table])
        for (spec, value), weight in zip(pairs, flat_weights, strict=True)
    ]
    return tf.nest.pack_sequence_as(inputs, activations)


def _looked_up(spec: FeatureSpec, value: Ids, weight: Weights, table: Table) -> tf.Tensor:
    form = normal_form(spec, value, weight, serving=True)
    if spec.invalid_id != "error":  # the gather itself fails on an invalid id, naming it
        form = with_valid_ids(spec, form)
    return combine(table, form, spec.combiner, spec.quantization)


def combine(
    table: Table,
    form: NormalForm,
    combiner: Combiner,
    quantization: Quantization | None = None,
    name: str | None = None,
) -> Rows:
    """Gather the rows of a normal form and combine them: the one function that turns rows into a vector.

    Over the ids i of one output row, "sum" is the sum of w_i * row_i, "mean" divides it by the sum of w_i,
    and "sqrtn" by the root of the sum of w_i^2; x / 0 is 0.

    `combine_weighted` is the definition, and `combine_in_order` its fast path for unweighted ids in order. If each
    output row has one id, neither is called. Every other lookup calls these two, and the contract test checks that
    all paths agree.

    Args:
      table: [rows, dim] variable or tensor.
      form: the ids.
      combiner: how several ids of one output row become one vector.
      quantization: applied to the rows before they are combined.
      name: name of the operation that fails on an id outside the table; letters, digits and underscores.

    Returns:
      float [*leading, dim] activations.
    """
    rows = tf.gather(table, form.ids, name=name)
    if quantization is not None:
        rows = _quantized_forward(rows, quantization)
    if form.segments is not None and form.ascending and form.weights is None:
        rows = combine_in_order(rows, form.segments, form.rows, "sum" if form.single else combiner)
    elif form.segments is not None:
        rows = combine_weighted(rows, form.segments, form.rows, form.weights, _divisors_of(form, combiner))
    if form.leading is None:
        return rows
    return tf.reshape(rows, _with_dim(form.leading, rows))


def combine_weighted(
    rows: Rows, segments: tf.Tensor, count: Count, weights: tf.Tensor | None, divisors: tf.Tensor | None
) -> Rows:
    """Sum the weighted rows of each output row, and divide the sums.

    Args:
      rows: [N, dim].
      segments: the output row of each, in any order, [N].
      count: number of output rows.
      weights: float32 [N], or None for ones.
      divisors: what `weight_divisors` returned, [count]; None for ones.

    Returns:
      [count, dim]; zeros for an output row without rows, or with a divisor of zero.
    """
    if weights is not None:
        rows = rows * tf.cast(weights, rows.dtype)[:, tf.newaxis]
    sums = tf.math.unsorted_segment_sum(rows, segments, count)
    return sums if divisors is None else tf.math.divide_no_nan(sums, tf.cast(divisors, sums.dtype)[:, tf.newaxis])


def weight_divisors(combiner: Combiner, segments: tf.Tensor, count: Count, weights: tf.Tensor) -> tf.Tensor | None:
    """Compute the divisor of each output row's sum, float32 [count], 0 for an empty row; None if all are 1."""
    if combiner == "sum":
        return None
    if combiner == "mean":
        return tf.math.unsorted_segment_sum(weights, segments, count)
    return tf.sqrt(tf.math.unsorted_segment_sum(tf.square(weights), segments, count))


def combine_in_order(
    rows: Rows, segments: tf.Tensor, count: Count, combiner: Combiner, places: tf.Tensor | None = None
) -> Rows:
    """Combine unweighted rows by one operation: the fast path of `combine_weighted`.

    Args:
      rows: [N, dim]; with `places`, a table of any number of rows.
      segments: the output row of each, in ascending order, [N].
      count: number of output rows.
      combiner: how the rows of one output row become one vector.
      places: which rows of the table to combine, [N]; this avoids the gather, but makes the gradient dense.

    Returns:
      [count, dim]; zeros for an output row without rows.
    """
    operation = {
        "sum": tf.raw_ops.SparseSegmentSumWithNumSegments,
        "mean": tf.raw_ops.SparseSegmentMeanWithNumSegments,
        "sqrtn": tf.raw_ops.SparseSegmentSqrtNWithNumSegments,
    }[combiner]
    if places is None:
        places = tf.range(tf.shape(rows)[0])
    return operation(data=rows, indices=places, segment_ids=segments, num_segments=count)


def _with_dim(leading: Shape, rows: Rows) -> Shape:
    dim = rows.shape[-1] if rows.shape[-1] is not None else tf.shape(rows)[-1]
    if isinstance(leading, list):
        return [*leading, dim]
    return tf.concat([leading, tf.cast([dim], leading.dtype)], 0)


def _divisors_of(form: NormalForm, combiner: Combiner) -> tf.Tensor | None:
    if combiner == "sum" or form.single:
        return None
    weights = form.weights if form.weights is not None else tf.ones_like(form.ids, tf.float32)
    return weight_divisors(combiner, form.segments, form.rows, weights)


def quantized(rows: tf.Tensor, quantization: Quantization) -> tf.Tensor:
    """Round rows to the nearest of `num_buckets` values between `lower` and `upper`, as the TPU simulates it."""
    lower, upper = quantization.lower, quantization.upper
    step = (upper - lower) / (quantization.num_buckets - 1)
    clipped = tf.clip_by_value(rows, lower, upper)
    return tf.floor((clipped - lower) / step + 0.5) * step + lower


def _quantized_forward(rows: tf.Tensor, quantization: Quantization) -> tf.Tensor:
    """Quantize rows, and pass gradients through: rounding has none, so otherwise the table would never be trained."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def forward(values: Rows) -> tuple[Rows, Callable[[Rows], Rows]]:
        return quantized(values, quantization), lambda gradient: gradient

    return forward(rows)


def row_gradients(form: NormalForm, combiner: Combiner, gradient: tf.Tensor) -> Rows:
    """Compute the gradient of each gathered row: the transpose of `combine`.

    Args:
      form: the ids that were looked up.
      combiner: combiner of their table.
      gradient: gradient of the activations, [*leading, dim].

    Returns:
      [N, dim] gradients, one per id; quantization passes them through unchanged.
    """
    gradient = tf.reshape(gradient, [-1, gradient.shape[-1]])
    return spread_gradient(gradient, form.segments, form.weights, _divisors_of(form, combiner))


def spread_gradient(
    gradient: Rows, segments: tf.Tensor | None, weights: tf.Tensor | None, divisors: tf.Tensor | None
) -> Rows:
    """Compute the gradient of each row, [N, dim], from that of the output rows: the transpose of `combine_weighted`.

    Args:
      gradient: gradient of the output rows, [count, dim].
      segments: the output row of each row, [N]; None if row i is output row i.
      weights: float32 [N], or None for ones.
      divisors: what `weight_divisors` returned, [count]; None for ones.
    """
    if divisors is not None:
        gradient = tf.math.divide_no_nan(gradient, divisors[:, tf.newaxis])
    if segments is not None:
        gradient = tf.gather(gradient, segments)
    return gradient if weights is None else gradient * weights[:, tf.newaxis]
