"""Sorts the ids of one chip into the partitions of its SparseCores, and checks them against the limits.

A sample's row gets a gain, by which the lookup multiplies it: weight / sum of weights for "mean", weight / root of the
sum of squares for "sqrtn", the weight for "sum" (TensorFlow's `ConvertToCooTensor`). An id that a sample has several
times is one entry, whose gains are added up. A SparseCore looks up the same number of consecutive samples of every
feature, and sorts its entries by the SparseCore that holds the row, then by row and sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from embedding_core.engines.batches import FeatureIds, row_numbers, weights_or_ones
from embedding_core.feature_specs import FeatureSpec
from embedding_core.lookup import weight_divisors
from embedding_core.sparsecore import Slice, Stack

_ALIGNED = 8  # ids: a partition begins at a multiple of this in the buffer


class StackIds(NamedTuple):
    """The entries of one stack on one chip.

    Attributes:
      samples: sample of each entry, numbered over the features of the stack, int64 [N].
      rows: row of the stack's variable, int64 [N].
      gains: float32 [N].
    """

    samples: tf.Tensor
    rows: tf.Tensor
    gains: tf.Tensor


class PartitionCount(NamedTuple):
    """The numbers of entries and distinct rows of each partition, of one stack on one chip.

    Attributes:
      ids: entries in each partition, int64 [SparseCores of the chip * all SparseCores].
      unique_ids: distinct rows in each partition, likewise.
    """

    ids: tf.Tensor
    unique_ids: tf.Tensor


class SortedIds(NamedTuple):
    """The entries of one stack on one chip, sorted, with their partitions.

    Attributes:
      entries: the entries.
      partitions: partition of each entry, in ascending order, int64 [N].
      is_new_row: whether an entry has another row than the one before, bool [N].
      counts: entries and distinct rows of each partition.
    """

    entries: StackIds
    partitions: tf.Tensor
    is_new_row: tf.Tensor
    counts: PartitionCount


class Limit(NamedTuple):
    """The limits of a stack.

    Attributes:
      stack: name of the stack.
      ids: `max_ids_per_partition`.
      unique_ids: `max_unique_ids_per_partition`.
      buffer: ids that the buffer of one SparseCore holds, with the padding of its partitions.
      drops: whether ids over a limit are dropped.
    """

    stack: str
    ids: int
    unique_ids: int
    buffer: int
    drops: bool


def sorted_ids(stack: Stack, slice_: Slice, features: Sequence[FeatureSpec], given: Sequence[FeatureIds]) -> SortedIds:
    """Sort the ids of one chip for one stack.

    Args:
      stack: the stack.
      slice_: the SparseCores.
      features: the features that use the stack.
      given: their ids on this chip, each within its table.
    """
    tables = {table.name: table for table in stack.tables}
    samples = sum(one.rows for one in given)
    keys, gains, first = [], [], 0
    for feature, one in zip(features, given, strict=True):
        table, ids, numbers = tables[feature.table], tf.cast(one.ids, tf.int64), row_numbers(one)
        core, place = numbers // (one.rows // slice_.per_chip), stack.places_of(table, ids, slice_.shards)
        keys.append((core * slice_.shards * stack.rows_per_shard + place) * samples + first + numbers)
        gains.append(_gains(feature, one, numbers))
        first += one.rows
    return _merged(tf.concat(keys, 0), tf.concat(gains, 0), samples, stack.rows_per_shard, slice_)


def _gains(feature: FeatureSpec, one: FeatureIds, numbers: tf.Tensor) -> tf.Tensor:
    weights = weights_or_ones(one)
    divisors = weight_divisors(feature.combiner, numbers, one.rows, weights)
    return weights if divisors is None else tf.math.divide_no_nan(weights, tf.gather(divisors, numbers))


def _merged(keys: tf.Tensor, gains: tf.Tensor, samples: int, rows_per_shard: int, slice_: Slice) -> SortedIds:
    """Sort entries by key, which is ((SparseCore * shards + shard) * rows per shard + row) * samples + sample."""
    order = tf.argsort(keys)
    keys = tf.gather(keys, order)
    is_new = _differs(keys)
    gains = tf.math.segment_sum(tf.gather(gains, order), tf.cumsum(tf.cast(is_new, tf.int64)) - 1)
    keys = tf.boolean_mask(keys, is_new)
    rows = keys // samples
    partitions, is_new_row = rows // rows_per_shard, _differs(rows)
    count = PartitionCount(_counts(partitions, slice_), _counts(tf.boolean_mask(partitions, is_new_row), slice_))
    entries = StackIds(keys % samples, rows % (slice_.shards * rows_per_shard), gains)
    return SortedIds(entries, partitions, is_new_row, count)


def _differs(values: tf.Tensor) -> tf.Tensor:
    """Return for each of sorted values whether it differs from the one before, bool [N]."""
    return tf.concat([tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], 0)


def _counts(partitions: tf.Tensor, slice_: Slice) -> tf.Tensor:
    return tf.math.bincount(
        tf.cast(partitions, tf.int32),
        minlength=slice_.per_chip * slice_.shards,
        maxlength=slice_.per_chip * slice_.shards,
        dtype=tf.int64,
    )


def within_limits(found: SortedIds, limit: Limit, slice_: Slice) -> tuple[StackIds, tf.Tensor]:
    """Keep the entries that are within the limits of a stack.

    Args:
      found: the entries of one chip.
      limit: the limits.
      slice_: the SparseCores.

    Returns:
      The entries, and the number of dropped ones, int64 scalar. Of a partition, the first in their order are kept.

    Raises:
      tf.errors.InvalidArgumentError: a partition or the buffer is over its limit, and the limits do not drop ids.
    """
    if not limit.drops:
        with tf.control_dependencies(_checks(found.counts, limit, slice_)):
            return StackIds(*(tf.identity(part) for part in found.entries)), tf.constant(0, tf.int64)
    keep = _ranks(found.partitions, found.counts.ids) < limit.ids
    distinct = tf.cumsum(tf.cast(found.is_new_row, tf.int64))
    before = tf.gather(tf.cumsum(found.counts.unique_ids, exclusive=True), found.partitions)
    keep = tf.logical_and(keep, distinct - before <= limit.unique_ids)
    partitions = tf.boolean_mask(found.partitions, keep)
    kept = _counts(partitions, slice_)
    starts = tf.gather(tf.reshape(_starts(kept, slice_), [-1]), partitions)
    fits = starts + _ranks(partitions, kept) < limit.buffer
    entries = StackIds(*(tf.boolean_mask(tf.boolean_mask(part, keep), fits) for part in found.entries))
    return entries, tf.size(found.partitions, tf.int64) - tf.size(entries.rows, tf.int64)


def _ranks(partitions: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Number the entries of each partition from 0."""
    return tf.range(tf.size(partitions, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), partitions)


def _starts(counts: tf.Tensor, slice_: Slice) -> tf.Tensor:
    """Compute where each partition begins in the buffer of its SparseCore, [SparseCores of the chip, partitions]."""
    return tf.cumsum(_aligned(counts, slice_), axis=1, exclusive=True)


def _aligned(counts: tf.Tensor, slice_: Slice) -> tf.Tensor:
    return tf.reshape(-(-counts // _ALIGNED) * _ALIGNED, [slice_.per_chip, slice_.shards])


def _checks(count: PartitionCount, limit: Limit, slice_: Slice) -> list[tf.Operation]:
    needed = tf.reduce_max(tf.reduce_sum(_aligned(count.ids, slice_), 1))
    ids, distinct = tf.reduce_max(count.ids), tf.reduce_max(count.unique_ids)
    limits = (
        ("ids in one partition", "max_ids_per_table", ids, limit.ids),
        ("distinct ids in one partition", "max_unique_ids_per_table", distinct, limit.unique_ids),
        ("ids, with padding, on one SparseCore", "max_ids_per_chip_per_sample", needed, limit.buffer),
    )
    checks = [
        tf.debugging.Assert(found <= most, [_too_many(limit.stack, what, setting, most), found])
        for what, setting, found, most in limits
    ]
    return [check for check in checks if check is not None]


def _too_many(stack: str, what: str, setting: str, most: int) -> str:
    return (
        f"A batch is over a limit of the SparseCores: stack {stack!r} may have at most {most} {what}. Compute the "
        f"limits from the data (`sparse_core_limits.json` of the TableConfigs), raise `{setting}`, or set "
        "`allow_id_dropping`. It has:"
    )
