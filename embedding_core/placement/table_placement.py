"""Finds out which devices tables and lookups are really on, and what TensorFlow silently does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import tensorflow as tf

from embedding_core.errors import ConfigError, Finding
from embedding_core.placement.executed_graph import ExecutedCall, Node, run_once
from embedding_core.placement.placement_report import Lookup, Placement, TablePlace

Table: TypeAlias = tf.Variable | tf.distribute.DistributedValues
Handles: TypeAlias = list[tuple[str, tf.Tensor]]
"""Names of tables, and the handles of their copies."""

# Operations that look up rows, and the index of the input with the ids.
_LOOKUPS = dict.fromkeys(("Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"), 1) | dict.fromkeys(
    ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"), 1
)
_PASSING_ON = ("Identity", "Reshape", "ExpandDims", "Squeeze", "Unique", "UniqueV2", "_Send", "_Recv", "Cast")
_CONTROL_FLOW = ("Switch", "Merge", "Enter")  # what tf.cond and tf.while_loop are lowered to
_WITH_GRADIENT = (tf.bfloat16, tf.float16, tf.float32, tf.float64)


def placement_of(
    function: Callable[..., object],
    *arguments: object,
    tables: Mapping[str, tf.Variable],
    expect: str | None = None,
) -> Placement:
    """Run a function once, and report the devices of its tables and lookups.

    Args:
      function: a tf.function or a Python function, such as one training step; it runs once, side effects included.
      *arguments: arguments of the function, as in real use.
      tables: variables of the looked-up tables, by name.
      expect: expected device of the tables: "CPU", "GPU", or a whole device name; None for no check.

    Raises:
      ConfigError: a value of `tables` is not a variable.
    """
    for name, table in tables.items():
        if not isinstance(table, tf.Variable | tf.distribute.DistributedValues):
            raise ConfigError(f"table {name!r} is {type(table).__name__}: it must be a tf.Variable.")
    call = run_once(function, *arguments)
    places = [_place(name, table) for name, table in tables.items()]
    handles = [(name, copy.handle) for name, table in tables.items() for copy in _copies(table)]
    lookups = [*_placed_lookups(call, handles), *_compiled_lookups(call)]
    silent = [
        *_of_tables(places, expect),
        *_whole_tables(call, handles, places),
        *_clamped(lookups),
        *_float_ids(call),
    ]
    return Placement(tables=places, lookups=lookups, silent=silent, for_gpu={one.name: _lacks(one) for one in places})


def _copies(table: Table) -> tuple[tf.Variable, ...]:
    return tuple(table.values) if isinstance(table, tf.distribute.DistributedValues) else (table,)


def _place(name: str, table: Table) -> TablePlace:
    copies = _copies(table)
    shape = copies[0].shape
    return TablePlace(
        name=name,
        devices=tuple(copy.device for copy in copies),
        dtype=copies[0].dtype.name,
        shape=tuple(shape.as_list()),
        bytes=shape.num_elements() * copies[0].dtype.size,
    )


def _placed_lookups(call: ExecutedCall, handles: Handles) -> Iterator[Lookup]:
    for node in call.placed.values():
        if node.op in _LOOKUPS:
            table = _table_of(call, node, handles)
            if table is not None or node.op.startswith("Resource"):
                yield Lookup(operation=f"{node.op} {node.name}", table=table, device=node.device, compiled=False)


def _compiled_lookups(call: ExecutedCall) -> Iterator[Lookup]:
    devices = [node.device for node in call.placed.values() if node.attr["_XlaMustCompile"].b] or [""]
    for node in call.traced.values():
        if node.compiled and node.op in _LOOKUPS:
            operation = f"{node.op} {node.definition.name}"
            yield Lookup(operation=operation, table=None, device=devices[0], compiled=True)


def _table_of(call: ExecutedCall, node: tf.compat.v1.NodeDef | None, handles: Handles) -> str | None:
    """Find the table that the rows come from: follow the first input back to the variable that the call captured."""
    sent = {one.attr["tensor_name"].s: one for one in call.placed.values() if one.op == "_Send"}
    while node is not None and node.op != "_Arg":
        if node.op == "_Recv":
            node = sent.get(node.attr["tensor_name"].s)
        elif node.op in (*_LOOKUPS, *_PASSING_ON, *_CONTROL_FLOW, "ReadVariableOp") and node.input:
            node = call.placed.get(_source(node.input[0]))
        else:
            return None
    handle = None if node is None else call.variables.get(node.name)
    return next((name for name, of_table in handles if of_table is handle), None)


def _source(edge: str) -> str:
    return edge.lstrip("^").partition(":")[0]


def _of_tables(places: list[TablePlace], expect: str | None) -> Iterator[Finding]:
    for one in places:
        elsewhere = [device for device in one.devices if expect is not None and not _is_on(device, expect)]
        if elsewhere:
            yield Finding(
                kind="device",
                what=f"table {one.name!r} is on {elsewhere[0]}, not on {expect}",
                rule="TensorFlow uses another device if one does not exist or cannot hold a variable (soft placement)",
                remedy="tf.config.set_soft_device_placement(False) makes it an error; " + "; ".join(_lacks(one)),
            )
        if len(one.devices) > 1:
            yield Finding(
                kind="copies",
                what=f"table {one.name!r} has {len(one.devices)} copies of {one.bytes:,} bytes",
                rule="a variable made in a strategy's scope is mirrored on every replica and updated on each of them",
                remedy="make large tables outside the scope, or use an embedding engine, which shards them",
            )
        if tf.as_dtype(one.dtype) not in _WITH_GRADIENT:
            yield Finding(
                kind="no gradient",
                what=f"table {one.name!r} has dtype {one.dtype}",
                rule="its lookup has no gradient: the tape returns None, and the table is not trained",
                remedy="make it float32 (or bfloat16, float16, float64)",
            )


def _is_on(device: str, expect: str) -> bool:
    if ":" in expect:
        return device.upper().endswith(expect.upper().lstrip("/").removeprefix("DEVICE:"))
    return f"device:{expect.upper()}:" in device


def _whole_tables(call: ExecutedCall, handles: Handles, places: list[TablePlace]) -> Iterator[Finding]:
    """Find lookups that run on another device than their table."""
    devices = {one.name: one.devices for one in places}
    sizes = {one.name: one.bytes for one in places}
    for node in call.placed.values():
        table = _table_of(call, node, handles) if node.op in _LOOKUPS else None
        if table is not None and node.device not in devices[table]:
            yield Finding(
                kind="whole table",
                what=f"lookup {node.name} runs on {node.device}, its table {table!r} is on {devices[table][0]}",
                rule=f"every call copies the whole table ({sizes[table]:,} bytes) between the devices",
                remedy="pass the variable itself to tf.nn.embedding_lookup or tf.gather, not its value",
            )


def _clamped(lookups: list[Lookup]) -> Iterator[Finding]:
    for one in lookups:
        if one.compiled:
            yield Finding(
                kind="clamped ids",
                what=f"lookup {one.operation} is compiled by XLA",
                rule="there an id out of range is not an error: it gets the first or the last row (on a GPU zeros)",
                remedy="check ids outside jit_compile, with embedding_core.columns.ids or tf.debugging.assert_less",
            )


def _float_ids(call: ExecutedCall) -> Iterator[Finding]:
    for (scope, name), node in call.traced.items():
        if node.op not in _LOOKUPS:
            continue
        cast = _float_cast(call, scope, node)
        if cast is not None:
            yield Finding(
                kind="float ids",
                what=f"the ids of lookup {name} are cast from {tf.as_dtype(cast.definition.attr['SrcT'].type).name}",
                rule="the fraction is cut off (1.7 becomes row 1), and float32 cannot tell ids above 2**24 apart",
                remedy="feed int32 or int64 ids",
            )


def _float_cast(call: ExecutedCall, scope: str, node: Node) -> Node | None:
    edge = node.definition.input[_LOOKUPS[node.op]]
    while True:
        before = call.traced.get((scope, _source(edge)))
        if before is None or before.op not in _PASSING_ON or not before.definition.input:
            return None
        if before.op == "Cast" and tf.as_dtype(before.definition.attr["SrcT"].type).is_floating:
            return before
        edge = before.definition.input[0]


def _lacks(table: TablePlace) -> list[str]:
    """List what is missing for a table to be on a GPU; empty if it is on one."""
    if any(_is_on(device, "GPU") for device in table.devices):
        return []
    lacks = []
    if not tf.config.list_physical_devices("GPU"):
        lacks.append("TensorFlow finds no GPU in this process: check the driver and the build of TensorFlow")
    if tf.as_dtype(table.dtype) not in _WITH_GRADIENT:
        lacks.append(f"{table.dtype} cannot be trained: make it float32")
    lacks.append("make the variable on the GPU, as in `with tf.device('/GPU:0'):`")
    lacks.append(f"the GPU needs {table.bytes:,} bytes of free memory, and as much again for each slot")
    return lacks
