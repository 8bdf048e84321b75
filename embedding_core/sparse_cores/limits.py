"""Counts what a batch asks of each SparseCore, and the limits that hold for many batches, in each reader's form.

Each SparseCore looks up its share of the samples: of every feature the same number of consecutive samples. It sorts
their ids into partitions, one per SparseCore that holds the rows. The program is compiled for at most
`max_ids_per_partition` pairs of sample and id in a partition, and at most `max_unique_ids_per_partition` distinct ids;
more are dropped or stop the program. An id that a sample has twice counts once. The buffer of a SparseCore holds its
partitions one after the other, each padded to a multiple of 8 ids.

Limits that cover every batch need one minibatch for each step: minibatches are what TensorFlow cuts a batch into if it
is over a limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from embedding_core.config import EmbeddingConfig, FeatureConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.schema import Json
from embedding_core.sparse_cores.layout import Slice, Stack, StackedTable, padded

_ALIGNED = 8  # ids: a partition begins at a multiple of this in the buffer
_BYTES_PER_ID = 12  # id and sample as int32, gain as float32
_FEWEST = 30  # batches that a bound is estimated from

_Counts: TypeAlias = npt.NDArray[np.int64]


class Ids(NamedTuple):
    """The ids of a feature in a global batch, as a ragged tensor has them.

    Attributes:
      values: int64 [n].
      row_splits: int64 [B + 1]; B may be less than the batch size, if the batch is short.
    """

    values: npt.NDArray[np.int64]
    row_splits: npt.NDArray[np.int64]


BatchIds: TypeAlias = Mapping[str, Ids]
"""The ids of each feature."""


class StackCount(NamedTuple):
    """What one batch asks of the SparseCores, for one stack.

    Attributes:
      ids: pairs of sample and id, int64 [SparseCores that look up, SparseCores that hold the rows].
      unique_ids: distinct ids, likewise.
      buffer: ids that the buffer of each looking SparseCore holds, with padding; int64 [SparseCores].
    """

    ids: _Counts
    unique_ids: _Counts
    buffer: _Counts


def count_batch(
    stack: Stack, config: EmbeddingConfig, slice_: Slice, batch: BatchIds, samples_per_core: int
) -> StackCount:
    """Count the ids of a stack in each partition of a global batch.

    Args:
      stack: the stack.
      config: tables and features.
      slice_: the SparseCores.
      batch: ids of each feature that uses the stack, and possibly others.
      samples_per_core: `Slice.samples_per_core`.

    Raises:
      DataError: an id is outside its table.
    """
    shards, places = slice_.shards, {table.name: table for table in stack.tables}
    cores, rows = [], []
    for feature in config.features:
        if feature.table in places:
            core, row = _pairs(feature, places[feature.table], batch[feature.name], shards, samples_per_core)
            cores.append(core)
            rows.append(row)
    core, row = np.concatenate(cores), np.concatenate(rows)
    ids = _by_partition(core, row, shards)
    distinct = np.unique(core * (stack.rows_per_shard * shards) + row)
    unique = _by_partition(distinct // (stack.rows_per_shard * shards), distinct, shards)
    return StackCount(ids, unique, (-(-ids // _ALIGNED) * _ALIGNED).sum(axis=1))


def _by_partition(core: _Counts, row: _Counts, shards: int) -> _Counts:
    return np.bincount(core * shards + row % shards, minlength=shards * shards).reshape(shards, shards)


def _pairs(
    feature: FeatureConfig, table: StackedTable, given: Ids, shards: int, samples_per_core: int
) -> tuple[_Counts, _Counts]:
    """Return the looking SparseCore of each pair of sample and id, and the row of the id: local row, then shard."""
    ids, splits = given
    if len(ids) and (ids.min() < 0 or ids.max() >= table.rows):
        wrong = ids[(ids < 0) | (ids >= table.rows)][0]
        raise DataError(
            f"feature {feature.name!r} has id {wrong} for table {table.name!r}: ids must be from 0 to {table.rows - 1}."
        )
    lengths = np.diff(splits)
    sample = np.repeat(np.arange(len(lengths)), lengths)
    if feature.max_sequence_length:  # each position is a sample of its own
        kept = np.arange(len(ids)) - np.repeat(splits[:-1], lengths) < feature.max_sequence_length
        ids, sample = ids[kept], sample[kept]
    elif len(lengths) and lengths.max() > 1:
        sample, ids = np.divmod(np.unique(sample * table.rows + ids), table.rows)
    return sample // samples_per_core, table.row_of(ids, shards) * shards + table.shard_of(ids, shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a stack.

    Attributes:
      stack: name of the stack.
      tables: names of its tables.
      max_ids_per_partition: at least 1.
      max_unique_ids_per_partition: at least 1, at most `max_ids_per_partition`.
      buffer_per_core: ids that the buffer of a SparseCore must hold.
      buffer_per_chip: ids that the buffers of all SparseCores of a chip must hold.
      buffer_bytes_per_chip: their bytes.
      samples_per_chip: samples of a batch that one chip looks up in the stack.
      minibatches: number of minibatches of a step under these limits.
    """

    stack: str
    tables: tuple[str, ...]
    max_ids_per_partition: int
    max_unique_ids_per_partition: int
    buffer_per_core: int
    buffer_per_chip: int
    buffer_bytes_per_chip: int
    samples_per_chip: int
    minibatches: int = 1

    def to_mapping(self) -> Json:
        """Return the fields, as JSON values."""
        return {**dataclasses.asdict(self), "tables": list(self.tables)}


def larger_limits(first: Sequence[Limits], second: Sequence[Limits]) -> tuple[Limits, ...]:
    """Return the larger of two limits of each stack, field by field; both are of the same stacks."""
    return tuple(
        Limits(
            **{
                field.name: max(getattr(limit, field.name), getattr(other, field.name))
                for field in dataclasses.fields(Limits)
            }
        )
        for limit, other in zip(first, second, strict=True)
    )


class LimitCounter:
    """Computes the limits of stacks from batches.

    Attributes:
      stacks: the stacks.
      batches: number of batches that were added.
    """

    def __init__(self, config: EmbeddingConfig, slice_: Slice, batch_size: int, stacks: Sequence[Stack]) -> None:
        """Start without batches.

        Args:
          config: tables and features.
          slice_: the SparseCores.
          batch_size: number of samples of a whole global batch, with negatives.
          stacks: the stacks, which `stacks_of` makes.

        Raises:
          ConfigError: the batch cannot be divided among the SparseCores.
        """
        self.stacks = tuple(stacks)
        self._config, self._slice = config, slice_
        self._samples = slice_.samples_per_core(batch_size)
        self._maxima: list[list[tuple[int, int, int]]] = [[] for _ in self.stacks]

    @property
    def batches(self) -> int:
        """Number of batches that were added."""
        return len(self._maxima[0])

    def add(self, batch: BatchIds) -> None:
        """Count a global batch.

        Raises:
          DataError: an id is outside its table.
        """
        for stack, maxima in zip(self.stacks, self._maxima, strict=True):
            count = count_batch(stack, self._config, self._slice, batch, self._samples)
            maxima.append((int(count.ids.max()), int(count.unique_ids.max()), int(count.buffer.max())))

    def limits(self) -> tuple[Limits, ...]:
        """Return the largest counts of the batches that were added: with these limits none of them drops an id."""
        return tuple(
            self._limits(stack, *np.max(maxima, axis=0))
            for stack, maxima in zip(self.stacks, self._maxima, strict=True)
        )

    def bounds(self, batches: int, confidence: float) -> tuple[Limits, ...]:
        """Bound the counts of `batches` batches, of which those that were added are a sample.

        The largest count of each batch is taken to follow Gumbel's distribution, which maxima of many counts approach
        (Fisher and Tippett 1928). Its two parameters are estimated by moments. The bound is the value that no batch
        exceeds with the given confidence, for each count of each stack, and never below what was seen.

        The assumption is that batches are alike, as they are if the shuffle buffer holds all rows, or if their order in
        the files does not matter. A bound from fewer than 30 batches would say little.

        Args:
          batches: number of batches of the whole training.
          confidence: chance, above 0 and below 1, that no batch is above the bound.

        Raises:
          ConfigError: fewer than 30 batches were added.
        """
        if self.batches < _FEWEST:
            raise ConfigError(
                f"{self.batches} batches were counted: a bound needs at least {_FEWEST}; count more of them."
            )
        return tuple(
            self._limits(
                stack, *(_gumbel(np.array(values), batches, confidence) for values in zip(*maxima, strict=True))
            )
            for stack, maxima in zip(self.stacks, self._maxima, strict=True)
        )

    def batches_over(self, limits: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Count the batches that were added and are over a limit, by stack.

        Args:
          limits: `max_ids_per_partition` and `max_unique_ids_per_partition` of stacks.
        """
        return {
            stack.name: sum(ids > limits[stack.name][0] or unique > limits[stack.name][1] for ids, unique, _ in maxima)
            for stack, maxima in zip(self.stacks, self._maxima, strict=True)
            if stack.name in limits
        }

    def _limits(self, stack: Stack, ids: int, unique: int, buffer: int) -> Limits:
        names = {table.name for table in stack.tables}
        lengths = [max(1, feature.max_sequence_length) for feature in self._config.features if feature.table in names]
        per_core, cores = padded(max(1, int(buffer)), _ALIGNED), self._slice.per_chip
        return Limits(
            stack=stack.name,
            tables=tuple(table.name for table in stack.tables),
            max_ids_per_partition=max(1, int(ids)),
            max_unique_ids_per_partition=max(1, min(int(unique), int(ids))),
            buffer_per_core=per_core,
            buffer_per_chip=per_core * cores,
            buffer_bytes_per_chip=per_core * cores * _BYTES_PER_ID,
            samples_per_chip=self._samples * cores * sum(lengths),
        )


def _gumbel(maxima: npt.NDArray[np.int64], batches: int, confidence: float) -> int:
    """Return the quantile of the largest of `batches` values, at least the largest of those given."""
    scale = math.sqrt(6) / math.pi * float(maxima.std(ddof=1))
    location = float(maxima.mean()) - np.euler_gamma * scale
    bound = location - scale * math.log(-math.log(confidence) / batches)
    return max(int(maxima.max()), math.ceil(bound))


# Compares the limits of SparseCores with those of a previous run.

_COMPARED = ("max_ids_per_partition", "max_unique_ids_per_partition", "buffer_per_core")


def drift_of(limits: Sequence[Limits], previous: Sequence[Mapping[str, object]], counter: LimitCounter) -> Json:
    """Compare limits with those that a previous run wrote.

    Args:
      limits: today's limits.
      previous: `Limits.to_mapping` of the previous run's stacks.
      counter: what counted today's batches.

    Returns:
      By stack: "previous" and "change" (as a share of the previous value) of each limit, and "batches_over", the number
      of today's batches that the previous limits do not cover. A stack that the previous run did not have is null.
    """
    known = {str(limit["stack"]): limit for limit in previous}
    over = counter.batches_over(
        {
            name: (int(str(limit["max_ids_per_partition"])), int(str(limit["max_unique_ids_per_partition"])))
            for name, limit in known.items()
        }
    )
    return {
        limit.stack: _compared(limit, known[limit.stack], over[limit.stack]) if limit.stack in known else None
        for limit in limits
    }


def _compared(now: Limits, before: Mapping[str, object], over: int) -> Json:
    old = {key: int(str(before[key])) for key in _COMPARED}
    change = {key: round(getattr(now, key) / value - 1, 4) for key, value in old.items()}
    return {"previous": old, "change": change, "batches_over": over}


# Writes the limits of SparseCores in the forms that TensorFlow, keras-rs and jax-tpu-embedding take.


def limits_in_all_forms(limits: Sequence[Limits], limits_by_combiner: Sequence[Limits]) -> Json:
    """Return the arguments that each library takes, as JSON values.

    Args:
      limits: limits of TensorFlow's stacks.
      limits_by_combiner: limits of stacks that keep combiners apart, as the other two libraries stack tables.

    Returns:
      * "tensorflow": arguments of `tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig`, which TensorFlow 2.16 does
        not have yet;
      * "keras_rs": `table_stacking` of `keras_rs.layers.DistributedEmbedding`, and arguments of each `TableConfig`. Its
        backend for JAX uses them; its backend for TensorFlow (0.4.0) does not;
      * "jax_tpu_embedding": `stack_tables`, arguments for one call of `table_stacking.stack_tables` for each stack of
        several tables, and `update_preprocessing_parameters`, arguments of the `SparseDenseMatmulInputStats` to call
        `embedding.update_preprocessing_parameters` with.
    """
    return {
        "tensorflow": _tensorflow(limits),
        "keras_rs": _keras_rs(limits_by_combiner),
        "jax_tpu_embedding": _jax_tpu_embedding(limits_by_combiner),
    }


def _tensorflow(limits: Sequence[Limits]) -> Json:
    return {
        "disable_table_stacking": False,
        "max_ids_per_chip_per_sample": max(-(-limit.buffer_per_chip // limit.samples_per_chip) for limit in limits),
        "max_ids_per_table": {limit.stack: limit.max_ids_per_partition for limit in limits},
        "max_unique_ids_per_table": {limit.stack: limit.max_unique_ids_per_partition for limit in limits},
        "allow_id_dropping": False,
    }


def _keras_rs(limits: Sequence[Limits]) -> Json:
    tables = {
        table: {
            "max_ids_per_partition": limit.max_ids_per_partition,
            "max_unique_ids_per_partition": limit.max_unique_ids_per_partition,
        }
        for limit in limits
        for table in limit.tables
    }
    return {
        "table_stacking": [list(limit.tables) for limit in limits if len(limit.tables) > 1] or None,
        "tables": tables,
    }


def _jax_tpu_embedding(limits: Sequence[Limits]) -> Json:
    return {
        "stack_tables": [
            {"stack_name": limit.stack, "table_names": list(limit.tables)} for limit in limits if len(limit.tables) > 1
        ],
        "update_preprocessing_parameters": {
            "max_ids_per_partition": {limit.stack: limit.max_ids_per_partition for limit in limits},
            "max_unique_ids_per_partition": {limit.stack: limit.max_unique_ids_per_partition for limit in limits},
            "required_buffer_size_per_sc": {limit.stack: limit.buffer_per_core for limit in limits},
        },
    }
