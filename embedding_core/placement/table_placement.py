"""Where each table and each lookup really is, and what TensorFlow does there without saying so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.placement.executed_graph import Node, Ran, run_once
from embedding_core.placement.placement_report import Lookup, Placement, Silent, TablePlace

# Operations that look rows up, and which of their inputs are the ids.
_LOOKUPS = dict.fromkeys(("Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"), 1) | dict.fromkeys(
    ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"), 1
)
_PASSING_ON = ("Identity", "Reshape", "ExpandDims", "Squeeze", "Unique", "UniqueV2", "_Send", "_Recv", "Cast")
_CONTROL_FLOW = ("Switch", "Merge", "Enter")  # what tf.cond and tf.while_loop have become when they run
_WITH_GRADIENT = (tf.bfloat16, tf.float16, tf.float32, tf.float64)


def placement_of(
    function: Callable[..., Any],
    *arguments: Any,
    tables: Mapping[str, tf.Variable],
    expect: str | None = None,
) -> Placement:
    """Run a function once, and say where its tables and lookups were.

    Args:
      function: a tf.function or a Python function, such as one training step; it runs once, side effects included.
      *arguments: of the function, as in real use.
      tables: variables that rows are looked up in, by name.
      expect: where the tables are meant to be: "CPU", "GPU", or a whole device name; None expects nothing.

    Raises:
      ConfigError: `tables` holds something that is no variable.
    """
    for name, table in tables.items():
        if not isinstance(table, tf.Variable | tf.distribute.DistributedValues):
            raise ConfigError(f"table {name!r} is {type(table).__name__}: it must be a tf.Variable.")
    ran = run_once(function, *arguments)
    places = [_place(name, table) for name, table in tables.items()]
    handles = [(name, copy.handle) for name, table in tables.items() for copy in _copies(table)]
    lookups = [*_placed_lookups(ran, handles), *_compiled_lookups(ran)]
    silent = [
        *_of_tables(places, expect),
        *_whole_tables(ran, handles, places),
        *_clamped(lookups),
        *_float_ids(ran),
    ]
    return Placement(tables=places, lookups=lookups, silent=silent, for_gpu={one.name: _lacks(one) for one in places})


def _copies(table: Any) -> tuple[Any, ...]:
    return tuple(table.values) if isinstance(table, tf.distribute.DistributedValues) else (table,)


def _place(name: str, table: Any) -> TablePlace:
    copies = _copies(table)
    shape = copies[0].shape
    return TablePlace(
        name=name,
        devices=tuple(copy.device for copy in copies),
        dtype=copies[0].dtype.name,
        shape=tuple(shape.as_list()),
        bytes=shape.num_elements() * copies[0].dtype.size,
    )


def _placed_lookups(ran: Ran, handles: list[tuple[str, Any]]) -> Iterator[Lookup]:
    for node in ran.placed.values():
        if node.op in _LOOKUPS:
            table = _table_of(ran, node, handles)
            if table is not None or node.op.startswith("Resource"):
                yield Lookup(operation=f"{node.op} {node.name}", table=table, device=node.device, compiled=False)


def _compiled_lookups(ran: Ran) -> Iterator[Lookup]:
    devices = [node.device for node in ran.placed.values() if node.attr["_XlaMustCompile"].b] or [""]
    for node in ran.traced.values():
        if node.compiled and node.op in _LOOKUPS:
            operation = f"{node.op} {node.definition.name}"
            yield Lookup(operation=operation, table=None, device=devices[0], compiled=True)


def _table_of(ran: Ran, node: Any, handles: list[tuple[str, Any]]) -> str | None:
    """The table that the rows come from: back along the first input to the variable that the call captured."""
    sent = {one.attr["tensor_name"].s: one for one in ran.placed.values() if one.op == "_Send"}
    while node is not None and node.op != "_Arg":
        if node.op == "_Recv":
            node = sent.get(node.attr["tensor_name"].s)
        elif node.op in (*_LOOKUPS, *_PASSING_ON, *_CONTROL_FLOW, "ReadVariableOp") and node.input:
            node = ran.placed.get(_source(node.input[0]))
        else:
            return None
    handle = None if node is None else ran.variables.get(node.name)
    return next((name for name, own in handles if own is handle), None)


def _source(edge: str) -> str:
    return edge.lstrip("^").partition(":")[0]


def _of_tables(places: list[TablePlace], expect: str | None) -> Iterator[Silent]:
    for one in places:
        elsewhere = [device for device in one.devices if expect is not None and not _is_on(device, expect)]
        if elsewhere:
            yield Silent(
                kind="device",
                what=f"table {one.name!r} is on {elsewhere[0]}, not on {expect}",
                rule="where a device is not there or cannot hold a variable, TensorFlow places it elsewhere (soft "
                "placement)",
                remedy="tf.config.set_soft_device_placement(False) makes it an error; " + "; ".join(_lacks(one)),
            )
        if len(one.devices) > 1:
            yield Silent(
                kind="copies",
                what=f"table {one.name!r} has {len(one.devices)} copies of {one.bytes:,} bytes",
                rule="a variable made in a strategy's scope is mirrored on every replica, and updated on each",
                remedy="make large tables outside of the scope, or use an embedding engine, which shards them",
            )
        if tf.as_dtype(one.dtype) not in _WITH_GRADIENT:
            yield Silent(
                kind="no gradient",
                what=f"table {one.name!r} is of {one.dtype}",
                rule="a lookup in it has no gradient: the tape gives None, and nothing is trained",
                remedy="make it float32 (or bfloat16, float16, float64)",
            )


def _is_on(device: str, expect: str) -> bool:
    if ":" in expect:
        return device.upper().endswith(expect.upper().lstrip("/").removeprefix("DEVICE:"))
    return f"device:{expect.upper()}:" in device


def _whole_tables(ran: Ran, handles: list[tuple[str, Any]], places: list[TablePlace]) -> Iterator[Silent]:
    """Lookups in a copy of the table on another device."""
    devices = {one.name: one.devices for one in places}
    sizes = {one.name: one.bytes for one in places}
    for node in ran.placed.values():
        table = _table_of(ran, node, handles) if node.op in _LOOKUPS else None
        if table is not None and node.device not in devices[table]:
            yield Silent(
                kind="whole table",
                what=f"lookup {node.name} runs on {node.device}, its table {table!r} is on {devices[table][0]}",
                rule=f"the whole table ({sizes[table]:,} bytes) is copied between the devices in every call",
                remedy="give the variable itself to tf.nn.embedding_lookup or tf.gather, not its value",
            )


def _clamped(lookups: list[Lookup]) -> Iterator[Silent]:
    for one in lookups:
        if one.compiled:
            yield Silent(
                kind="clamped ids",
                what=f"lookup {one.operation} is compiled by XLA",
                rule="an id out of range is no error there: it gets the first or the last row (a GPU gives zeros)",
                remedy="check ids outside of jit_compile, with embedding_core.columns.ids or tf.debugging.assert_less",
            )


def _float_ids(ran: Ran) -> Iterator[Silent]:
    for (scope, name), node in ran.traced.items():
        if node.op not in _LOOKUPS:
            continue
        cast = _float_cast(ran, scope, node)
        if cast is not None:
            yield Silent(
                kind="float ids",
                what=f"the ids of lookup {name} are cast from {tf.as_dtype(cast.definition.attr['SrcT'].type).name}",
                rule="the fraction is cut off (1.7 becomes row 1), and float32 cannot tell ids above 2**24 apart",
                remedy="feed int32 or int64 ids",
            )


def _float_cast(ran: Ran, scope: str, node: Node) -> Node | None:
    edge = node.definition.input[_LOOKUPS[node.op]]
    while True:
        before = ran.traced.get((scope, _source(edge)))
        if before is None or before.op not in _PASSING_ON or not before.definition.input:
            return None
        if before.op == "Cast" and tf.as_dtype(before.definition.attr["SrcT"].type).is_floating:
            return before
        edge = before.definition.input[0]


def _lacks(table: TablePlace) -> list[str]:
    """What a table lacks to be on a GPU."""
    if any(_is_on(device, "GPU") for device in table.devices):
        return []
    lacks = []
    if not tf.config.list_physical_devices("GPU"):
        lacks.append("TensorFlow finds no GPU in this process: check the driver and the build of TensorFlow")
    if tf.as_dtype(table.dtype) not in _WITH_GRADIENT:
        lacks.append(f"{table.dtype} is no type to train: make it float32")
    lacks.append("the variable has to be made where the GPU is the device, as in `with tf.device('/GPU:0'):`")
    lacks.append(f"{table.bytes:,} bytes, and as much again for each slot, have to be free in the GPU's memory")
    return lacks
