"""Compiles the traced program of a core, and the stacks of SparseCores, and compares their memory with the plan."""

from __future__ import annotations

import re
from typing import NamedTuple, cast

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import Finding
from embedding_core.optimizers import Optimizer
from embedding_core.planning.topology import GIB
from embedding_core.preflight.preflight_run import Checked, Program
from embedding_core.preflight.trace import Traced, generation_of, name_and_line
from embedding_core.preflight.xla import PREFIX, ProgramPart, Variables, is_of_tpu, lowered_hlo
from embedding_core.schema import Json
from embedding_core.tpu_compiler.compilers import SparseCoreCompiler, SparseCores, TpuCompiler

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


_ANY_RATE = 0.01  # in place of a learning rate that is a function: the program does not depend on its value


def sparse_core_check(program: Program, given: SparseCores) -> Checked:
    """Compile every stack of tables for a slice with SparseCores.

    Returns:
      What `SparseCoreCompiler.compile` returned, with "stage" "compiled", the source of the "limits", and the
      "planned_bytes" of each stack: its tables and slots on the fullest chip. Or "stage" "not compiled", with the
      "reasons". A finding for each stack that does not compile, and one if all stacks exceed a chip's memory together.

    Raises:
      ConfigError: the compiler's environment is damaged, or has other versions.
    """
    config, plan = program.config, program.memory
    reasons = [_without_limits(program, given.limits, given.source)]
    if given.compiler is None:
        reasons.append(f"there is no environment of {SparseCoreCompiler.NAME}: {SparseCoreCompiler.remedy()}")
    reasons = [reason for reason in reasons if reason]
    if given.compiler is None or given.limits is None or reasons:
        return Checked({"stage": "not compiled", "reasons": reasons})
    compiled = given.compiler.compile(program_of(config, given.limits), generation_of(program.topology))
    result = {"stage": "compiled", "limits": given.source, **compiled}
    for found in result["stacks"].values():
        found["planned_bytes"] = sum(plan["tables"][name]["fullest_core_bytes"] for name in found["tables"])
    findings = [
        _refused_on_sparse_cores(name, found, result)
        for name, found in result["stacks"].items()
        if found["stage"] != "compiled"
    ]
    return Checked(result, (*findings, *([] if findings else _too_large_for_sparse_cores(result, plan))))


def program_of(config: EmbeddingConfig, limits: Json) -> Json:
    """Describe the stacks as `SparseCoreCompiler.compile` takes them, under what `sparse_core_limits` computed."""
    return {
        "chips": limits["chips"],
        "sparse_cores_per_chip": limits["sparse_cores_per_chip"],
        "batch_size": limits["batch_size"],
        "form": limits["forms"]["jax_tpu_embedding"],
        "tables": {
            table.name: {
                "rows": table.vocabulary_size,
                "dim": table.dim,
                "combiner": table.combiner,
                "optimizer": _described(cast(Optimizer, table.optimizer)),
            }
            for table in config.tables
        },
        "features": {
            feature.name: {"table": feature.table, "length": feature.max_sequence_length} for feature in config.features
        },
    }


def _described(optimizer: Optimizer) -> Json:
    values = {name: getattr(optimizer, name) for name in optimizer.hyperparameters()}
    if callable(values["learning_rate"]):
        values["learning_rate"] = _ANY_RATE
    default = type(optimizer)()
    changed = [name for name, value in values.items() if value != getattr(default, name)]
    return {"kind": type(optimizer).__name__, "hyperparameters": values, "changed": changed}


def _without_limits(program: Program, limits: Json | None, source: str) -> str:
    """Say why there are no limits for this program; empty if there are."""
    topology, batch_size = program.topology.name, program.batch_size
    if limits is None:
        return source
    if (limits["topology"], limits["batch_size"]) != (topology, batch_size):
        return (
            f"the limits of {source} are for {limits['topology']} and {limits['batch_size']:,} rows in a batch "
            f"with negatives, not for {topology} and {batch_size:,}"
        )
    known, tables = sorted(limits["forms"]["keras_rs"]["tables"]), sorted(table.name for table in program.config.tables)
    return "" if known == tables else f"the limits of {source} are for the tables {known}, not for {tables}"


def _refused_on_sparse_cores(name: str, found: Json, result: Json) -> Finding:
    remedy = "use a smaller batch or smaller `dim`s, or a larger slice"
    if found["stage"] == "lacking":
        remedy = "use another optimizer"
    elif found["stage"] == "stopped" or NO_MEMORY not in found["error"]:
        remedy = "compare its limits with the data, and use a smaller batch or a larger slice"
    verb = VERBS.get(found["stage"], "it is compiled through jax-tpu-embedding")
    return Finding(
        kind="tpu",
        what=f"lookup and update of the stack {name!r} (tables {', '.join(map(repr, found['tables']))}) on SparseCores",
        rule=f"{verb} ({result['target']}): {first_words(found['error'])}",
        remedy=remedy,
    )


def _too_large_for_sparse_cores(result: Json, plan: Json) -> list[Finding]:
    stacks = result["stacks"].values()
    held = sum(
        stack["argument_bytes"] + stack["output_bytes"] - stack["shared_bytes"] + stack["program_bytes"]
        for stack in stacks
    )
    used = held + max(stack["temporary_bytes"] for stack in stacks)
    if used <= plan["bytes_per_core"] or not plan["fits"]:
        return []
    return [
        Finding(
            kind="memory",
            what=f"{len(stacks)} stacks of tables and slots: {used / GIB:.2f} GiB on a chip, by the TPU compiler",
            rule=f"a chip of {plan['name']} has {plan['bytes_per_core'] / GIB:.0f} GiB",
            remedy="use a smaller batch or smaller tables, or a larger slice",
        )
    ]
