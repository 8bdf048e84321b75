"""Compiles the traced program of a core with XLA:TPU, and compares its memory with the plan."""

from __future__ import annotations

import re
from typing import NamedTuple

from embedding_core.errors import Finding
from embedding_core.planning.topology import GIB
from embedding_core.preflight.core_program import core_program, operation_of
from embedding_core.preflight.topology_strategy import Hardware
from embedding_core.preflight.trace import Traced, name_and_line
from embedding_core.schema import Json
from embedding_core.tpu_compiler import TpuCompiler

_NAMED = re.compile(r'(?:op_name=|error: |fused\[)"([^"]+)"')  # by XLA, or by MLIR
VERBS = {
    "refused": "the TPU compiler refuses it",
    "not converted": "it cannot be converted to StableHLO, the form in which the TPU compiler takes programs",
    "stopped": "the TPU compiler did not finish",
}
NO_MEMORY = "RESOURCE_EXHAUSTED"


class Checked(NamedTuple):
    """The result of the TPU compiler.

    Attributes:
      result: what `TpuCompiler.compile` returned; if the program was compiled also "total_bytes" of the program,
        "planned_bytes" of tables and slots, and whether "tables_inside" the program; "left_out": the types of the
        operations that the program does not have; "unknown_sizes": number of its arguments with a guessed dimension.
      findings: one if the compiler refuses the program, or if tables and program together exceed a core's memory.
    """

    result: Json
    findings: tuple[Finding, ...]


def compiler_check(
    traced: Traced, compiler: TpuCompiler, *, generation: str, hardware: Hardware, plan: Json, lowered: bool
) -> Checked:
    """Compile what a core of the traced program would run.

    Args:
      traced: the program.
      compiler: the compiler.
      generation: of the TPU, such as "v5e".
      hardware: its embedding hardware; on "V0" the tables are in the program.
      plan: made by `topology.memory_plan`.
      lowered: whether XLA for CPU compiled the program; if not, there is nothing to compile.

    Raises:
      ConfigError: the compiler's environment is damaged, or has other versions.
    """
    if not lowered:
        return Checked({"stage": "not lowered"}, ())
    try:
        program = core_program(traced)
    except Exception as error:  # TensorFlow raises ValueError, TypeError and its own errors
        return Checked({"stage": "not lowered", "error": str(error)}, (_not_lowered(error),))
    result = {
        **compiler.compile(program.hlo, generation),
        "left_out": list(program.cut),
        "unknown_sizes": program.unknown_sizes,
    }
    if result["stage"] != "compiled":
        return Checked(result, (_refused(result, traced),))
    return _compared(result, hardware, plan)


def _compared(result: Json, hardware: Hardware, plan: Json) -> Checked:
    new = result["output_bytes"] - result["shared_bytes"]
    total = result["argument_bytes"] + new + result["temporary_bytes"] + result["program_bytes"]
    inside = hardware == "V0"
    used = total + (0 if inside else plan["fullest_core_bytes"])
    result = {
        **result,
        "total_bytes": total,
        "planned_bytes": plan["fullest_core_bytes"],
        "tables_inside": inside,
    }
    over = not inside and plan["fits"] and used > plan["bytes_per_core"]  # inside, the compiler refuses it
    return Checked(result, (_too_large(result, used, plan),) if over else ())


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
