"""Records the graph that TensorFlow actually ran: after placement, inlining and optimization, device by device.

The record is made by `tf.summary.trace_on`. The devices requested in a traced graph are not reliable: a lookup runs on
the device of its table, and soft placement moves operations that a device does not support.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf


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
    """

    traced: Mapping[tuple[str, str], Node]
    placed: Mapping[str, tf.compat.v1.NodeDef]
    variables: Mapping[str, tf.Tensor]


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
    return ExecutedCall(_traced(graph.as_graph_def()), placed, variables)


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
