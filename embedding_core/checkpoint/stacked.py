"""Finds tables and slots in a training checkpoint of any trainer, also those that SparseCores hold stacked.

Such a checkpoint holds one variable per stack. Versions of TensorFlow after 2.16 also save where each table is in its
stack. 2.16 does not: its checkpoints are read if the caller names the SparseCores that they were written on, since the
name of a stack has the names of its tables, in their order. `embedding_core/sparsecore/layout.py` says where a row is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.core.tpu.kernels.sparse_core_layout_pb2 import SparseCoreTableLayouts

from embedding_core.checkpoint.bundle import BundleReader, Rows
from embedding_core.checkpoint.checkpoint_manifest import table_shapes
from embedding_core.checkpoint.row_sources import reordered
from embedding_core.config import EmbeddingConfig
from embedding_core.engines.stack_feeding import stacks_of_layouts
from embedding_core.engines.tables import LAYOUTS, Tables
from embedding_core.errors import CheckpointError
from embedding_core.sparsecore import Slice, Stack, StackedTable, TableShape, place_tables

# Finds the keys of tables and slots in a training checkpoint of any trainer.
#
# Tables are found by name: `<root>/<table>`. The keys of the slots depend on what trained the tables:
#
# * an engine of this project, or TensorFlow's `TPUEmbedding` on a TPU: `<root>/<table>.S<slot>`;
# * one of Keras' legacy optimizers: `<root>/<table>/.OPTIMIZER_SLOT/<optimizer>/<Keras' name of the slot>`;
# * one of Keras' newer optimizers: a numbered key, such as `optimizer/_variables/3`; the object graph of the checkpoint
#   gives the variable's name, `<optimizer>/<Keras' name of the slot>/<variable of the table>`.

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_KERAS_NAMES = {"accumulators": "accumulator", "momenta": "m", "velocities": "v", "linears": "linear"}


def training_key(key: str, root: str = "embedding") -> str:
    """Return the key of a table (`t`) or slot (`t/momenta`) in a `tf.train.Checkpoint` with the tables at `root`.

    Args:
      key: key of the table or slot.
      root: path of the tables in the checkpoint; "" for its top level.
    """
    return f"{root}{'/' if root else ''}{key.replace('.', '..').replace('/', '.S')}{VALUE}"


def find_root(reader: BundleReader, config: EmbeddingConfig) -> str:
    """Find the path at which a checkpoint holds the tables: the one that has most of them.

    Raises:
      CheckpointError: no path has a table, or several have equally many.
    """
    tables_at: dict[str, int] = {}
    for table in config.tables:
        ending = training_key(table.name, "")
        for key in reader.entries:
            if key == ending or key.endswith("/" + ending):
                root = key[: -len(ending)].rstrip("/")
                tables_at[root] = tables_at.get(root, 0) + 1
    most = [root for root, count in tables_at.items() if count == max(tables_at.values())]
    if len(most) == 1:
        return most[0]
    names = [table.name for table in config.tables]
    held = (
        f"equally many of the tables {names} at {sorted(most)}: name one of these paths as `root`"
        if most
        else f"none of the tables {names}: give the configuration of its tables"
    )
    raise CheckpointError(f"training checkpoint {reader.prefix!r} holds {held}.")


def stored_keys(reader: BundleReader, config: EmbeddingConfig, root: str) -> dict[str, str]:
    """Find the stored key of every table and slot; a missing one gets the key that an engine would have given it."""
    names = _full_names(reader)
    keys = {}
    for table in config.tables:
        keys[table.name] = training_key(table.name, root)
        for slot in table.optimizer.slots if table.optimizer else ():
            key = f"{table.name}/{slot.name}"
            stored = training_key(key, root)
            if stored not in reader.entries:
                stored = _of_keras(reader, names, keys[table.name], _KERAS_NAMES[slot.name]) or stored
            keys[key] = stored
    return keys


def _of_keras(reader: BundleReader, names: Mapping[str, str], table: str, slot: str) -> str | None:
    """Return the key of a slot that a Keras optimizer made; None unless exactly one fits."""
    beneath = table.removesuffix(VALUE) + "/.OPTIMIZER_SLOT/"
    keys = [key for key in reader.entries if key.startswith(beneath) and key.endswith(f"/{slot}{VALUE}")]
    if table in names:
        ending = f"/{slot}/{names[table]}"
        keys += [key for key, name in names.items() if name.endswith(ending) and name.count("/") == ending.count("/")]
    return keys[0] if len(keys) == 1 else None


def others_at(reader: BundleReader, root: str, known: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each [rows, dim] tensor at the root that is not `known`, by its name as a table or slot."""
    prefix, taken = (f"{root}/" if root else ""), set(known)
    shapes = {}
    for key, entry in reader.entries.items():
        name = key[len(prefix) : -len(VALUE)]
        is_at_root = key.startswith(prefix) and key.endswith(VALUE) and "/" not in name
        if is_at_root and key not in taken and len(entry.shape) == 2:
            shapes[re.sub(r"\.\.|\.S", lambda match: "." if match[0] == ".." else "/", name)] = entry.shape
    return dict(sorted(shapes.items()))


def _full_names(reader: BundleReader) -> dict[str, str]:
    """Return the full name of each variable by key, from the checkpoint's object graph."""
    if _GRAPH not in reader.entries:
        return {}
    try:
        graph = TrackableObjectGraph.FromString(reader.tensor(_GRAPH).numpy())
    except DecodeError as error:
        raise CheckpointError(
            f"the graph of objects of {reader.prefix!r} is damaged ({error}): take another checkpoint."
        ) from error
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return {each.checkpoint_key: each.full_name for each in attributes if each.full_name}


# Reads tables that SparseCores hold stacked, as TensorFlow's `TPUEmbeddingV2` saves them, and stacks tables for it.

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
