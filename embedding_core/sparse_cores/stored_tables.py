"""Reads tables that SparseCores hold stacked from training checkpoints, and stacks tables for TensorFlow's class.

Such a checkpoint holds one variable per stack. Versions of TensorFlow after 2.16 also save where each table is in its
stack. 2.16 does not: its checkpoints are read if the caller names the SparseCores that they were written on, since the
name of a stack has the names of its tables, in their order. `layout.py` says where a row is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.tpu.kernels.sparse_core_layout_pb2 import SparseCoreTableLayouts

from embedding_core.checkpoint.bundle import BundleReader, Rows
from embedding_core.checkpoint.checkpoint_manifest import table_shapes
from embedding_core.checkpoint.row_sources import reordered
from embedding_core.checkpoint.stored_keys import VALUE, training_key
from embedding_core.config import EmbeddingConfig
from embedding_core.engines.tables import LAYOUTS, Tables
from embedding_core.errors import CheckpointError
from embedding_core.sparse_cores.layout import Slice, Stack, StackedTable, TableShape, place_tables
from embedding_core.sparse_cores.stack_feeding import stacks_of_layouts

_LAYOUTS = f"{LAYOUTS}{VALUE}"


class StoredTable(NamedTuple):
    """The place of a table in a checkpoint of stacks.

    Attributes:
      root: path of the stack in the checkpoint.
      stack: the stack.
      table: the table in it.
      dim: number of columns of the table.
      cores: number of SparseCores that the stack is spread over.
    """

    root: str
    stack: Stack
    table: StackedTable
    dim: int
    cores: int

    def key(self, slot: str) -> str:
        """Return the stored key of the stack, or of a slot of it."""
        return training_key(f"{self.stack.name}/{slot}" if slot else self.stack.name, self.root)

    def rows(self) -> npt.NDArray[np.int64]:
        """Return, for each row of the table, its row in the stack, int64 [rows]."""
        return self.stack.places_of(self.table, np.arange(self.table.rows, dtype=np.int64), self.cores)


def read_layouts(
    reader: BundleReader, config: EmbeddingConfig, root: str | None = None, slice_: Slice | None = None
) -> dict[str, StoredTable]:
    """Read where each table is, by name; empty if the tables are not stacked.

    Args:
      reader: the training checkpoint.
      config: the tables.
      root: path at which the checkpoint holds the stacks; None finds them.
      slice_: the SparseCores that wrote the checkpoint, if it does not say where tables are.

    Raises:
      CheckpointError: tables are stacked and it is unknown how, or there are stacks in several places.
    """
    keys = [key for key in reader.entries if key == _LAYOUTS or key.endswith(f"/{_LAYOUTS}")]
    if root is not None:
        keys = [key for key in keys if key == (f"{root}/{_LAYOUTS}" if root else _LAYOUTS)]
    if len(keys) > 1:
        raise CheckpointError(f"{reader.prefix!r} holds stacked tables at {sorted(keys)}: name one place as `root`.")
    if not keys:
        return _unlabelled(reader, config, root, slice_)
    root = keys[0].removesuffix(_LAYOUTS).rstrip("/")
    try:
        layouts = SparseCoreTableLayouts.FromString(reader.tensor(keys[0]).numpy()).tables
        of_table = {
            table.name: (stack, table) for stack in stacks_of_layouts(layouts).values() for table in stack.tables
        }
        return {
            layout.table_name: StoredTable(
                root, *of_table[layout.table_name], layout.unsharded_shape[1], _at_least_one(layout.num_sparse_cores)
            )
            for layout in layouts
        }
    except (ValueError, IndexError, DecodeError) as error:
        raise CheckpointError(
            f"{keys[0]!r} of {reader.prefix!r} is not a layout of stacked tables ({error}): take another checkpoint."
        ) from error


def _at_least_one(cores: int) -> int:
    if cores < 1:
        raise ValueError(f"{cores} SparseCores")
    return cores


def _unlabelled(
    reader: BundleReader, config: EmbeddingConfig, root: str | None, slice_: Slice | None
) -> dict[str, StoredTable]:
    """Return where each table is, by the names of the stacks; empty if no SparseCores are given.

    Raises:
      CheckpointError: tables are stacked, and no SparseCores are given.
    """
    names = {table.name for table in config.tables}
    stored = {key.removesuffix(VALUE).rpartition("/")[2].replace("..", ".") for key in reader.entries}
    if slice_ is None:
        stacks = sorted(name for name in stored - names if next(_orders(name, names - stored), None))
        if stacks:
            raise CheckpointError(
                f"training checkpoint {reader.prefix!r} holds {stacks}: tables that SparseCores hold stacked, but it "
                "does not say which rows belong to which table, as TensorFlow 2.16 does not. Name the SparseCores that "
                "it was written on as `slice_`."
            )
        return {}
    found = {}
    for stack in stacks_of_names(stored, config, slice_):
        at = _root_of(reader, stack.name) if root is None else root
        for table in stack.tables:
            found[table.name] = StoredTable(at, stack, table, config.table(table.name).dim, slice_.shards)
    return found


def _root_of(reader: BundleReader, stack: str) -> str:
    ending = training_key(stack, "")
    roots = [key[: -len(ending)].rstrip("/") for key in reader.entries if key == ending or key.endswith(f"/{ending}")]
    if len(roots) > 1:
        raise CheckpointError(f"{reader.prefix!r} holds {stack!r} at {sorted(roots)}: name one place as `root`.")
    return roots[0]


def stacks_of_names(names: Iterable[str], config: EmbeddingConfig, slice_: Slice) -> list[Stack]:
    """Return the stacks of tables that names join by underscores, in the order of the tables in each name.

    Args:
      names: names of variables; those that join no names of tables are left out.
      config: the tables.
      slice_: the SparseCores.

    Raises:
      CheckpointError: a name can be split into names of tables in several ways.
    """
    stacks = []
    for name in sorted(names):
        orders = list(_orders(name, {table.name for table in config.tables}))
        if len(orders) > 1:
            raise CheckpointError(
                f"the stack {name!r} may be of the tables {' or '.join(map(str, orders))}: rename them."
            )
        for order in orders:
            tables = [config.table(table) for table in order]
            shapes = [TableShape(table.name, table.vocabulary_size, table.dim, 0) for table in tables]
            stacks.append(place_tables(shapes, slice_))
    return stacks


def _orders(name: str, tables: Collection[str]) -> Iterator[list[str]]:
    """Yield each way in which a name joins names of different tables by underscores."""
    if name in tables:
        yield [name]
    for head in sorted(table for table in tables if name.startswith(f"{table}_")):
        for rest in _orders(name[len(head) + 1 :], {*tables} - {head}):
            yield [head, *rest]


def stacked_tables(
    variables: Mapping[str, tf.Variable], config: EmbeddingConfig, names: Iterable[str], stacked_on: tuple[int, int]
) -> Tables:
    """Stack tables and slots as the memory of a real TPU has them; see `stacked_copies`.

    Args:
      variables: tables and slots, float32 [rows, dim], by `<table>` and `<table>/<slot>`.
      config: the tables.
      names: names of the stacks.
      stacked_on: chips, and SparseCores of each.
    """
    slice_ = Slice(*stacked_on)
    return stacked_copies(variables, stacks_of_names(names, config, slice_), slice_.shards)


def stacked_copies(variables: Mapping[str, tf.Variable], stacks: Iterable[Stack], cores: int) -> Tables:
    """Stack tables and slots for TensorFlow's `TPUEmbeddingV2`; what this returns is saved under its checkpoint keys.

    Args:
      variables: tables and slots, float32 [rows, dim], by `<table>` and `<table>/<slot>`.
      stacks: the stacks.
      cores: number of SparseCores.

    Returns:
      A trackable with one variable per stack and slot, float32 [cores * rows per SparseCore, padded dim].
    """
    holder = Tables()
    for stack in stacks:
        first = stack.tables[0].name
        for slot in [key.removeprefix(first) for key in variables if key == first or key.startswith(f"{first}/")]:
            values = {table.name: variables[table.name + slot].numpy() for table in stack.tables}
            placed = stack.to_shards(values, cores).reshape(-1, stack.dim)
            holder._add(stack.name + slot, tf.Variable(placed, trainable=False))
    return holder


def rows_of(
    reader: BundleReader,
    config: EmbeddingConfig,
    root: str | None,
    stacked_on: tuple[int, int] | None,
    slice_bytes: int,
) -> Callable[[str], Iterable[tuple[int, Rows]]] | None:
    """Return a function that reads the slices of a table or slot; None if tables are not stacked.

    See `rows_of_rooms`, which calls it.
    """
    layouts = read_layouts(reader, config, root, None if stacked_on is None else Slice(*stacked_on))
    return stacked_rows(reader, config, layouts, slice_bytes) if layouts else None


def stacked_rows(
    reader: BundleReader, config: EmbeddingConfig, layouts: Mapping[str, StoredTable], slice_bytes: int
) -> Callable[[str], Iterable[tuple[int, Rows]]]:
    """Return a function that reads the slices of a table or slot from its stack.

    Raises:
      CheckpointError: a table or slot is missing, of another shape, or of no configured table; all are named.
    """
    problems = [f"{name!r} belongs to no configured table" for name in layouts if name not in table_shapes(config)]
    for key, shape in table_shapes(config).items():
        problems += _problems(reader, key, shape, layouts)
    if problems:
        raise CheckpointError(
            f"training checkpoint {reader.prefix!r} of stacked tables is not of these tables: {'; '.join(problems)}. "
            "Use the table configuration that it was trained with."
        )

    def rows_of(key: str) -> Iterable[tuple[int, Rows]]:
        name, _, slot = key.partition("/")
        layout, dim = layouts[name], layouts[name].dim
        slices = ((start, rows[:, :dim]) for start, rows in reader.slices(layout.key(slot), slice_bytes))
        return reordered(slices, layout.rows(), dim, lambda rows: np.zeros((len(rows), dim), np.float32), slice_bytes)

    return rows_of


def _problems(reader: BundleReader, key: str, shape: tuple[int, int], layouts: Mapping[str, StoredTable]) -> list[str]:
    name, _, slot = key.partition("/")
    if name not in layouts:
        return [f"{key!r} is missing"]
    stored = layouts[name]
    found = (stored.table.rows, stored.dim)
    if found != shape:
        return [f"{key!r} has shape {list(found)} instead of {list(shape)}"]
    entry, stack = reader.entries.get(stored.key(slot)), stored.stack
    expected = (stored.cores * stack.rows_per_shard, stack.dim)
    if entry is None:
        return [f"{key!r} is missing: its stack {stored.key(slot)!r} is not there"]
    if entry.shape != expected or entry.dtype.name != "float32":
        return [f"the stack of {key!r} is {entry.dtype.name} {list(entry.shape)} instead of float32 {list(expected)}"]
    if stored.table.first_row + -(-shape[0] // stored.cores) > stack.rows_per_shard or stack.dim < shape[1]:
        return [f"{key!r} does not fit into its stack: the layout is damaged"]
    return []
