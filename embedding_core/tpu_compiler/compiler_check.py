"""Compiles the traced program of a core with XLA:TPU, and compares its memory with the plan."""

from __future__ import annotations

import re
from typing import NamedTuple

import tensorflow as tf

from embedding_core.errors import Finding
from embedding_core.planning.topology import GIB
from embedding_core.preflight.preflight_run import Checked, Program
from embedding_core.preflight.trace import Traced, generation_of, name_and_line
from embedding_core.preflight.xla import PREFIX, ProgramPart, Variables, is_of_tpu, lowered_hlo
from embedding_core.schema import Json
from embedding_core.tpu_compiler.compiler import TpuCompiler

# Writes what one core of a traced program runs as an HLO module, for a compiler in another process.


class CoreProgram(NamedTuple):
    """The program of one core.

    Attributes:
      hlo: serialized HloModuleProto. Its arguments are the core's batch, what the embedding engine sends, and every
        variable; the updated variables are outputs that share the memory of their arguments.
      cut: types of the operations that are left out.
      unknown_sizes: number of arguments with a dimension that is only known at run time; it is STAND_IN_SIZE.
    """

    hlo: bytes
    cut: tuple[str, ...]
    unknown_sizes: int


def core_program(traced: Traced) -> CoreProgram:
    """Lower what a core runs to HLO. Nothing runs, and variables take no memory. Call this in eager mode.

    Raises:
      Exception: TensorFlow cannot lower the program; `compile_findings` explains why.
    """
    kept = [op for op in traced.on_core if not is_of_tpu(op) and not _serves_sparse_cores(op)]
    part = ProgramPart(kept, traced.graph.as_graph_def().library, Variables(traced.graph), only_used=True)
    cut = sorted({op.type for op in traced.on_core if is_of_tpu(op) and not op.type.startswith("TPURepl")})
    return CoreProgram(lowered_hlo(part), tuple(cut), part.unknown_sizes)


def _serves_sparse_cores(op: tf.Operation) -> bool:
    """Return whether an operation only reads or writes a table for the SparseCores, whose operations are left out."""
    if op.type == "ReadVariableOp":
        return all(map(_is_of_sparse_cores, op.outputs[0].consumers()))
    return op.type == "AssignVariableOp" and _is_of_sparse_cores(op.inputs[1].op)


def _is_of_sparse_cores(op: tf.Operation) -> bool:
    return bool(op.type.startswith("XlaSparse"))


def operation_of(name: str, traced: Traced) -> tf.Operation | None:
    """Find the operation that the compiler names, such as "import/dense/MatMul"; None if there is none.

    A name of an operation inside a function that the step calls begins with the name of the calling operation.
    """
    parts = name.removeprefix(PREFIX).split("/")
    for length in range(len(parts), 0, -1):
        try:
            return traced.graph.get_operation_by_name("/".join(parts[:length]))
        except KeyError:
            continue
    return None


# Compiles the traced program of a core with XLA:TPU, and compares its memory with the plan.

_NAMED = re.compile(r'(?:op_name=|error: |fused\[)"([^"]+)"')  # by XLA, or by MLIR
VERBS = {
    "refused": "the TPU compiler refuses it",
    "not converted": "it cannot be converted to StableHLO, the form in which the TPU compiler takes programs",
    "stopped": "the TPU compiler did not finish",
}
NO_MEMORY = "RESOURCE_EXHAUSTED"
NECESSARY_COMPILED = (
    "Green is necessary, not sufficient: nothing ran. Only the TPU itself shows speed, numerics, the host's input "
    "pipeline and the operations that the TPU compiler did not get."
)


def compiler_check(program: Program, compiler: TpuCompiler) -> Checked:
    """Compile what a core of the traced program would run.

    Returns:
      What `TpuCompiler.compile` returned; if the program was compiled also "total_bytes" of the program,
      "planned_bytes" of tables and slots, and whether "tables_inside" the program; "left_out": the types of the
      operations that the program does not have; "unknown_sizes": number of its arguments with a guessed dimension.
      A finding if the compiler refuses the program, or if tables and program together exceed a core's memory.

    Raises:
      ConfigError: the compiler's environment is damaged, or has other versions.
    """
    traced = program.traced
    if traced is None:
        return Checked({"stage": "not lowered"})
    try:
        core = core_program(traced)
    except Exception as error:  # TensorFlow raises ValueError, TypeError and its own errors
        return Checked({"stage": "not lowered", "error": str(error)}, (_not_lowered(error),))
    result = {
        **compiler.compile(core.hlo, generation_of(program.topology)),
        "left_out": list(core.cut),
        "unknown_sizes": core.unknown_sizes,
    }
    if result["stage"] != "compiled":
        return Checked(result, (_refused(result, traced),))
    return _compared(result, program)


def _compared(result: Json, program: Program) -> Checked:
    plan, inside = program.memory, program.hardware == "V0"
    new = result["output_bytes"] - result["shared_bytes"]
    total = result["argument_bytes"] + new + result["temporary_bytes"] + result["program_bytes"]
    used = total + (0 if inside else plan["fullest_core_bytes"])
    result = {
        **result,
        "total_bytes": total,
        "planned_bytes": plan["fullest_core_bytes"],
        "tables_inside": inside,
    }
    over = not inside and plan["fits"] and used > plan["bytes_per_core"]  # inside, the compiler refuses it
    findings = (_too_large(result, used, plan),) if over else ()
    return Checked(result, findings, judges_memory=inside, meaning=NECESSARY_COMPILED)


def _too_large(result: Json, used: int, plan: Json) -> Finding:
    return Finding(
        kind="memory",
        what=f"tables and slots of {plan['fullest_core_bytes'] / GIB:.2f} GiB and, by the TPU compiler, a program of "
        f"{result['total_bytes'] / GIB:.2f} GiB: {used / GIB:.2f} GiB on the fullest core of {plan['name']}",
        rule=f"a core has {plan['bytes_per_core'] / GIB:.0f} GiB for both",
        remedy="use a smaller batch or smaller tables, or a larger slice",
    )


def _refused(result: Json, traced: Traced) -> Finding:
    error = str(result["error"])
    verb = VERBS[result["stage"]]
    remedy = "replace the operation that it names, or move it to the input pipeline"
    if NO_MEMORY in error:
        remedy = "use a smaller batch, smaller layers or smaller tables, or a slice with more memory for each core"
    return Finding(
        kind="tpu",
        what=f"the step's program{_place(error, traced)}",
        rule=f"{verb} ({result['target']}): {first_words(error)}",
        remedy=remedy,
    )


def first_words(error: str) -> str:
    """Return the first paragraph of a compiler's message, in one line."""
    return " ".join(error.partition("\n\n")[0].partition("\n note:")[0].split())[:1000]


def _place(error: str, traced: Traced) -> str:
    """Name the first operation of the step in the compiler's message, and the line of the user's code that made it."""
    for name in _NAMED.findall(error):
        op = operation_of(name, traced)
        if op is not None:
            return f", at {name_and_line(op)}"
    return ""


def _not_lowered(error: Exception) -> Finding:
    return Finding(
        kind="tpu",
        what=f"the step's program with its variables: {' '.join(str(error).split())[:600]}",
        rule="the TPU compiler gets the program as TensorFlow lowers it for one core",
        remedy="change the operation that it names",
    )
