"""Reads tables that SparseCores hold stacked on each other, as TensorFlow's `TPUEmbeddingV2` saves them.

Such a checkpoint holds one variable per stack, and the layout of each table in it: row r is on core
``(r + rotation) % cores``, at ``offset + r // cores`` of that core's rows. TensorFlow 2.16 saves stacks without a
layout, so it is unknown which row belongs to which table. Such checkpoints are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from tensorflow.core.tpu.kernels.sparse_core_layout_pb2 import SparseCoreTableLayout, SparseCoreTableLayouts

from embedding_core.checkpoint.bundle import BundleReader, Rows
from embedding_core.checkpoint.checkpoint_manifest import table_shapes
from embedding_core.checkpoint.row_order import reordered
from embedding_core.checkpoint.stored_keys import VALUE, training_key
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError

_LAYOUTS = f"_sparse_core_table_layouts{VALUE}"


class _Layout(NamedTuple):
    """The place of a table in its stack.

    Attributes:
      root: path of the stack in the checkpoint.
      stack: name of the stack's variable.
      cores: number of SparseCores that the stack is spread over.
      rows_per_core: rows of all tables of the stack on each core.
      shape: shape of the table.
      width: columns of the stack; those beyond the table's are padding.
      offset: first row of the table on each core.
      rotation: core of row 0 of the table.
    """

    root: str
    stack: str
    cores: int
    rows_per_core: int
    shape: tuple[int, ...]
    width: int
    offset: int
    rotation: int

    def key(self, slot: str) -> str:
        """Return the stored key of the stack, or of a slot of it."""
        return training_key(f"{self.stack}/{slot}" if slot else self.stack, self.root)

    def rows(self) -> npt.NDArray[np.int64]:
        """Return, for each row of the table, its row in the stack, int64 [rows]."""
        row = np.arange(self.shape[0], dtype=np.int64)
        places: npt.NDArray[np.int64] = (row + self.rotation) % self.cores
        places *= self.rows_per_core
        places += self.offset + row // self.cores
        return places


def read_layouts(reader: BundleReader, config: EmbeddingConfig, root: str | None = None) -> dict[str, _Layout]:
    """Read the layout of each table, by name; empty if the tables are not stacked.

    Args:
      reader: the training checkpoint.
      config: the tables.
      root: path at which the checkpoint holds the stacks; None finds them.

    Raises:
      CheckpointError: tables are stacked and the checkpoint does not say how, or there are stacks in several places.
    """
    keys = [key for key in reader.entries if key == _LAYOUTS or key.endswith(f"/{_LAYOUTS}")]
    if root is not None:
        keys = [key for key in keys if key == (f"{root}/{_LAYOUTS}" if root else _LAYOUTS)]
    if len(keys) > 1:
        raise CheckpointError(f"{reader.prefix!r} holds stacked tables at {sorted(keys)}: name one place as `root`.")
    if not keys:
        _refuse_unlabelled(reader, config)
        return {}
    root = keys[0].removesuffix(_LAYOUTS).rstrip("/")
    try:
        layouts = SparseCoreTableLayouts.FromString(reader.tensor(keys[0]).numpy())
        return {table.table_name: _layout(table, root) for table in layouts.tables}
    except (ValueError, DecodeError) as error:
        raise CheckpointError(
            f"{keys[0]!r} of {reader.prefix!r} is not a layout of stacked tables ({error}): take another checkpoint."
        ) from error


def _layout(table: SparseCoreTableLayout, root: str) -> _Layout:
    _, width = table.unsharded_padded_shape
    if table.num_sparse_cores < 1:
        raise ValueError(f"{table.table_name!r} is on {table.num_sparse_cores} SparseCores")
    return _Layout(
        root=root,
        stack=table.stacked_table_name,
        cores=table.num_sparse_cores,
        rows_per_core=table.total_rows_per_sparse_core_shard,
        shape=tuple(table.unsharded_shape),
        width=width,
        offset=table.sparse_core_shard_row_offset,
        rotation=table.sparse_core_shard_rotation,
    )


def stacked_rows(
    reader: BundleReader, config: EmbeddingConfig, layouts: Mapping[str, _Layout], slice_bytes: int
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
        layout, dim = layouts[name], config.table(name).dim
        slices = ((start, rows[:, :dim]) for start, rows in reader.slices(layout.key(slot), slice_bytes))
        return reordered(slices, layout.rows(), dim, lambda rows: np.zeros((len(rows), dim), np.float32), slice_bytes)

    return rows_of


def _problems(reader: BundleReader, key: str, shape: tuple[int, int], layouts: Mapping[str, _Layout]) -> list[str]:
    name, _, slot = key.partition("/")
    if name not in layouts:
        return [f"{key!r} is missing"]
    layout = layouts[name]
    if layout.shape != shape:
        return [f"{key!r} has shape {list(layout.shape)} instead of {list(shape)}"]
    entry, expected = reader.entries.get(layout.key(slot)), (layout.cores * layout.rows_per_core, layout.width)
    if entry is None:
        return [f"{key!r} is missing: its stack {layout.key(slot)!r} is not there"]
    if entry.shape != expected or entry.dtype.name != "float32":
        return [f"the stack of {key!r} is {entry.dtype.name} {list(entry.shape)} instead of float32 {list(expected)}"]
    if layout.offset + -(-shape[0] // layout.cores) > layout.rows_per_core or layout.width < shape[1]:
        return [f"{key!r} does not fit into its stack: the layout is damaged"]
    return []


def _refuse_unlabelled(reader: BundleReader, config: EmbeddingConfig) -> None:
    names = {table.name for table in config.tables}
    stored = {key.removesuffix(VALUE).rpartition("/")[2].replace("..", ".") for key in reader.entries}
    stacks = sorted(name for name in stored - names if _is_joined(name, names - stored))
    if stacks:
        raise CheckpointError(
            f"training checkpoint {reader.prefix!r} holds {stacks}: tables that SparseCores hold stacked, but it does "
            "not say which rows belong to which table. Save it with a TensorFlow that writes "
            "`_sparse_core_table_layouts` beside them; 2.16 does not."
        )


def _is_joined(name: str, tables: Collection[str], count: int = 0) -> bool:
    """Return whether a name joins the names of several tables by underscores, as TensorFlow names a stack."""
    if name in tables and count:
        return True
    heads = [table for table in tables if name.startswith(f"{table}_")]
    return any(_is_joined(name[len(head) + 1 :], {*tables} - {head}, count + 1) for head in heads)
