"""Finds the arguments of a traced function that each of its outputs depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Nodes: TypeAlias = Mapping[str, Any]
"""NodeDefs of a graph or of a function in its library, by name."""
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def needed_arguments(function: tf.types.experimental.ConcreteFunction) -> dict[str, set[int]]:
    """Return the numbers of the flat arguments that each output depends on, by output.

    Control dependencies do not count, as in TensorFlow Transform. The outputs of a function call are followed
    separately into the function; an output of any other operation depends on all of its inputs.

    Args:
      function: function that returns a dictionary; its arguments are numbered as `tf.nest.flatten` orders them.
    """
    graph = function.graph.as_graph_def()
    walk = _Walk({one.signature.name: one for one in graph.library.function})
    captured = len(function.captured_inputs)
    arguments = function.inputs[: len(function.inputs) - captured]
    numbers = {tensor.op.name: number for number, tensor in enumerate(arguments)}
    nodes = {node.name: node for node in graph.node}
    flat = iter(function.outputs)
    return {
        name: {
            numbers[source]
            for _ in tf.nest.flatten(value, expand_composites=True)
            for source in walk.sources(nodes, [next(flat).name])
            if source in numbers
        }
        for name, value in sorted(function.structured_outputs.items())
    }


class _Walk:
    """Walks from tensors back to the nodes that have no inputs."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._arguments: dict[tuple[str, int], list[int]] = {}

    def sources(self, nodes: Nodes, tensors: Sequence[str]) -> set[str]:
        """Return the names of the nodes without inputs (and of arguments, in a function) that tensors depend on."""
        reached, ends, todo = set[str](), set[str](), list(tensors)
        while todo:
            tensor = todo.pop()
            if tensor in reached or tensor.startswith("^"):
                continue
            reached.add(tensor)
            name, output = _node_and_output(tensor)
            inputs = self._inputs_of(nodes[name], output) if name in nodes else []
            todo.extend(inputs)
            if not inputs:
                ends.add(name)
        return ends

    def _inputs_of(self, node: Any, output: int) -> list[str]:
        inputs = [name for name in node.input if not name.startswith("^")]
        if node.op not in _CALLS:
            return inputs
        return [inputs[number] for number in self._arguments_of(node.attr["f"].func.name, output)]

    def _arguments_of(self, name: str, output: int) -> list[int]:
        """Return the numbers of the arguments that an output of a function in the library needs."""
        key = (name, output)
        if key not in self._arguments:
            function = self._functions[name]
            returned = function.ret[function.signature.output_arg[output].name]
            sources = self.sources({node.name: node for node in function.node_def}, [returned])
            arguments = [argument.name for argument in function.signature.input_arg]
            self._arguments[key] = [number for number, argument in enumerate(arguments) if argument in sources]
        return self._arguments[key]


def _node_and_output(tensor: str) -> tuple[str, int]:
    """Split a tensor's name (`node`, `node:0` or, in a function, `node:output:0`) into node and index of the output.

    The `output` part can be dropped: the index is used for calls only, and all outputs of a call are named `output`.
    """
    name, *rest = tensor.split(":")
    return name, int(rest[-1]) if rest else 0
