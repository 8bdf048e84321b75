"""Reports the device that each table and each lookup is really on, and what TensorFlow does there silently."""

from __future__ import annotations

import dataclasses
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.errors import ConfigError, Finding
from embedding_core.schema import Json

# Defines the report on the devices of tables and lookups, in plain values and without TensorFlow.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePlace:
    """The devices of one table.

    Attributes:
      name: name given by the caller.
      devices: device of each copy; one if the table is not mirrored.
      dtype: dtype of its values.
      shape: rows and dim.
      bytes: size of one copy.
    """

    name: str
    devices: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup:
    """The device of one lookup.

    Attributes:
      operation: type and name in the graph.
      table: name of the table; None if it is unknown.
      device: device that it ran on.
      compiled: whether XLA compiled it.
    """

    operation: str
    table: str | None
    device: str
    compiled: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """The real devices of tables and lookups of one call.

    Attributes:
      tables: the tables given by the caller.
      lookups: all lookups of the call.
      silent: findings on what TensorFlow does silently, such as clamping ids.
      for_gpu: what is missing for each table to be on a GPU; empty if it is on one.
    """

    tables: Sequence[TablePlace]
    lookups: Sequence[Lookup]
    silent: Sequence[Finding]
    for_gpu: Mapping[str, Sequence[str]]

    def to_json(self) -> Json:
        """Return the report as a JSON object."""
        return dataclasses.asdict(self)


# Records the graph that TensorFlow actually ran: after placement, inlining and optimization, device by device.
#
# The record is made by `tf.summary.trace_on`. The devices requested in a traced graph are not reliable: a lookup runs
# on the device of its table, and soft placement moves operations that a device does not support.


class Node(NamedTuple):
    """An operation of a graph, or of a function that it calls.

    Attributes:
      definition: NodeDef of the operation.
      scope: name of the called function that contains it, or "" if it is in the graph itself.
      compiled: whether it is inside a function that XLA compiles.
    """

    definition: tf.compat.v1.NodeDef
    scope: str
    compiled: bool

    @property
    def op(self) -> str:
        """The operation's type."""
        return str(self.definition.op)


class ExecutedCall(NamedTuple):
    """One call, as it was traced and as it ran.

    Attributes:
      traced: operations before placement, including those of called functions, by scope and name.
      placed: operations as they ran, by name, without those inside functions that XLA compiled.
      variables: handles of the captured variables, by the name of the `_Arg` operation in `placed` that receives it.
      sent: operations of `placed` that send a value to another device, by its name.
    """

    traced: Mapping[tuple[str, str], Node]
    placed: Mapping[str, tf.compat.v1.NodeDef]
    variables: Mapping[str, tf.Tensor]
    sent: Mapping[bytes, tf.compat.v1.NodeDef]


def run_once(function: Callable[..., object], *arguments: object) -> ExecutedCall:
    """Trace a function, run it once, and record what ran on which device."""
    mark = f"placement_{uuid.uuid4().hex}"

    @tf.function  # type: ignore[untyped-decorator]
    def marked(*given: object) -> object:
        with tf.name_scope(mark):
            return tf.identity(0), function(*given)

    graph = marked.get_concrete_function(*arguments).graph
    placed = {
        node.name: node
        for partitions in _recorded(lambda: marked(*arguments))
        if any(node.name.startswith(mark) for partition in partitions for node in partition.node)
        for partition in partitions
        for node in partition.node
    }
    captured = {inner.name.partition(":")[0]: outer for outer, inner in graph.captures}
    arguments_by_index = {index: tensor.name.partition(":")[0] for index, tensor in enumerate(graph.inputs)}
    variables = {
        name: captured[arguments_by_index[node.attr["index"].i]]
        for name, node in placed.items()
        if node.op == "_Arg" and arguments_by_index.get(node.attr["index"].i) in captured
    }
    sent = {node.attr["tensor_name"].s: node for node in placed.values() if node.op == "_Send"}
    return ExecutedCall(_traced(graph.as_graph_def()), placed, variables, sent)


def _recorded(call: Callable[[], object]) -> Iterator[list[tf.compat.v1.GraphDef]]:
    """Yield, for every function graph that ran during the call, its partitions (one per device)."""
    with tempfile.TemporaryDirectory() as folder:
        writer = tf.summary.create_file_writer(folder)
        tf.summary.trace_on(graph=True, profiler=False)
        try:
            call()
            with writer.as_default():
                tf.summary.trace_export("placement", step=0)
        finally:
            tf.summary.trace_off()
            writer.close()
        for file in Path(folder).iterdir():
            for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
                for value in tf.compat.v1.Event.FromString(record).summary.value:
                    metadata = tf.compat.v1.RunMetadata.FromString(value.tensor.string_val[0])
                    yield from (list(graphs.partition_graphs) for graphs in metadata.function_graphs)


def _traced(graph: tf.compat.v1.GraphDef) -> dict[tuple[str, str], Node]:
    """Collect all operations, including those of called functions, and note whether XLA compiles them."""
    functions = {function.signature.name: function for function in graph.library.function}
    operations: dict[tuple[str, str], Node] = {}
    waiting = [("", False, graph.node)]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        scope, compiled, nodes = waiting.pop()
        if (scope, compiled) in seen:
            continue
        seen.add((scope, compiled))
        for node in nodes:
            inside = compiled or node.attr["_XlaMustCompile"].b
            operations[scope, node.name] = Node(node, scope, compiled)
            for name in _called(node):
                if name in functions:
                    must = inside or functions[name].attr["_XlaMustCompile"].b
                    waiting.append((name, must, functions[name].node_def))
    return operations


def _called(node: tf.compat.v1.NodeDef) -> Iterator[str]:
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        yield from (function.name for function in value.list.func)


# Finds out which devices tables and lookups are really on, and what TensorFlow silently does there.

Table: TypeAlias = tf.Variable | tf.distribute.DistributedValues
Handles: TypeAlias = list[tuple[str, tf.Tensor]]
"""Names of tables, and the handles of their copies."""

# Operations that look up rows, and the index of the input with the ids.
_SUMS = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
_GATHERS = ("Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd")
_LOOKUPS = dict.fromkeys((*_GATHERS, *_SUMS, *(f"{name}WithNumSegments" for name in _SUMS)), 1)
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
    return Placement(
        tables=places, lookups=lookups, silent=silent, for_gpu={place.name: _lacks(place) for place in places}
    )


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
    while node is not None and node.op != "_Arg":
        if node.op == "_Recv":
            node = call.sent.get(node.attr["tensor_name"].s)
        elif node.op in (*_LOOKUPS, *_PASSING_ON, *_CONTROL_FLOW, "ReadVariableOp") and node.input:
            node = call.placed.get(_source(node.input[0]))
        else:
            return None
    handle = None if node is None else call.variables.get(node.name)
    return next((name for name, of_table in handles if of_table is handle), None)


def _source(edge: str) -> str:
    return edge.lstrip("^").partition(":")[0]


def _of_tables(places: list[TablePlace], expect: str | None) -> Iterator[Finding]:
    for place in places:
        elsewhere = [device for device in place.devices if expect is not None and not _is_on(device, expect)]
        if elsewhere:
            yield Finding(
                kind="device",
                what=f"table {place.name!r} is on {elsewhere[0]}, not on {expect}",
                rule="TensorFlow uses another device if one does not exist or cannot hold a variable (soft placement)",
                remedy="tf.config.set_soft_device_placement(False) makes it an error; " + "; ".join(_lacks(place)),
            )
        if len(place.devices) > 1:
            yield Finding(
                kind="copies",
                what=f"table {place.name!r} has {len(place.devices)} copies of {place.bytes:,} bytes",
                rule="a variable made in a strategy's scope is mirrored on every replica and updated on each of them",
                remedy="make large tables outside the scope, or use an embedding engine, which shards them",
            )
        if tf.as_dtype(place.dtype) not in _WITH_GRADIENT:
            yield Finding(
                kind="no gradient",
                what=f"table {place.name!r} has dtype {place.dtype}",
                rule="its lookup has no gradient: the tape returns None, and the table is not trained",
                remedy="make it float32 (or bfloat16, float16, float64)",
            )


def _is_on(device: str, expect: str) -> bool:
    if ":" in expect:
        return device.upper().endswith(expect.upper().lstrip("/").removeprefix("DEVICE:"))
    return f"device:{expect.upper()}:" in device


def _whole_tables(call: ExecutedCall, handles: Handles, places: list[TablePlace]) -> Iterator[Finding]:
    """Find lookups that run on another device than their table."""
    devices = {place.name: place.devices for place in places}
    sizes = {place.name: place.bytes for place in places}
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
    for lookup in lookups:
        if lookup.compiled:
            yield Finding(
                kind="clamped ids",
                what=f"lookup {lookup.operation} is compiled by XLA",
                rule="there an id out of range is not an error: it gets the first or the last row (on a GPU zeros)",
                remedy="check ids outside jit_compile, with embedding_core.columns or tf.debugging.assert_less",
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
