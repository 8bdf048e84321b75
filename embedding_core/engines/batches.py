"""The ids of a batch as the engine holds them: one list per table, over all its features and cores.

A TPU's engine works per table too. `TableBatch` is the normal form of all features of one table;
parts that would say nothing (every id a row of its own, all weights one) are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.features import NormalForm
from embedding_core.lookup import divisor, quantized
from embedding_core.translate import TableSpec

__all__ = ["PART_TYPES", "TableBatch", "activations_of", "joined", "packed", "row_gradients_of"]

PART_TYPES = (tf.int64, tf.int64, tf.float32, tf.float32)


class TableBatch(NamedTuple):
    """The ids of one table.

    Attributes:
      ids: int64 [N].
      segments: the output row of each id over all cores, int64 [N]; [0] where id i is output row i.
      weights: float32 [N]; [0] for ones.
      divisors: float32 [rows], of the sum of each output row; [0] for ones.
    """

    ids: Any
    segments: Any
    weights: Any
    divisors: Any


def packed(
    table: TableSpec, forms: Sequence[NormalForm], rows: Sequence[int], *, first_row: int, explicit: bool
) -> TableBatch:
    """The features of one table on one core.

    Args:
      table: the table.
      forms: one per feature of the table.
      rows: the number of output rows of each feature.
      first_row: number of this core's first output row among those of all cores.
      explicit: whether to leave no part empty.
    """
    identity = not explicit and all(form.segments is None for form in forms)
    weighted = explicit or any(form.weights is not None for form in forms)
    scales = [divisor(form, table.combiner) for form in forms]
    divided = explicit or any(scale is not None for scale in scales)
    starts = [first_row + sum(rows[:place]) for place in range(len(rows))]
    parts = list(zip(forms, rows, starts, scales, strict=True))
    return TableBatch(
        _concat([tf.cast(form.ids, tf.int64) for form in forms], tf.int64),
        _concat([] if identity else [_segments(form, start) for form, _, start, _ in parts], tf.int64),
        _concat([_weights(form) for form in forms] if weighted else [], tf.float32),
        _concat(
            [tf.ones([count]) if scale is None else tf.ensure_shape(scale, [count]) for _, count, _, scale in parts]
            if divided
            else [],
            tf.float32,
        ),
    )


def _concat(values: Sequence[Any], dtype: Any) -> Any:
    if not values:
        return tf.zeros([0], dtype)
    return values[0] if len(values) == 1 else tf.concat(values, 0)


def _segments(form: NormalForm, start: int) -> Any:
    if form.segments is None:
        return tf.range(tf.size(form.ids, tf.int64)) + start
    return tf.cast(form.segments, tf.int64) + start


def _weights(form: NormalForm) -> Any:
    return tf.ones_like(form.ids, tf.float32) if form.weights is None else form.weights


def joined(parts: Sequence[TableBatch], rows: int) -> TableBatch:
    """The parts of all cores, in the order of the cores, as one batch of `rows` output rows.

    Raises:
      tf.errors.InvalidArgumentError: some cores were given other kinds of inputs than others.
    """
    if len(parts) == 1:
        return parts[0]
    whole = TableBatch(*(tf.concat(values, 0) for values in zip(*parts, strict=True)))
    count = tf.size(whole.ids)
    same = [
        tf.logical_or(tf.equal(tf.size(part), 0), tf.equal(tf.size(part), size))
        for part, size in ((whole.segments, count), (whole.weights, count), (whole.divisors, rows))
    ]
    message = "Cores were given other kinds of inputs than others in one step: give every core the same kinds."
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(tf.stack(same)), [message])]):
        return whole._replace(ids=tf.identity(whole.ids))


def activations_of(table: TableSpec, looked_up: Any, batch: TableBatch, rows: int) -> Any:
    """Combine the rows of a table.

    Args:
      table: the table.
      looked_up: [N, dim] rows of `batch.ids`.
      batch: the ids.
      rows: number of output rows.

    Returns:
      [rows, dim] activations.
    """
    if table.quantization is not None:
        looked_up = quantized(looked_up, table.quantization)

    def combined() -> Any:
        weighted = _if_any(batch.weights, lambda: looked_up * batch.weights[:, tf.newaxis], looked_up)
        summed = _if_any(
            batch.segments, lambda: tf.math.unsorted_segment_sum(weighted, batch.segments, rows), weighted, rows
        )
        return _divided(summed, batch.divisors)

    plain = tf.equal(tf.size(batch.segments) + tf.size(batch.weights) + tf.size(batch.divisors), 0)
    whole = tf.equal(tf.size(batch.ids), rows)
    found = tf.cond(tf.logical_and(plain, whole), lambda: tf.identity(looked_up), combined)
    return tf.ensure_shape(found, [rows, table.dim])


def _if_any(part: Any, then: Any, otherwise: Any, rows: Any = None) -> Any:
    """`then()` where the part holds something, or where the values do not have the wanted number of rows."""
    given = tf.size(part) > 0
    if rows is not None:
        given = tf.logical_or(given, tf.not_equal(tf.shape(otherwise)[0], rows))
    return tf.cond(given, then, lambda: tf.identity(otherwise))


def _divided(values: Any, divisors: Any) -> Any:
    return _if_any(divisors, lambda: tf.math.divide_no_nan(values, divisors[:, tf.newaxis]), values)


def row_gradients_of(batch: TableBatch, gradient: Any) -> Any:
    """The gradient of each row that was looked up, [N, dim], from that of the activations, [rows, dim]."""

    def spread() -> Any:
        divided = _divided(gradient, batch.divisors)
        gathered = _if_any(batch.segments, lambda: tf.gather(divided, batch.segments), divided, tf.size(batch.ids))
        return _if_any(batch.weights, lambda: gathered * batch.weights[:, tf.newaxis], gathered)

    parts = tf.size(batch.segments) + tf.size(batch.weights) + tf.size(batch.divisors)
    plain = tf.logical_and(tf.equal(parts, 0), tf.equal(tf.size(batch.ids), tf.shape(gradient)[0]))
    found = tf.cond(plain, lambda: tf.identity(gradient), spread)
    return tf.ensure_shape(found, [None, gradient.shape[-1]])
