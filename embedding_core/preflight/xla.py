"""Checks whether XLA can compile what a core would run: each kind of operation alone, then the whole program.

XLA for CPU stands in for XLA for TPU. A compilation error names only the first operation without a kernel, so each kind
of operation (its type, its dtypes and the functions that it calls) is first compiled alone. Inside a function that the
step calls (a tf.cond, tf.while_loop or inner tf.function), only the first operation without a kernel is found.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

from embedding_core.errors import Finding
from embedding_core.preflight.trace import Traced, name_and_line

# Makes a function of some operations of a traced program, with stand-ins for its variables.

OPAQUE = (tf.resource, tf.variant)
PREFIX = "import/"  # TensorFlow puts this before the names of the operations
# Operations that only a TPU or its strategy has. They are left out, and their outputs become arguments.
_OF_TPU = (
    *("RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients", "AllToAll", "CollectivePermute"),
    *("TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"),
)
_MAPPED = 1 << 30  # bytes from which a stand-in is a mapped file
_MAPPABLE = (tf.float32, tf.float16, tf.float64, tf.int32, tf.int64)  # numpy passes these on without a copy
STAND_IN_SIZE = 4  # size for a dimension that is only known at run time


def is_of_tpu(op: tf.Operation) -> bool:
    """Return whether only a TPU or its strategy has the operation; `ProgramPart` leaves such operations out."""
    return op.type in _OF_TPU or op.type.startswith("XlaSparse")


class Variables:
    """Stand-ins for the variables that the traced graph captured, with their dtypes and shapes.

    Nothing writes to a stand-in, so that even a large variable takes no memory.

    Args:
      graph: the traced graph.
      largest: maximum number of values of a variable that has a stand-in; None is any number.
    """

    def __init__(self, graph: tf.Graph, largest: int | None = None) -> None:
        self._captured = {inner.name: outer.op for outer, inner in graph.captures if outer.dtype == tf.resource}
        self._largest = largest
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
                self._made[name] = tf.Variable(lambda: _untouched(shape, dtype), trainable=False)
        return tf.identity(self._made[name].handle)

    def has(self, tensor: tf.Tensor) -> bool:
        """Return whether a handle belongs to a captured variable that is small enough for a stand-in."""
        captured = self._captured.get(self._name(tensor))
        if captured is None or captured.type != "VarHandleOp":
            return False
        shape, _ = self._form(self._name(tensor))
        return shape.is_fully_defined() and (self._largest is None or (shape.num_elements() or 0) <= self._largest)

    def _name(self, tensor: tf.Tensor) -> str:
        op = tensor.op
        return str(op.inputs[0].name if op.type == "TPUReplicatedInput" else tensor.name)

    def _form(self, name: str) -> tuple[tf.TensorShape, tf.DType]:
        attributes = self._captured[name].node_def.attr
        return tf.TensorShape(attributes["shape"].shape), tf.as_dtype(attributes["dtype"].type)


def _untouched(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Make a tensor whose values nothing has written, so that it takes no memory until something does.

    A large one is a file without content, mapped into memory: an allocation larger than the machine's memory fails.
    """
    if shape.num_elements() * dtype.size < _MAPPED or dtype not in _MAPPABLE:
        return tf.raw_ops.Empty(shape=shape.as_list(), dtype=dtype, init=False)
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, dtype.as_numpy_dtype, "w+", shape=tuple(shape))
    return tf.experimental.dlpack.from_dlpack(mapped.__dlpack__())


class ProgramPart:
    """A function that runs some operations of a graph; their inputs from other operations are its arguments.

    A sum over all cores (`CrossReplicaSum`) becomes the core's own value.

    Args:
      operations: operations of one graph, without those of `is_of_tpu`.
      library: functions that they call.
      variables: stand-ins for the variables that they use.
      only_used: whether to return only what other operations of the graph use, not every value that no operation of
        the part uses.
    """

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        library: FunctionDefLibrary,
        variables: Variables,
        *,
        only_used: bool = False,
    ) -> None:
        self._variables = variables
        self._incoming: dict[str, tf.Tensor] = {}
        self._graph = tf.compat.v1.GraphDef(library=library)
        names = {op.name for op in operations}
        for op in operations:
            self._graph.node.append(_bare(op, [self._input(tensor, names) for tensor in op.inputs]))
        used = {tensor.name for op in operations for tensor in op.inputs}
        self._ends = [
            output.name
            for op in operations
            for output in op.outputs
            if output.dtype not in OPAQUE and (_leaves(output, names) if only_used else output.name not in used)
        ]
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
                [STAND_IN_SIZE if size is None else size for size in tensor.shape] if tensor.shape.rank else [],
                tensor.dtype,
            )
            for tensor in self._incoming.values()
            if _is_argument(tensor)
        ]

    @property
    def unknown_sizes(self) -> int:
        """Number of arguments with a dimension that is only known at run time; `specs` gives it STAND_IN_SIZE."""
        return sum(_is_argument(tensor) and not tensor.shape.is_fully_defined() for tensor in self._incoming.values())

    def __call__(self, *given: tf.Tensor) -> list[tf.Tensor]:
        """Compute the outputs, and run the operations without outputs."""
        left = iter(given)
        sources = {
            f"incoming_{place}:0": next(left) if _is_argument(tensor) else self._fixed(tensor)
            for place, tensor in enumerate(self._incoming.values())
        }
        wanted = [*self._ends, *self._effects]
        made = tf.graph_util.import_graph_def(
            self._graph, input_map=sources, return_elements=wanted, name=PREFIX.rstrip("/")
        )
        return list(made[: len(self._ends)])

    def _fixed(self, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.op.type == "Const":
            return tf.constant(tf.make_ndarray(tensor.op.node_def.attr["value"].tensor), tensor.dtype)
        if tensor.dtype == tf.string:  # XLA supports strings only as constants
            return tf.constant("")
        return self._variables.handle(tensor)


def lowered_hlo(part: ProgramPart) -> bytes:
    """Lower the part to a serialized HloModuleProto, without running it.

    Raises:
      Exception: XLA for CPU has no kernel for an operation, or needs the value of an argument. TensorFlow raises
        ValueError, TypeError and its own errors.
    """
    function = tf.function(part, jit_compile=True, autograph=False)
    return bytes(function.experimental_get_compiler_ir(*part.specs)(stage="hlo_serialized"))


def _bare(op: tf.Operation, inputs: Sequence[str]) -> tf.compat.v1.NodeDef:
    """Copy an operation's definition with the given inputs, without device, internal attributes and control inputs."""
    node = tf.compat.v1.NodeDef()
    node.CopyFrom(op.node_def)
    node.device = ""
    for name in [name for name in node.attr if name.startswith("_")]:
        del node.attr[name]
    if op.type == "CrossReplicaSum":
        node.op, inputs = "Identity", inputs[:1]
    node.input[:] = inputs
    return node


def _leaves(tensor: tf.Tensor, names: set[str]) -> bool:
    return any(op.name not in names for op in tensor.consumers())


def _is_argument(tensor: tf.Tensor) -> bool:
    return tensor.op.type != "Const" and tensor.dtype not in (*OPAQUE, tf.string)


_NO_KERNEL = re.compile(r"No registered '(\w+)' OpKernel")
_REPORTED = "Failed getting HLO text: '"
COMPILED = "compiled"  # the result if the whole program compiles
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
    variables = Variables(traced.graph, _LARGEST)
    kinds = {_kind(op): op for op in reversed(traced.on_core) if not is_of_tpu(op)}
    missing: dict[str, tf.Operation] = {}
    for op in reversed(kinds.values()):
        match = _NO_KERNEL.search(_compile_error(ProgramPart([op], library, variables)) or "")
        if match:
            missing.setdefault(match.group(1), op)
    if missing:
        findings = tuple(_no_kernel(kind, op) for kind, op in missing.items())
        return Compiled(findings, len(kinds), "not compiled: first replace the operations that have no kernel")
    error = _compile_error(ProgramPart([op for op in traced.on_core if not _is_cut(op, variables)], library, variables))
    if error is None:
        return Compiled((), len(kinds), COMPILED)
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
    return op.type, *(input_.dtype for input_ in op.inputs), None, *(output.dtype for output in op.outputs), *called


def _is_cut(op: tf.Operation, variables: Variables) -> bool:
    """Return whether an operation is left out of the whole program.

    Left out are operations that only a TPU has, and those that use resources or variants. A call of a function is kept
    if all its resources are variables with stand-ins.
    """
    touched = [tensor for tensor in (*op.inputs, *op.outputs) if tensor.dtype in OPAQUE]
    calls = any(value.WhichOneof("value") == "func" for value in op.node_def.attr.values())
    return is_of_tpu(op) or (bool(touched) and not (calls and all(map(variables.has, touched))))


def _compile_error(part: ProgramPart) -> str | None:
    """Lower the part to XLA's HLO, and return the message of TensorFlow's error; None if there is no error."""
    try:
        lowered_hlo(part)
    except Exception as error:  # TensorFlow raises ValueError, TypeError and its own errors
        return str(error)
    return None
