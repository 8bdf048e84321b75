"""Tables that SparseCores hold stacked on each other, as TensorFlow's `TPUEmbeddingV2` saves them.

Such a checkpoint holds one variable per stack, and where each table lies in it (TensorFlow's
`tensorflow/core/tpu/kernels/sparse_core_layout.proto`): row r is on core ``(r + rotation) % cores``, at
``offset + r // cores`` of that core's rows. TensorFlow 2.16 saves stacks without saying so: rows of these cannot be
told from each other, and they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embedding_core.checkpoint.bundle import BundleReader, Rows
from embedding_core.checkpoint.bundle_index import fields, numbers
from embedding_core.checkpoint.checkpoint_manifest import table_shapes
from embedding_core.checkpoint.row_order import gathered
from embedding_core.checkpoint.stored_keys import VALUE, training_key
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError

__all__ = ["Layout", "read_layouts", "stacked_rows"]

_LAYOUTS = f"_sparse_core_table_layouts{VALUE}"


class Layout(NamedTuple):
    """Where a table lies in its stack.

    Attributes:
      root: path at which the checkpoint holds the stack.
      stack: name of the stack's variable.
      cores: SparseCores that the stack is spread over.
      rows_per_core: rows of all tables of the stack on each.
      shape: of the table. width: of the stack; further columns are padding.
      offset: the table's first row on each core. rotation: the core of its row 0.
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
        """The stored key of the stack, or of a slot of it."""
        return training_key(f"{self.stack}/{slot}" if slot else self.stack, self.root)

    def rows(self) -> npt.NDArray[np.int64]:
        """[rows of the table] the stack's row of each."""
        row = np.arange(self.shape[0], dtype=np.int64)
        found: npt.NDArray[np.int64] = (row + self.rotation) % self.cores
        found *= self.rows_per_core
        found += self.offset + row // self.cores
        return found


def read_layouts(reader: BundleReader, config: EmbeddingConfig, root: str | None = None) -> dict[str, Layout]:
    """Where each table lies, by name; empty where the tables are not stacked.

    Args:
      reader: the training checkpoint.
      config: the tables.
      root: path at which the checkpoint holds the stacks; None for wherever they are.

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
    try:
        tables = fields(bytes(reader.tensor(keys[0]).numpy())).get(1, [])
        root = keys[0].removesuffix(_LAYOUTS).rstrip("/")
        return dict(_layout(table, root) for table in tables if isinstance(table, bytes))
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{keys[0]!r} of {reader.prefix!r} is no layout of stacked tables ({error}).") from error


def _layout(data: bytes, root: str) -> tuple[str, Layout]:
    own = fields(data)

    def number(field: int) -> int:
        return int(own.get(field, [0])[0])

    def text(field: int) -> str:
        value = own[field][0]
        return value.decode() if isinstance(value, bytes) else str(value)

    shape, padded = numbers(own[6]), numbers(own[7])
    offset, rotation = number(8), number(9)
    return text(1), Layout(root, text(2), number(3), number(5), tuple(shape), padded[1], offset, rotation)


def stacked_rows(
    reader: BundleReader, config: EmbeddingConfig, layouts: Mapping[str, Layout], slice_bytes: int
) -> Callable[[str], Iterable[tuple[int, Rows]]]:
    """A function that gives the slices of a table or slot, put together from its stack.

    Raises:
      CheckpointError: a table or slot is missing, of another shape, or of no configured table; all are named.
    """
    problems = [f"{name!r} is of no configured table" for name in layouts if name not in table_shapes(config)]
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
        return gathered(slices, layout.rows(), dim, lambda rows: np.zeros((len(rows), dim), np.float32), slice_bytes)

    return rows_of


def _problems(reader: BundleReader, key: str, shape: tuple[int, int], layouts: Mapping[str, Layout]) -> list[str]:
    name, _, slot = key.partition("/")
    if name not in layouts:
        return [f"{key!r} is missing"]
    layout = layouts[name]
    if layout.shape != shape:
        return [f"{key!r} has shape {list(layout.shape)} instead of {list(shape)}"]
    entry, expected = reader.entries.get(layout.key(slot)), (layout.cores * layout.rows_per_core, layout.width)
    if entry is None:
        return [f"{key!r} is missing: there is no {layout.key(slot)!r}"]
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
            f"training checkpoint {reader.prefix!r} holds {stacks}: tables that SparseCores hold stacked, and it does "
            "not say at which rows each of them lies. Save it with a TensorFlow that writes "
            "`_sparse_core_table_layouts` beside them; 2.16 does not."
        )


def _is_joined(name: str, tables: Collection[str], count: int = 0) -> bool:
    """Whether a name is that of several tables, joined by underscores as TensorFlow names a stack."""
    if name in tables and count:
        return True
    heads = [table for table in tables if name.startswith(f"{table}_")]
    return any(_is_joined(name[len(head) + 1 :], {*tables} - {head}, count + 1) for head in heads)
