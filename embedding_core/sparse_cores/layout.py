"""Lays tables out on the SparseCores of a slice, as TensorFlow's TPUEmbeddingV2 and jax-tpu-embedding do.

Each SparseCore holds one shard of every stack. A table is padded to a multiple of 8 rows per shard and of 8 columns.
Tables of the same padded width, optimizer and quantization are stacked one after the other, so that one lookup serves
all of them. Row r of a table is in shard ``(r + rotation) % shards``, at ``r // shards`` from the table's first row
there. The rotation moves each table of a stack on by one chip, so that frequent low ids do not meet in one shard.

Sources: `tensorflow/core/tpu/kernels/sparse_core_layout.cc` (padding, stacks and their bounds), `tpu_embedding_v3.py`
(order of tables, ids), `table_stacking.py` of jax-tpu-embedding 0.2.0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError, nearest
from embedding_core.planning.topology import Topology
from embedding_core.schema import Positive, Section

Numbers = TypeVar("Numbers", bound=Any)  # whole numbers: an array of NumPy, or a tensor

_MULTIPLE = 8  # rows of a shard, and columns
_FLOAT_BYTES = 4
_ACTIVATION_BYTES = 2 << 20  # of a stack on one SparseCore; a stack must stay below
_CHIP_BYTES = 2 << 30  # of a stack's values on one chip; a stack must stay below


class Slice(NamedTuple):
    """The chips of a slice that has SparseCores.

    Attributes:
      chips: number of chips; each is one replica.
      per_chip: number of SparseCores of each chip.
    """

    chips: int
    per_chip: int

    @property
    def shards(self) -> int:
        """Number of SparseCores, each of which holds one shard of every stack."""
        return self.chips * self.per_chip

    def samples_per_core(self, batch_size: int) -> int:
        """Compute how many samples of a global batch each SparseCore looks up.

        Raises:
          ConfigError: the batch cannot be divided among the SparseCores.
        """
        samples, rest = divmod(batch_size, self.shards)
        if rest or not samples:
            below, above = batch_size - rest, batch_size - rest + self.shards
            raise ConfigError(
                f"`batch_size` is {batch_size!r} with negatives, not a multiple of the {self.shards} SparseCores "
                f"({self.chips} chips of {self.per_chip}): write {below or above} or {above}."
            )
        return samples


def slice_of(topology: Topology) -> Slice | None:
    """Return the SparseCores of a named topology; None if it has none."""
    if not topology.sparse_cores:
        return None
    return Slice(topology.hosts * topology.cores_per_host, topology.sparse_cores)


class TableShape(NamedTuple):
    """A table that is to be stacked.

    Attributes:
      name: name of the table.
      rows: number of rows.
      dim: number of columns.
      samples: number of samples of a global batch that look it up: the batch size of each of its features, times the
        length of a sequence feature.
      group: what all tables of a stack have in common, such as (optimizer, quantization).
    """

    name: str
    rows: int
    dim: int
    samples: int
    group: Hashable = None


class StackedTable(NamedTuple):
    """The place of a table in its stack.

    Attributes:
      name: name of the table.
      rows: number of its rows, without padding.
      padded_rows: number of its rows with padding, in all shards.
      first_row: its first row in each shard.
      rotation: number of shards that its rows are moved on by.
    """

    name: str
    rows: int
    padded_rows: int
    first_row: int
    rotation: int

    def shard_of(self, ids: Numbers, shards: int) -> Numbers:
        """Compute the shard of each row."""
        shard: Numbers = (ids + self.rotation) % shards
        return shard

    def row_of(self, ids: Numbers, shards: int) -> Numbers:
        """Compute the row in its shard of each row of the table."""
        row: Numbers = self.first_row + ids // shards
        return row


class Stack(NamedTuple):
    """Tables that are looked up together.

    Attributes:
      name: names of the tables, joined by "_", as in TensorFlow.
      tables: the tables, in the order of their rows.
      dim: number of columns, padded.
      rows_per_shard: number of rows of each shard.
    """

    name: str
    tables: tuple[StackedTable, ...]
    dim: int
    rows_per_shard: int

    def places_of(self, table: StackedTable, ids: Numbers, shards: int) -> Numbers:
        """Compute the row of the stack, with its shards one after the other, that each row of a table is in."""
        place: Numbers = table.shard_of(ids, shards) * self.rows_per_shard + table.row_of(ids, shards)
        return place

    def to_shards(self, values: dict[str, npt.NDArray[Any]], shards: int) -> npt.NDArray[Any]:
        """Place the values of the tables, [rows, dim] by name, in [shards, rows per shard, dim], padded by 0."""
        dtype = np.result_type(*(values[table.name] for table in self.tables))
        placed = np.zeros((shards, self.rows_per_shard, self.dim), dtype)
        for table in self.tables:
            given, ids = values[table.name], np.arange(table.rows)
            placed[table.shard_of(ids, shards), table.row_of(ids, shards), : given.shape[1]] = given
        return placed


def padded(size: int, multiple: int) -> int:
    """Return the smallest multiple that is at least `size`."""
    return -(-size // multiple) * multiple


def stack_tables(tables: Sequence[TableShape], slice_: Slice, *, apart: bool = False) -> tuple[Stack, ...]:
    """Stack tables in the given order: each joins the first stack of its group that has room for it.

    A stack has room if its activations stay below 2 MiB on each SparseCore, and its values below 2 GiB on each chip.

    Args:
      tables: the tables.
      slice_: the SparseCores.
      apart: whether every table is a stack of its own.

    Returns:
      The stacks, in the order of their first tables.
    """
    stacks: list[tuple[Hashable, list[TableShape]]] = []
    for table in tables:
        key = (padded(table.dim, _MULTIPLE), (table.name, table.group) if apart else table.group)
        fitting = (members for other, members in stacks if other == key and _has_room([*members, table], slice_))
        found = next(fitting, None)
        if found is None:
            stacks.append((key, [table]))
        else:
            found.append(table)
    return tuple(place_tables(members, slice_) for _, members in stacks)


def _has_room(tables: Sequence[TableShape], slice_: Slice) -> bool:
    width = padded(tables[0].dim, _MULTIPLE) * _FLOAT_BYTES
    activations = sum(width * (table.samples // slice_.shards) for table in tables)
    values = sum(width * padded(table.rows, _MULTIPLE * slice_.shards) // slice_.chips for table in tables)
    return activations < _ACTIVATION_BYTES and values < _CHIP_BYTES


def place_tables(tables: Sequence[TableShape], slice_: Slice) -> Stack:
    """Place tables of one padded width in one stack, in the given order."""
    placed, first_row = [], 0
    for index, table in enumerate(tables):
        rows = padded(table.rows, _MULTIPLE * slice_.shards)
        rotation = index * slice_.per_chip % slice_.shards
        placed.append(StackedTable(table.name, table.rows, rows, first_row, rotation))
        first_row += rows // slice_.shards
    name = "_".join(table.name for table in tables)
    return Stack(name, tuple(placed), padded(tables[0].dim, _MULTIPLE), first_row)


def stacks_of(
    config: EmbeddingConfig, slice_: Slice, batch_size: int, *, by_combiner: bool = False
) -> tuple[Stack, ...]:
    """Stack the tables of a model in the order of their names, as versions of TensorFlow that take limits do.

    TensorFlow 2.16 stacks by the same rule, in the order in which the sorted features use the tables: for that order,
    call `stack_tables`.

    Args:
      config: the tables and features.
      slice_: the SparseCores.
      batch_size: number of samples of a global batch.
      by_combiner: whether tables of different combiners are kept apart, as jax-tpu-embedding requires.
    """
    samples = dict.fromkeys((table.name for table in config.tables), 0)
    for feature in config.features:
        samples[feature.table] += batch_size * max(1, feature.max_sequence_length)
    shapes = [
        TableShape(
            table.name,
            table.vocabulary_size,
            table.dim,
            samples[table.name],
            (table.optimizer.to_json() if table.optimizer else None, table.combiner if by_combiner else None),
        )
        for table in sorted(config.tables, key=lambda table: table.name)
    ]
    return stack_tables(shapes, slice_)


# Declares what a program for SparseCores is compiled for: how tables are stacked, and its limits.

_DEFAULT = 256  # ids, of TensorFlow


class SparseCoreEmbeddingConfig(Section):
    """The settings of TensorFlow's SparseCoreEmbeddingConfig, which 2.16 does not have yet.

    "tensorflow" in the forms of `limits_in_all_forms` has these arguments.

    Attributes:
      disable_table_stacking: whether every table is a stack of its own.
      max_ids_per_chip_per_sample: the buffer of a chip holds this number of ids for each sample of a stack.
      max_ids_per_table: `max_ids_per_partition` by name of the stack; None is 256 for each.
      max_unique_ids_per_table: `max_unique_ids_per_partition` likewise.
      allow_id_dropping: whether ids over a limit are dropped and counted; otherwise they are an error.
    """

    disable_table_stacking: bool = False
    max_ids_per_chip_per_sample: Positive = 64
    max_ids_per_table: Mapping[str, Positive] | None = None
    max_unique_ids_per_table: Mapping[str, Positive] | None = None
    allow_id_dropping: bool = False

    @classmethod
    def of(cls, given: Any) -> SparseCoreEmbeddingConfig:
        """Return a configuration of this project or of TensorFlow as one of this project; None gives the defaults.

        Raises:
          ConfigError (ValueError): it has a setting that would be ignored, or is of another class.
        """
        if given is None or isinstance(given, cls):
            return given or cls()
        try:
            values = dict(vars(given))
        except TypeError:
            raise ConfigError(
                f"`sparse_core_embedding_config` is {given!r}: it must be a SparseCoreEmbeddingConfig or None."
            ) from None
        values.pop("initialize_tables_on_host", None)  # where rows are computed changes no row here
        if not values.pop("enable_fast_table_initialization", False):
            return cls(**{name: _plain(value) for name, value in values.items()})
        raise ConfigError(
            "`enable_fast_table_initialization` is True: it would give all tables of a stack the rows of the first "
            "one's initializer; leave it False."
        )

    def limits_of(self, stacks: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return `max_ids_per_partition` and `max_unique_ids_per_partition` of each stack.

        Raises:
          ConfigError (ValueError): the limits are of other stacks.
        """
        names = list(stacks)
        ids, unique = (
            _of_stacks(field, given, names)
            for field, given in (
                ("max_ids_per_table", self.max_ids_per_table),
                ("max_unique_ids_per_table", self.max_unique_ids_per_table),
            )
        )
        return {name: (ids[name], unique[name]) for name in names}


def _plain(value: Any) -> Any:
    """Return a setting; limits, which may be scalar tensors, as numbers."""
    return {name: int(limit) for name, limit in value.items()} if isinstance(value, Mapping) else value


def _of_stacks(field: str, given: Mapping[str, int] | None, names: list[str]) -> Mapping[str, int]:
    if given is None:
        return dict.fromkeys(names, _DEFAULT)
    for name in names:
        if name not in given:
            raise ConfigError(
                f"`{field}` has {sorted(given)}, but not the stack {name!r}, whose limit would be a guess: compute the "
                f"limits for these tables, this batch size and this slice; {nearest(name, given)}"
            )
    return given
