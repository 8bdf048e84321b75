"""The graph that TensorFlow really ran: after placement, inlining and optimization, device by device.

`tf.summary.trace_on` records it. The requested devices in a traced graph tell nothing: a lookup runs where its
table is, and soft placement moves what a device cannot do.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf


class Node(NamedTuple):
    """An operation of a graph, or of a function that it calls.

    Attributes:
      definition: its NodeDef.
      scope: the name of the function that it is in, or "".
      compiled: whether it is inside a function that XLA compiles.
    """

    definition: Any
    scope: str
    compiled: bool

    @property
    def op(self) -> str:
        """The type."""
        return str(self.definition.op)


class Ran(NamedTuple):
    """One call, as it was traced and as it ran.

    Attributes:
      traced: the operations before placement, those of called functions among them, by scope and name.
      placed: the operations as they ran, by name; those inside functions that XLA compiled are not among them.
      variables: per name of an argument's operation in `placed`, the handle of the variable that it is.
      captured: per name of a placeholder in `traced`, likewise.
    """

    traced: Mapping[tuple[str, str], Node]
    placed: Mapping[str, Any]
    variables: Mapping[str, Any]
    captured: Mapping[str, Any]


def run_once(function: Callable[..., Any], *arguments: Any) -> Ran:
    """Trace a function, run it once, and say what ran where."""
    mark = f"placement_{uuid.uuid4().hex}"

    @tf.function  # type: ignore[untyped-decorator]
    def marked(*given: Any) -> Any:
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
    places = {place: tensor.name.partition(":")[0] for place, tensor in enumerate(graph.inputs)}
    variables = {
        name: captured[places[node.attr["index"].i]]
        for name, node in placed.items()
        if node.op == "_Arg" and places.get(node.attr["index"].i) in captured
    }
    return Ran(_traced(graph.as_graph_def()), placed, variables, captured)


def _recorded(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """The partitions of every function graph that ran during the call."""
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


def _traced(graph: Any) -> dict[tuple[str, str], Node]:
    """All operations, and those of the functions that they call, with whether XLA compiles them."""
    functions = {function.signature.name: function for function in graph.library.function}
    found: dict[tuple[str, str], Node] = {}
    waiting = [("", False, graph.node)]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        scope, compiled, nodes = waiting.pop()
        if (scope, compiled) in seen:
            continue
        seen.add((scope, compiled))
        for node in nodes:
            inside = compiled or node.attr["_XlaMustCompile"].b
            found[scope, node.name] = Node(node, scope, compiled)
            for name in _called(node):
                if name in functions:
                    must = inside or functions[name].attr["_XlaMustCompile"].b
                    waiting.append((name, must, functions[name].node_def))
    return found


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        yield from (function.name for function in value.list.func)
