"""Checks the inputs of one chip, and sorts them into the partitions of its SparseCores, stack by stack."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.tpu.kernels.sparse_core_layout_pb2 import SparseCoreTableLayout

from embedding_core.engines import feeding
from embedding_core.engines.batches import FeatureIds, row_numbers, weights_or_ones
from embedding_core.engines.feeding import check_kinds, check_weights, ids_of
from embedding_core.errors import ConfigError, UnsupportedError
from embedding_core.feature_specs import FeatureSpec, Ids, Weights
from embedding_core.lookup import NormalForm, weight_divisors, with_valid_ids
from embedding_core.sparse_cores import Slice, SparseCoreEmbeddingConfig, Stack, StackedTable, TableShape, stack_tables
from embedding_core.translate import Model

# Sorts the ids of one chip into the partitions of its SparseCores, and checks them against the limits.
#
# A sample's row gets a gain, by which the lookup multiplies it: weight / sum of weights for "mean", weight / root of
# the sum of squares for "sqrtn", the weight for "sum" (TensorFlow's `ConvertToCooTensor`). An id that a sample has
# several times is one entry, whose gains are added up. A SparseCore looks up the same number of consecutive samples of
# every feature, and sorts its entries by the SparseCore that holds the row, then by row and sample.

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
    samples = sum(batch.rows for batch in given)
    keys, gains, first = [], [], 0
    for feature, batch in zip(features, given, strict=True):
        table, ids, numbers = tables[feature.table], tf.cast(batch.ids, tf.int64), row_numbers(batch)
        core, place = numbers // (batch.rows // slice_.per_chip), stack.places_of(table, ids, slice_.shards)
        keys.append((core * slice_.shards * stack.rows_per_shard + place) * samples + first + numbers)
        gains.append(_gains(feature, batch, numbers))
        first += batch.rows
    return _merged(tf.concat(keys, 0), tf.concat(gains, 0), samples, stack.rows_per_shard, slice_)


def _gains(feature: FeatureSpec, batch: FeatureIds, numbers: tf.Tensor) -> tf.Tensor:
    weights = weights_or_ones(batch)
    divisors = weight_divisors(feature.combiner, numbers, batch.rows, weights)
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


# Stacks the tables of a model as SparseCores hold them, and describes the layout in TensorFlow's proto.


def stacks_of_model(
    model: Model, samples: Mapping[str, int], slice_: Slice, *, apart: bool = False
) -> tuple[Stack, ...]:
    """Stack tables in the order of their names, by padded width, optimizer and quantization.

    `sparsecore.stacks_of` does the same for an EmbeddingConfig.

    Args:
      model: the tables.
      samples: number of samples of a global batch that look up each table.
      slice_: the SparseCores.
      apart: whether every table is a stack of its own.
    """
    optimizers = [table.optimizer for table in model.tables]  # equal ones need not have equal hashes
    shapes = [
        TableShape(
            table.name,
            table.rows,
            table.dim,
            samples[table.name],
            (optimizers.index(table.optimizer), table.quantization),
        )
        for table in sorted(model.tables, key=lambda table: table.name)
    ]
    return stack_tables(shapes, slice_, apart=apart)


def layouts_of(stacks: Sequence[Stack], dims: Mapping[str, int], slice_: Slice) -> dict[str, SparseCoreTableLayout]:
    """Describe where each table is, by name.

    Args:
      stacks: the stacks.
      dims: number of columns of each table.
      slice_: the SparseCores.
    """
    return {
        table.name: SparseCoreTableLayout(
            table_name=table.name,
            stacked_table_name=stack.name,
            num_sparse_cores=slice_.shards,
            num_partitions=slice_.chips,
            total_rows_per_sparse_core_shard=stack.rows_per_shard,
            unsharded_shape=[table.rows, dims[table.name]],
            unsharded_padded_shape=[table.padded_rows, stack.dim],
            sparse_core_shard_row_offset=table.first_row,
            sparse_core_shard_rotation=table.rotation,
        )
        for stack in stacks
        for table in stack.tables
    }


def stacks_of_layouts(layouts: Iterable[SparseCoreTableLayout]) -> dict[str, Stack]:
    """Return the stacks that layouts describe, by name: the reverse of `layouts_of`."""
    members: dict[str, list[SparseCoreTableLayout]] = {}
    for layout in sorted(layouts, key=lambda layout: layout.sparse_core_shard_row_offset):
        members.setdefault(layout.stacked_table_name, []).append(layout)
    return {
        name: Stack(
            name,
            tuple(_place_of(layout) for layout in tables),
            tables[0].unsharded_padded_shape[1],
            tables[0].total_rows_per_sparse_core_shard,
        )
        for name, tables in members.items()
    }


def _place_of(layout: SparseCoreTableLayout) -> StackedTable:
    return StackedTable(
        layout.table_name,
        layout.unsharded_shape[0],
        layout.unsharded_padded_shape[0],
        layout.sparse_core_shard_row_offset,
        layout.sparse_core_shard_rotation,
    )


# Checks the inputs of one chip, and sorts them by the stacks of tables that its SparseCores look up.


class StackFeeder:
    """Sorts the ids of a chip by stack.

    Attributes:
      output_shapes: of each feature, fully defined.
      stacks: the stacks.
      features: positions of the features of each stack, by name of the stack.
    """

    def __init__(self, model: Model, slice_: Slice, config: SparseCoreEmbeddingConfig):
        """Stack the tables.

        Args:
          model: tables and features.
          slice_: the SparseCores.
          config: how tables are stacked.

        Raises:
          ConfigError (ValueError): a feature is a sequence, or the SparseCores of a chip cannot share its samples.
          DataError (ValueError): a feature has no output shape that is fully defined.
        """
        refuse_sequences(model)
        self._model, self._slice = model, slice_
        self.output_shapes = feeding.configured_shapes(model.features)
        feeding.check_defined(self.output_shapes, model.features)
        samples = dict.fromkeys((table.name for table in model.tables), 0)
        for place, feature in enumerate(model.features):
            _check_samples(feature, self.rows_of(place), slice_)
            samples[feature.table] += self.rows_of(place) * slice_.chips
        self.stacks = stacks_of_model(model, samples, slice_, apart=config.disable_table_stacking)
        self.features = {stack.name: self._features_of(stack) for stack in self.stacks}

    def _features_of(self, stack: Stack) -> list[int]:
        names = {table.name for table in stack.tables}
        return [place for place, feature in enumerate(self._model.features) if feature.table in names]

    def rows_of(self, place: int) -> int:
        """Return the number of samples of a feature on one chip."""
        return math.prod(self.output_shapes[place].as_list())

    def samples_of(self, stack: Stack) -> int:
        """Return the number of samples of all features of a stack on one chip."""
        return sum(self.rows_of(place) for place in self.features[stack.name])

    def limits(self, config: SparseCoreEmbeddingConfig) -> dict[str, Limit]:
        """Return the limits of each stack, by name.

        Raises:
          ConfigError (ValueError): the limits are of other stacks.
        """
        known, limits = config.limits_of([stack.name for stack in self.stacks]), {}
        for stack in self.stacks:
            buffer = config.max_ids_per_chip_per_sample * self.samples_of(stack) // self._slice.per_chip
            limits[stack.name] = Limit(stack.name, *known[stack.name], buffer, config.allow_id_dropping)
        return limits

    def sorted_ids(self, values: Sequence[Ids], weights: Sequence[Weights]) -> dict[str, SortedIds]:
        """Sort the flat inputs of one chip, by name of the stack.

        Raises:
          DataError (ValueError): a kind, shape or weight does not fit.
          tf.errors.InvalidArgumentError: an id is outside its table, or a weight is not finite.
        """
        features = self._model.features
        check_kinds(self._model, values)
        input_shapes = [feeding.input_shape(value, feature) for value, feature in zip(values, features, strict=True)]
        feeding.check_shapes(self.output_shapes, feeding.output_shapes(input_shapes, features), features)
        check_weights(self._model, values, weights)
        given = [
            _valid(feature, shape, ids, weight)
            for feature, shape, ids, weight in zip(features, self.output_shapes, values, weights, strict=True)
        ]
        places = self.features
        return {
            stack.name: sorted_ids(
                stack,
                self._slice,
                [features[place] for place in places[stack.name]],
                [given[place] for place in places[stack.name]],
            )
            for stack in self.stacks
        }


def refuse_sequences(model: Model) -> None:
    """Refuse sequence features, whose length TensorFlow's class for SparseCores (2.16 to 2.21) ignores.

    Raises:
      UnsupportedError (ValueError, NotImplementedError): a feature is a sequence.
    """
    for feature in model.features:
        if feature.max_sequence_length:
            raise UnsupportedError(
                f"`max_sequence_length` of feature {feature.path!r} is {feature.max_sequence_length!r}: TensorFlow's "
                "class for SparseCores would ignore it; leave it 0, and give each position a row of ids of its own. "
                "The Keras layer does so."
            )


def _check_samples(feature: FeatureSpec, rows: int, slice_: Slice) -> None:
    if not rows or rows % slice_.per_chip:
        raise ConfigError(
            f"`output_shape` of feature {feature.path!r} has {rows} samples: they must be a multiple of the "
            f"{slice_.per_chip} SparseCores of a chip, which share them."
        )


def _valid(feature: FeatureSpec, shape: tf.TensorShape, value: Ids, weight: Weights) -> FeatureIds:
    """Return the ids of a feature, all of which are within its table: a row beyond is one of another table."""
    found = ids_of(feature, shape, value, weight)
    if feature.invalid_id != "error":  # applied already
        return found
    return dataclasses.replace(found, ids=with_valid_ids(feature, NormalForm(found.ids, None, None, found.rows)).ids)
