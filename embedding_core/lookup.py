"""Brings ids to one normal form, and looks up and combines rows on CPU, in training as in the exported model.

Ids may be dense, sparse or ragged, with weights, sequences and output shapes. The normal form of a feature is a sparse
matrix: N ids, and for each its output row and its weight. The product of the matrix and a table is the lookup; the
product of its transpose and the gradient of the activations is the gradient of the table's rows. Lookup, training and
serving all use it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.config import Combiner
from embedding_core.errors import DataError
from embedding_core.feature_specs import Count, FeatureConfigs, FeatureSpec, Ids, Quantization, Weights, specs_of
from embedding_core.structures import Nested, flat_like, flat_pairs
from embedding_core.tracing import as_written

Shape: TypeAlias = "list[int] | tf.Tensor"


@dataclasses.dataclass(frozen=True)
class NormalForm:
    """The ids of one feature in one batch.

    Attributes:
      ids: int32 or int64 [N].
      segments: output row of each id, int [N]; None if id i belongs to output row i.
      weights: float32 [N], or None for ones.
      rows: number of output rows, an int or an int scalar tensor.
      leading: output shape without `dim`, a shape tensor or list; None if it is `[rows]`.
      ascending: whether `segments` is known to be in ascending order.
      single: whether every output row has at most one id and no weight, so that no combiner is needed.
    """

    ids: tf.Tensor
    segments: Any
    weights: tf.Tensor | None
    rows: Any
    leading: Shape | None = None
    ascending: bool = True
    single: bool = False

    def select(self, keep: tf.Tensor) -> NormalForm:
        """Keep only the ids for which the bool [N] `keep` is true; all output rows remain."""
        segments = tf.range(tf.size(self.ids)) if self.segments is None else self.segments
        return dataclasses.replace(
            self,
            ids=tf.boolean_mask(self.ids, keep),
            segments=tf.boolean_mask(segments, keep),
            weights=None if self.weights is None else tf.boolean_mask(self.weights, keep),
        )


def kind_of(value: object) -> str:
    """Return the kind of a feature's value: "dense", "sparse" or "ragged"; "" for anything else."""
    if isinstance(value, tf.SparseTensor):
        return "sparse"
    if isinstance(value, tf.RaggedTensor):
        return "ragged"
    return "dense" if tf.is_tensor(value) or isinstance(value, tf.Variable) else ""


def normal_form(
    spec: FeatureSpec, value: Ids, weight: Weights = None, *, weighted_sequences: bool = False, serving: bool = False
) -> NormalForm:
    """Convert one feature of one batch to the normal form.

    Args:
      spec: the feature.
      value: dense ids [B], [B, 1] or [B, .., 1]; sparse ids of rank >= 2, in any order; ragged ids [B, None].
      weight: None, or weights of the same kind and with the same indices as `value`.
      weighted_sequences: whether a sequence may have weights, as in the TPU's engine; the combiner is then
        applied to each position separately.
      serving: whether a weight that is not finite counts as zero; see `finite_weight`.

    Raises:
      DataError (ValueError): the kind, type, rank or weight is not one that the feature can have.
      tf.errors.InvalidArgumentError: a weight is not finite, unless `serving`.
    """
    kind = kind_of(value)
    if not kind:
        raise DataError(
            f"Input {spec.path} is type {type(value)}: Tensor, SparseTensor or RaggedTensor expected; "
            "convert it with tf.constant."
        )
    _check_weight(spec, value, kind, weight)
    if weight is not None and not weighted_sequences:
        _refuse_sequence_weight(spec, kind, value)
    value = _with_index_dtype(spec, value)
    if kind == "dense":
        return _dense(spec, value)
    weight = None if weight is None else finite_weight(spec.path, weight, serving=serving)
    return _sparse(spec, value, weight) if kind == "sparse" else _ragged(spec, value, weight)


def finite_weight(
    path: str, weight: tf.SparseTensor | tf.RaggedTensor, *, serving: bool = False
) -> tf.SparseTensor | tf.RaggedTensor:
    """Cast the weights of a feature to float32, and handle NaN and infinity.

    A NaN or infinite weight is an error in training, even if its id is dropped later, and counts as zero in serving. A
    weight that is too large for float32 is infinite.

    Args:
      path: name of the feature, for the message.
      weight: sparse or ragged weights.
      serving: whether a weight that is not finite counts as zero.

    Raises:
      tf.errors.InvalidArgumentError: a weight is not finite, unless `serving`.
    """
    ragged = isinstance(weight, tf.RaggedTensor)
    values = tf.cast(weight.flat_values if ragged else weight.values, tf.float32)
    if serving:
        values = tf.where(tf.math.is_finite(values), values, tf.zeros_like(values))
    else:
        values = tf.debugging.assert_all_finite(
            values, f"A weight of feature {path} is NaN or infinite: correct the weights."
        )
    return weight.with_flat_values(values) if ragged else weight.with_values(values)


def _check_weight(spec: FeatureSpec, value: Ids, kind: str, weight: Weights) -> None:
    if kind == "dense" and spec.max_sequence_length > 0:
        raise DataError(
            f"Feature {spec.path} is a sequence feature but a dense tensor was passed: pass a SparseTensor or "
            "RaggedTensor, or set max_sequence_length to 0."
        )
    if weight is None:
        return
    if kind == "dense":
        raise DataError(f"Weight specified for {spec.path}, but input is dense: pass None as its weight.")
    if kind_of(weight) != kind:
        raise DataError(
            f"Weight for {spec.path} is of type {type(weight)} but it does not match type of the input which is "
            f"{type(value)}: build the weights as a {kind} tensor with the indices of the ids."
        )


def _refuse_sequence_weight(spec: FeatureSpec, kind: str, value: Ids) -> None:
    ignored = kind == "sparse" and _rank(value) != 2  # max_sequence_length applies to ids of rank 2 only
    if spec.max_sequence_length > 0 and not ignored:
        raise DataError(f"Weight specified for {spec.path}, but this is a sequence feature: pass None as its weight.")


def _rank(value: Ids) -> int | None:
    rank: int | None = value.shape.rank
    return rank


def _with_index_dtype(spec: FeatureSpec, value: Ids) -> Ids:
    if value.dtype in (tf.int32, tf.int64):
        return value
    if not value.dtype.is_integer:
        raise DataError(
            f"Ids of {spec.path} are of type {value.dtype.name}: they must be integers; turn tokens into ids with a "
            "vocabulary, and never cast floats to ids."
        )
    return tf.cast(value, tf.int64)


def _dense(spec: FeatureSpec, ids: tf.Tensor) -> NormalForm:
    rank = _rank(ids)
    if rank is None or rank == 0:
        raise DataError(f"Input {spec.path} has shape {ids.shape}: dense ids must have rank 1 or above.")
    if rank == 1:
        return NormalForm(ids, None, None, _count(ids), single=True)
    if ids.shape[-1] not in (1, None):
        raise DataError(
            f"Input {spec.path} has shape {ids.shape}: Rank 2 or above dense tensor should have last dimension as 1. "
            f"For several ids per example pass a SparseTensor or RaggedTensor; to look up each at its own position, "
            "add a last dimension with tf.expand_dims(ids, -1)."
        )
    leading = ids.shape[:-1].as_list() if ids.shape[:-1].is_fully_defined() else tf.shape(ids)[:-1]
    ids = tf.ensure_shape(ids, [*[None] * (rank - 1), 1])
    if rank == 2:
        ids = tf.squeeze(ids, -1)
        return NormalForm(ids, None, None, _count(ids), single=True)
    ids = tf.reshape(ids, [-1])
    return NormalForm(ids, None, None, _count(ids), leading, single=True)


def _count(ids: tf.Tensor) -> Count:
    return tf.size(ids) if ids.shape[0] is None else ids.shape[0]


def _sparse(spec: FeatureSpec, ids: tf.SparseTensor, weight: tf.SparseTensor | None) -> NormalForm:
    rank = _rank(ids)
    if rank is None or rank < 2:
        raise DataError(f"Input {spec.path} has shape {ids.shape}: Rank 2 or above sparse tensor is supported.")
    if weight is not None:
        same_indices(spec, ids.indices, weight.indices)
    weights = None if weight is None else weight.values
    if rank == 2:
        form = NormalForm(ids.values, ids.indices[:, 0], weights, _rows_of(ids), ascending=False)
        if spec.max_sequence_length > 0 and spec.output_shape is None:
            return _as_sequence(form, ids.indices[:, 1], spec.max_sequence_length)
        return form
    outer = ids.dense_shape[:-1]
    strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
    segments = tf.reduce_sum(ids.indices[:, :-1] * strides, axis=1)
    static = ids.shape[:-1]
    leading = static.as_list() if static.is_fully_defined() else outer
    return NormalForm(ids.values, segments, weights, tf.reduce_prod(outer), leading, ascending=False)


def _rows_of(ids: tf.SparseTensor) -> Count:
    return ids.shape[0] if ids.shape[0] is not None else ids.dense_shape[0]


def _ragged(spec: FeatureSpec, ids: tf.RaggedTensor, weight: tf.RaggedTensor | None) -> NormalForm:
    if _rank(ids) != 2 or ids.ragged_rank != 1:
        raise DataError(f"Input {spec.path} has shape {ids.shape}: Only 2D ragged tensor is supported.")
    if weight is not None:
        same_indices(spec, ids.row_splits, weight.row_splits)
    weights = None if weight is None else weight.values
    rows = ids.shape[0] if ids.shape[0] is not None else ids.nrows()
    form = NormalForm(ids.values, segments_of_splits(ids.row_splits, ids.values), weights, rows)
    if spec.output_shape is not None:
        return _reshaped(spec, form, ids)
    if spec.max_sequence_length > 0:
        return _as_sequence(form, _positions(form, ids), spec.max_sequence_length)
    return form


def segments_of_splits(splits: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Compute the row of each value, int64 [N], from row splits [rows + 1].

    This takes two operations. RaggedTensor.value_rowids takes about twenty, and memory for the number of rows times the
    length of the longest row.
    """
    sparse = tf.raw_ops.RaggedTensorToSparse(rt_nested_splits=[splits], rt_dense_values=values)
    return tf.ensure_shape(sparse.sparse_indices, [None, 2])[:, 0]


def _positions(form: NormalForm, ids: tf.RaggedTensor) -> tf.Tensor:
    """Compute the position of each value within its row, [N]."""
    starts = tf.gather(ids.row_splits, form.segments)
    return tf.range(tf.size(ids.values, out_type=starts.dtype), dtype=starts.dtype) - starts


def _as_sequence(form: NormalForm, positions: tf.Tensor, length: int) -> NormalForm:
    """Give each id an output row of its own, and drop the ids of a row beyond the first `length`."""
    rows = form.rows
    keep = positions < tf.cast(length, positions.dtype)
    segments = form.segments * tf.cast(length, form.segments.dtype) + tf.cast(positions, form.segments.dtype)
    static = isinstance(rows, int)
    leading = [rows, length] if static else tf.stack([rows, tf.cast(length, rows.dtype)])
    form = dataclasses.replace(
        form, segments=segments, rows=rows * length, leading=leading, single=form.weights is None
    )
    return form.select(keep)


def _reshaped(spec: FeatureSpec, form: NormalForm, ids: tf.RaggedTensor) -> NormalForm:
    """Give a ragged feature its output shape, by upstream's rule.

    Let k be the number of elements of the output shape, divided by the number of ragged rows. If k is 1, each ragged
    row is combined to one output row. If k > 1, each ragged row is a sequence of k output rows. If the batch size is
    unknown, k is computed at run time.
    """
    shape = list(spec.output_shape or ())
    rows = form.rows
    unknown = [place for place, size in enumerate(shape) if size is None]
    if unknown not in ([], [0]):
        raise DataError(f"`output_shape` of {spec.path} is {shape}: only its first dimension may be None.")
    tail = math.prod(size for size in shape if size is not None)
    if unknown:
        length = tail
        leading: Shape = [-1, *shape[1:]]
    else:
        length = _places(spec, tail, rows)
        leading = shape
    if isinstance(length, int):
        if length == 1:
            return dataclasses.replace(form, leading=leading)
        return dataclasses.replace(_as_sequence(form, _positions(form, ids), length), leading=leading)
    return _places_at_run_time(form, ids, length, leading)


def _places(spec: FeatureSpec, total: int, rows: Count) -> Count:
    """Compute how many output rows a ragged row has; an int if the batch size is known."""
    message = (
        "Output shape set in the FeatureConfig should be the factor of the batch of its input: that of "
        f"{spec.path} has {total} elements, which is not a multiple of the number of ragged rows."
    )
    if isinstance(rows, int):
        if rows == 0 or total % rows:
            raise DataError(f"{message} The batch is {rows}.")
        return total // rows
    check = tf.debugging.assert_equal(
        tf.math.floormod(tf.cast(total, rows.dtype), rows), tf.zeros([], rows.dtype), message
    )
    with tf.control_dependencies([check] if check is not None else []):
        return tf.cast(total, rows.dtype) // rows


def _places_at_run_time(form: NormalForm, ids: tf.RaggedTensor, length: tf.Tensor, leading: Shape) -> NormalForm:
    positions = _positions(form, ids)
    combine = tf.equal(length, 1)
    places = tf.cast(length, form.segments.dtype)
    segments = tf.where(combine, form.segments, form.segments * places + tf.cast(positions, form.segments.dtype))
    moved = dataclasses.replace(form, segments=segments, rows=form.rows * length, leading=leading)
    return moved.select(tf.logical_or(combine, positions < tf.cast(length, positions.dtype)))


def same_indices(spec: FeatureSpec, ids: tf.Tensor, weights: tf.Tensor) -> None:
    """Refuse weights whose indices (or row splits) differ from those of the ids.

    Raises:
      DataError (ValueError): they differ; a tf.function raises tf.errors.InvalidArgumentError when it runs.
    """
    if ids is weights:
        return
    message = (
        f"Weights of {spec.path} have other indices than its ids: every id needs its own weight; build the weights "
        "with the indices (or row splits) of the ids."
    )
    try:
        tf.debugging.Assert(tf.reduce_all(tf.equal(tf.shape(ids), tf.shape(weights))), [message])
        tf.debugging.assert_equal(tf.cast(ids, tf.int64), tf.cast(weights, tf.int64), message=message)
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        raise DataError(message) from error


def with_valid_ids(spec: FeatureSpec, form: NormalForm) -> NormalForm:
    """Apply the feature's `invalid_id` policy: no id of the result is outside the table.

    "error" fails the step with a tf.errors.InvalidArgumentError that names the feature, "row" replaces invalid ids by
    the id of the table's last row, and "drop" removes them.
    """
    size = tf.cast(spec.vocabulary_size, form.ids.dtype)
    if spec.invalid_id == "error":
        bad = tf.reduce_any(tf.logical_or(form.ids < 0, form.ids >= size))
        message = (
            f"An id of feature {spec.path} is outside its table of {spec.vocabulary_size} rows: correct the ids, or "
            "set invalid_id to 'row' or 'drop'."
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(bad), [message])]):
            return dataclasses.replace(form, ids=tf.identity(form.ids))
    valid = tf.logical_and(form.ids >= 0, form.ids < size)
    if spec.invalid_id == "row":
        return dataclasses.replace(form, ids=tf.where(valid, form.ids, size - 1))
    return form.select(valid)


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
