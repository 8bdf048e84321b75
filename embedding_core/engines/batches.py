"""Packs the ids of a batch into one list per table, over all its features and cores, and looks their rows up.

A TPU's engine also works per table. In a core's queue the ids keep their kind (dense, ragged or with output rows), and
the lists of all tables are concatenated. What the lookup needs is computed once for all cores, when `joined` runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import tensorflow as tf

from embedding_core.config import Combiner
from embedding_core.feature_specs import Count
from embedding_core.lookup import (
    combine_in_order,
    combine_weighted,
    segments_of_splits,
    spread_gradient,
    weight_divisors,
)
from embedding_core.translate import TableSpec

Made = TypeVar("Made")
WIRE_TYPES = (tf.int64, tf.int64, tf.int64, tf.float32)


@dataclasses.dataclass(frozen=True)
class FeatureIds:
    """The ids of one feature on one core.

    Attributes:
      ids: int [N].
      rows: the number of output rows.
      splits: the positions where each output row's ids start and end, int [rows + 1]; None if the ids are not in order
        of their output rows, or if id i belongs to output row i.
      segments: the output row of each id, int [N]; None if `splits` gives it, or if id i belongs to output row i.
      weights: float32 [N], or None for ones.
    """

    ids: tf.Tensor
    rows: int
    splits: tf.Tensor | None = None
    segments: tf.Tensor | None = None
    weights: tf.Tensor | None = None


class TableIds(NamedTuple):
    """The ids of one table on one core, as they are sent; a part that is None is not sent.

    Attributes:
      ids: int64 [N].
      splits: int64, the splits of each feature in turn.
      segments: int64 [N], the output row of each id, numbered over all cores; if given, weights are given too.
      weights: float32 [N].
    """

    ids: tf.Tensor
    splits: tf.Tensor | None = None
    segments: tf.Tensor | None = None
    weights: tf.Tensor | None = None


class TableBatch(NamedTuple):
    """The ids of one table, from all cores.

    Attributes:
      ids: int64 [N].
      segments: the output row of each id, int64 [N]; empty if id i belongs to output row i.
      weights: float32 [N]; empty for ones.
      divisors: divisor of the sum of each output row, float32 [rows]; empty for one id per row. Ignored for "sum".
      form: 0 for ids only, 1 with output rows in order, 2 with weights too; int32 scalar. Conditions test this and not
        the size of a part, because TensorFlow's graph optimizer (2.16) assumes a branch's shapes outside of it too.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    weights: tf.Tensor
    divisors: tf.Tensor
    form: tf.Tensor


def packed(features: Sequence[FeatureIds], *, first_row: int, explicit: bool) -> TableIds:
    """Pack the ids of a table's features on one core.

    Args:
      features: the table's features.
      first_row: number of this core's first output row among those of all cores.
      explicit: whether to give the output row and the weight of every id, even if the inputs do not need them.
    """
    ids = _concat([tf.cast(feature.ids, tf.int64) for feature in features])
    if explicit or any(feature.segments is not None for feature in features):
        starts = [first_row + sum(feature.rows for feature in features[:place]) for place in range(len(features))]
        segments = [row_numbers(feature) + start for feature, start in zip(features, starts, strict=True)]
        return TableIds(ids, None, _concat(segments), _concat([weights_or_ones(feature) for feature in features]))
    weighted = any(feature.weights is not None for feature in features)
    ragged = weighted or any(feature.splits is not None for feature in features)
    return TableIds(
        ids,
        _concat([_splits(feature) for feature in features]) if ragged else None,
        None,
        _concat([weights_or_ones(feature) for feature in features]) if weighted else None,
    )


def _concat(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.concat(values, 0)


def _splits(feature: FeatureIds) -> tf.Tensor:
    return tf.range(feature.rows + 1, dtype=tf.int64) if feature.splits is None else tf.cast(feature.splits, tf.int64)


def row_numbers(feature: FeatureIds) -> tf.Tensor:
    """Return the output row of each id, int64 [N]."""
    if feature.segments is not None:
        return tf.cast(feature.segments, tf.int64)
    return segments_of_splits(_splits(feature), feature.ids)


def weights_or_ones(feature: FeatureIds) -> tf.Tensor:
    """Return the weight of each id, float32 [N]."""
    return tf.ones_like(feature.ids, tf.float32) if feature.weights is None else feature.weights


def flattened(tables: Sequence[TableIds]) -> list[tf.Tensor]:
    """Return the ids of all tables as four lists, one for each part, and the parts' lengths, int32 [parts, tables]."""
    parts = list(zip(*tables, strict=True))
    lists = [
        _concat(found) if (found := [part for part in column if part is not None]) else tf.zeros([0], dtype)
        for column, dtype in zip(parts, WIRE_TYPES, strict=True)
    ]
    return [*lists, tf.convert_to_tensor([[_length(part) for part in column] for column in parts], tf.int32)]


def _length(part: tf.Tensor | None) -> Count:
    if part is None:
        return 0
    return tf.size(part) if part.shape[0] is None else part.shape[0]


def joined(
    cores: Sequence[Sequence[tf.Tensor]], tables: Sequence[TableSpec], rows: Sequence[Sequence[int]], *, first_core: int
) -> list[TableBatch]:
    """Return the flattened ids of consecutive cores as one batch per table.

    Args:
      cores: what `flattened` gave for each core.
      tables: the tables.
      rows: the number of output rows of each feature of each table, on one core.
      first_core: number of the first of the cores.

    Raises:
      tf.errors.InvalidArgumentError: the cores were given different kinds of inputs.
    """
    split = [
        [tf.split(part, lengths[turn], num=len(tables)) for turn, part in enumerate(lists)] for *lists, lengths in cores
    ]
    total = tf.add_n([lengths for *_, lengths in cores])
    with tf.control_dependencies([_same_kinds(total, len(cores), rows)]):
        there = tf.cast(tf.transpose(total) > 0, tf.int32)
        lists = [
            [tf.ensure_shape(_concat([core[part][turn] for core in split]), [None]) for part in range(len(WIRE_TYPES))]
            for turn in range(len(tables))
        ]
    batch_of = traced_once(_batch)
    return [
        TableBatch(parts[0], *batch_of(table.combiner, tuple(own), len(cores), first_core, *parts, there[turn]))
        for turn, (table, parts, own) in enumerate(zip(tables, lists, rows, strict=True))
    ]


def _same_kinds(total: tf.Tensor, cores: int, rows: Sequence[Sequence[int]]) -> tf.Operation:
    splits = tf.constant([cores * (sum(own) + len(own)) for own in rows], tf.int32)
    expected = tf.stack([total[0], splits, total[0], total[0]])
    fits = tf.reduce_all(tf.logical_or(tf.equal(total, expected), tf.equal(total, 0)))
    message = "Cores were given other kinds of inputs than others in one step: give every core the same kinds."
    return tf.debugging.Assert(fits, [message])


def _batch(
    combiner: Combiner,
    rows: tuple[int, ...],
    cores: int,
    first_core: int,
    ids: tf.Tensor,
    splits: tf.Tensor,
    segments: tf.Tensor,
    weights: tf.Tensor,
    there: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute the fields of a TableBatch after `ids`; `there` is 1 for each part that was sent, else 0."""
    total = cores * sum(rows)

    def dense() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros([0], tf.int64), tf.zeros([0])

    def ragged() -> tuple[tf.Tensor, tf.Tensor]:
        lengths = _lengths(splits, rows)
        counts = tf.cast(lengths, tf.float32)
        return _of_lengths(lengths, ids), tf.sqrt(counts) if combiner == "sqrtn" else counts

    def weighted_ragged() -> tuple[tf.Tensor, tf.Tensor]:
        row_numbers = _of_lengths(_lengths(splits, rows), ids)
        return row_numbers, _divisors(combiner, row_numbers, total, weights)

    def explicit() -> tuple[tf.Tensor, tf.Tensor]:
        row_numbers = segments - first_core * sum(rows)
        return row_numbers, _divisors(combiner, row_numbers, total, weights)

    has_splits, has_weights = there[1], there[3]
    has_segments = tf.maximum(
        there[2], (1 - there[0]) * (1 - has_splits)
    )  # nothing was sent: not the dense form, but output rows that are all empty
    found, divisors = tf.switch_case(
        has_splits + has_splits * has_weights + 3 * has_segments, [dense, ragged, weighted_ragged, explicit]
    )
    form = has_splits + has_segments + has_weights
    return tf.ensure_shape(found, [None]), weights, tf.ensure_shape(divisors, [None]), form


def _lengths(splits: tf.Tensor, rows: Sequence[int]) -> tf.Tensor:
    """Return the number of ids of each output row, core by core and feature by feature."""
    per_core = tf.split(tf.reshape(splits, [-1, sum(rows) + len(rows)]), [count + 1 for count in rows], axis=1)
    lengths = [of_feature[:, 1:] - of_feature[:, :-1] for of_feature in per_core]
    return tf.reshape(lengths[0] if len(lengths) == 1 else tf.concat(lengths, 1), [-1])


def _of_lengths(lengths: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], 0)
    return segments_of_splits(splits, ids)


def _divisors(combiner: Combiner, segments: tf.Tensor, rows: int, weights: tf.Tensor) -> tf.Tensor:
    divisors = weight_divisors(combiner, segments, rows, weights)
    return tf.zeros([0]) if divisors is None else divisors


def activations_of(combiner: Combiner, looked_up: tf.Tensor, batch: TableBatch, rows: int) -> tf.Tensor:
    """Combine the rows of a table.

    Args:
      combiner: combiner of the table.
      looked_up: [N, dim] rows of `batch.ids`.
      batch: the ids.
      rows: number of output rows.

    Returns:
      [rows, dim] activations.
    """
    divisors = None if combiner == "sum" else batch.divisors
    activations = tf.switch_case(
        batch.form,
        [
            lambda: tf.identity(looked_up),
            lambda: combine_in_order(looked_up, batch.segments, rows, combiner),
            lambda: combine_weighted(looked_up, batch.segments, rows, batch.weights, divisors),
        ],
    )
    return tf.ensure_shape(activations, [rows, looked_up.shape[-1]])


def row_gradients_of(combiner: Combiner, batch: TableBatch, gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient of each row that was looked up, [N, dim], from that of the activations, [rows, dim]."""
    divisors = None if combiner == "sum" else batch.divisors
    gradients = tf.switch_case(
        batch.form,
        [
            lambda: tf.identity(gradient),
            lambda: spread_gradient(gradient, batch.segments, None, divisors),
            lambda: spread_gradient(gradient, batch.segments, batch.weights, divisors),
        ],
    )
    return tf.ensure_shape(gradients, [None, gradient.shape[-1]])


def traced_once(function: Callable[..., Made]) -> Callable[..., Made]:
    """Return the function; in a graph, calls with equal arguments and shapes share one trace of its operations.

    Use it for work that is repeated for many tables: the branches of a condition are slow to trace.
    """
    return function if tf.executing_eagerly() else cast(Callable[..., Made], tf.function(function, autograph=False))
