"""Compiles the lookup and update of the tables' stacks on SparseCores, and compares their memory with the plan."""

from __future__ import annotations

from typing import cast

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import Finding
from embedding_core.optimizers import Optimizer
from embedding_core.planning.topology import GIB
from embedding_core.preflight.preflight_run import Checked, Program
from embedding_core.preflight.trace import generation_of
from embedding_core.schema import Json
from embedding_core.tpu_compiler.compiler_check import NO_MEMORY, VERBS, first_words
from embedding_core.tpu_compiler.sparse_core_compiler import SparseCoreCompiler, SparseCores

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
        _refused(name, found, result) for name, found in result["stacks"].items() if found["stage"] != "compiled"
    ]
    return Checked(result, (*findings, *([] if findings else _too_large(result, plan))))


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


def _refused(name: str, found: Json, result: Json) -> Finding:
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


def _too_large(result: Json, plan: Json) -> list[Finding]:
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
