"""Checks whether XLA can compile what a core would run: each kind of operation alone, then the whole program.

XLA for CPU stands in for XLA for TPU. A compilation error names only the first operation without a kernel, so each kind
of operation (its type, its dtypes and the functions that it calls) is first compiled alone. Inside a function that the
step calls (a tf.cond, tf.while_loop or inner tf.function), only the first operation without a kernel is found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

from embedding_core.errors import Finding
from embedding_core.preflight.trace import Traced, name_and_line

_NO_KERNEL = re.compile(r"No registered '(\w+)' OpKernel")
_REPORTED = "Failed getting HLO text: '"
_OPAQUE = (tf.resource, tf.variant)
# Operations that only a TPU or its strategy has. They are not compiled, and their outputs become arguments.
_OF_TPU = (
    *("RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients", "CrossReplicaSum", "AllToAll", "CollectivePermute"),
    *("TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"),
)
_STAND_IN = 4  # size for a dimension that is only known at run time
_LARGEST = 1 << 24  # maximum number of values of a stand-in variable


class Compiled(NamedTuple):
    """The result of compiling.

    Attributes:
      findings: one for each type of operation without a kernel; else one if the whole program does not compile.
      kinds: number of kinds of operations that were compiled alone.
      whole: result for the whole program, in words.
    """

    findings: tuple[Finding, ...]
    kinds: int
    whole: str


def compile_findings(traced: Traced) -> Compiled:
    """Compile what a core of the traced program would run, without running it. Call this in eager mode."""
    library = traced.graph.as_graph_def().library
    variables = _Variables(traced.graph)
    kinds = {_kind(op): op for op in reversed(traced.on_core) if not _is_of_tpu(op)}
    missing: dict[str, tf.Operation] = {}
    for op in reversed(kinds.values()):
        match = _NO_KERNEL.search(_compile_error(_Part([op], library, variables)) or "")
        if match:
            missing.setdefault(match.group(1), op)
    if missing:
        findings = tuple(_no_kernel(kind, op) for kind, op in missing.items())
        return Compiled(findings, len(kinds), "not compiled: first replace the operations that have no kernel")
    error = _compile_error(_Part([op for op in traced.on_core if not _is_cut(op, variables)], library, variables))
    if error is None:
        return Compiled((), len(kinds), "compiled")
    return Compiled((_not_compiled(error),), len(kinds), "XLA cannot compile it")


def _no_kernel(kind: str, op: tf.Operation) -> Finding:
    inside = "" if kind == op.type else f", called by {op.type}"
    return Finding(
        kind="kernel",
        what=f"operation {kind}{inside} at {name_and_line(op)}",
        rule="XLA compiles everything that a core runs, and has no kernel for it",
        remedy="move it to the input pipeline, use other operations, or let the host do it in every step with "
        "tf.compat.v1.tpu.outside_compilation",
    )


def _not_compiled(error: str) -> Finding:
    lines = [line.strip() for line in (error.partition(_REPORTED)[2] or error).splitlines() if line.strip()]
    return Finding(
        kind="compile",
        what=f"the step's program: {lines[0] if lines else error}",
        rule="XLA compiles everything that a core runs as one program, with shapes known in advance",
        remedy="make the operation that it names depend only on static shapes and constants",
    )


def _kind(op: tf.Operation) -> tuple[object, ...]:
    called = sorted(value.func.name for value in op.node_def.attr.values() if value.WhichOneof("value") == "func")
    return op.type, *(one.dtype for one in op.inputs), None, *(one.dtype for one in op.outputs), *called


def _is_of_tpu(op: tf.Operation) -> bool:
    return op.type in _OF_TPU or op.type.startswith("XlaSparse")


def _is_cut(op: tf.Operation, variables: _Variables) -> bool:
    """Return whether an operation is left out of the whole program.

    Left out are operations that only a TPU has, and those that use resources or variants. A call of a function is kept
    if all its resources are variables with stand-ins.
    """
    touched = [one for one in (*op.inputs, *op.outputs) if one.dtype in _OPAQUE]
    calls = any(value.WhichOneof("value") == "func" for value in op.node_def.attr.values())
    return _is_of_tpu(op) or (bool(touched) and not (calls and all(map(variables.has, touched))))


class _Variables:
    """Stand-ins for the variables that the traced graph captured, with their dtypes and shapes."""

    def __init__(self, graph: tf.Graph) -> None:
        self._captured = {inner.name: outer.op for outer, inner in graph.captures if outer.dtype == tf.resource}
        self._made: dict[str, tf.Variable] = {}
        self._any = tf.Variable(0.0, shape=tf.TensorShape(None), trainable=False)

    def handle(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the handle of a variable's stand-in, or if it has none, of a placeholder of unknown shape."""
        if not self.has(tensor):
            return tf.identity(self._any.handle)  # `tf.identity` makes it a tensor of the function being traced
        name = self._name(tensor)
        if name not in self._made:
            shape, dtype = self._form(name)
            with tf.init_scope():
                self._made[name] = tf.Variable(lambda: tf.zeros(shape, dtype), trainable=False)
        return tf.identity(self._made[name].handle)

    def has(self, tensor: tf.Tensor) -> bool:
        """Return whether a handle belongs to a captured variable that is small enough for a stand-in."""
        captured = self._captured.get(self._name(tensor))
        if captured is None or captured.type != "VarHandleOp":
            return False
        shape, _ = self._form(self._name(tensor))
        return shape.is_fully_defined() and (shape.num_elements() or 0) <= _LARGEST

    def _name(self, tensor: tf.Tensor) -> str:
        op = tensor.op
        return str(op.inputs[0].name if op.type == "TPUReplicatedInput" else tensor.name)

    def _form(self, name: str) -> tuple[tf.TensorShape, tf.DType]:
        attributes = self._captured[name].node_def.attr
        return tf.TensorShape(attributes["shape"].shape), tf.as_dtype(attributes["dtype"].type)


class _Part:
    """A function that runs some operations of a graph; their inputs from other operations are its arguments."""

    def __init__(self, operations: Sequence[tf.Operation], library: FunctionDefLibrary, variables: _Variables) -> None:
        self._variables = variables
        self._incoming: dict[str, tf.Tensor] = {}
        self._graph = tf.compat.v1.GraphDef(library=library)
        names = {op.name for op in operations}
        for op in operations:
            self._graph.node.append(_bare(op, [self._input(tensor, names) for tensor in op.inputs]))
        used = {tensor.name for op in operations for tensor in op.inputs}
        self._ends = [one.name for op in operations for one in op.outputs if one.name not in used and _is_plain(one)]
        self._effects = [op.name for op in operations if not op.outputs]

    def _input(self, tensor: tf.Tensor, names: set[str]) -> str:
        if tensor.op.name in names:
            return str(tensor.name)
        self._incoming.setdefault(tensor.name, tensor)
        return f"incoming_{list(self._incoming).index(tensor.name)}"

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specifications of the arguments, with static shapes; constants, strings and resources are not arguments."""
        return [
            tf.TensorSpec(
                [_STAND_IN if size is None else size for size in one.shape] if one.shape.rank else [], one.dtype
            )
            for one in self._incoming.values()
            if _is_argument(one)
        ]

    def __call__(self, *given: tf.Tensor) -> list[tf.Tensor]:
        """Compute the outputs that no other operation of this part uses."""
        left = iter(given)
        sources = {
            f"incoming_{place}:0": next(left) if _is_argument(tensor) else self._fixed(tensor)
            for place, tensor in enumerate(self._incoming.values())
        }
        wanted = [*self._ends, *self._effects]
        made = tf.graph_util.import_graph_def(self._graph, input_map=sources, return_elements=wanted)
        return list(made[: len(self._ends)])

    def _fixed(self, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.op.type == "Const":
            return tf.constant(tf.make_ndarray(tensor.op.node_def.attr["value"].tensor), tensor.dtype)
        if tensor.dtype == tf.string:  # XLA supports strings only as constants
            return tf.constant("")
        return self._variables.handle(tensor)


def _bare(op: tf.Operation, inputs: Sequence[str]) -> tf.compat.v1.NodeDef:
    """Copy an operation's definition with the given inputs, without device, internal attributes and control inputs."""
    node = tf.compat.v1.NodeDef()
    node.CopyFrom(op.node_def)
    node.device = ""
    for name in [name for name in node.attr if name.startswith("_")]:
        del node.attr[name]
    node.input[:] = inputs
    return node


def _is_plain(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in _OPAQUE


def _is_argument(tensor: tf.Tensor) -> bool:
    return tensor.op.type != "Const" and tensor.dtype not in (*_OPAQUE, tf.string)


def _compile_error(part: _Part) -> str | None:
    """Lower the part to XLA's HLO, and return the message of TensorFlow's error; None if there is no error."""
    try:
        tf.function(part, jit_compile=True, autograph=False).experimental_get_compiler_ir(*part.specs)(stage="hlo")
    except Exception as error:  # TensorFlow raises ValueError, TypeError and its own errors
        return str(error)
    return None
