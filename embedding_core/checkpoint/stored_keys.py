"""Finds the keys of tables and slots in a training checkpoint of any trainer.

Tables are found by name: `<root>/<table>`. The keys of the slots depend on what trained the tables:

* an engine of this project, or TensorFlow's `TPUEmbedding` on a TPU: `<root>/<table>.S<slot>`;
* one of Keras' legacy optimizers: `<root>/<table>/.OPTIMIZER_SLOT/<optimizer>/<Keras' name of the slot>`;
* one of Keras' newer optimizers: a numbered key, such as `optimizer/_variables/3`; the object graph of the checkpoint
  gives the variable's name, `<optimizer>/<Keras' name of the slot>/<variable of the table>`.

An optional room may store tables in a form of its own: `rows_of_rooms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from embedding_core.checkpoint.bundle import BundleReader, Rows
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError
from embedding_core.rooms import hooks

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


def rows_of_rooms(
    reader: BundleReader,
    config: EmbeddingConfig,
    root: str | None,
    stacked_on: tuple[int, int] | None,
    slice_bytes: int,
) -> Callable[[str], Iterable[tuple[int, Rows]]] | None:
    """Return the function by which an optional room reads the slices of a table or slot; None if no room wrote them.

    Args:
      reader: the training checkpoint.
      config: the tables.
      root: path at which the checkpoint holds the tables; None finds it.
      stacked_on: as in `RunDescription`.
      slice_bytes: bytes of a table held in memory at once.

    Raises:
      CheckpointError: a room wrote the checkpoint, and it is not of these tables.
    """
    for room in hooks("embedding_core", "stored_tables"):
        rows_of: Callable[[str], Iterable[tuple[int, Rows]]] | None = room.rows_of(
            reader, config, root, stacked_on, slice_bytes
        )
        if rows_of is not None:
            return rows_of
    return None
