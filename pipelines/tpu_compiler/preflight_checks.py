"""Compiles the program of a preflight with Google's TPU compiler, and says in lines of text what it answered."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embedding_core.config import EmbeddingConfig
from embedding_core.planning.topology import GIB, Topology
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.tpu_compiler import SparseCoreCompiler, SparseCores, TpuCompiler
from pipelines.config import PipelineConfig

if TYPE_CHECKING:
    from embedding_core.preflight.preflight_run import Check, Checked, Program


class Compiler(str, enum.Enum):
    """The compilers that `preflight` can run beside XLA for CPU."""

    tpu = "tpu"


def asked_checks(
    config: PipelineConfig,
    tables: EmbeddingConfig,
    slice_: Topology,
    table_configs: Path | None,
    *,
    compiler: Annotated[
        Compiler | None, typer.Option(help="Also compile the program of a core with Google's TPU compiler.")
    ] = None,
    compiler_python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Python of the environment with the TPU compiler; by default TPU_COMPILER_PYTHON, or what `make "
            "tpu-compiler` made in this folder.",
        ),
    ] = None,
    sparsecore_python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Python of the environment with the compiler for SparseCores; by default SPARSECORE_COMPILER_PYTHON, "
            "or what `make sparsecore-compiler` made in this folder.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the checks that the options of `preflight` ask for.

    Args:
      config: the pipeline.
      tables: the tables that a run would train.
      slice_: the slice.
      table_configs: folder of a TableConfigs artifact; None takes that of the last run.
      compiler: the compiler, if any.
      compiler_python: Python of its environment.
      sparsecore_python: Python of the environment of the compiler for SparseCores; without one, the compiler that is
        installed, if any.

    Raises:
      ConfigError: there is no such environment, or the table configs are damaged.
    """
    if compiler is None:
        return {}
    return _checks(config, tables, slice_, table_configs, TpuCompiler.find(compiler_python), sparsecore_python)


def installed_checks(config: PipelineConfig, tables: EmbeddingConfig, slice_: Topology) -> dict[str, Check]:
    """Return the checks of the compilers that are installed, for the command `compile`.

    Raises:
      ConfigError: the variable of an environment does not name a program, or the last run's table configs are damaged.
    """
    compiler = TpuCompiler.installed()
    return {} if compiler is None else _checks(config, tables, slice_, None, compiler, None)


def _checks(
    config: PipelineConfig,
    tables: EmbeddingConfig,
    slice_: Topology,
    table_configs: Path | None,
    compiler: TpuCompiler,
    sparsecore_python: Path | None,
) -> dict[str, Check]:
    def compiled(program: Program) -> Checked:
        from embedding_core.tpu_compiler.compiler_check import compiler_check  # it loads TensorFlow

        return compiler_check(program, compiler)

    if not slice_.sparse_cores:
        return {"compiler": compiled}
    if sparsecore_python is None:
        of_stacks = SparseCoreCompiler.installed()
    else:
        of_stacks = SparseCoreCompiler.find(sparsecore_python)
    given = SparseCores(of_stacks, *_planned_limits(config, tables, slice_, table_configs))

    def stacks_compiled(program: Program) -> Checked:
        from embedding_core.tpu_compiler.compiler_check import sparse_core_check

        return sparse_core_check(program, given)

    return {"compiler": compiled, "sparse_cores": stacks_compiled}


def _planned_limits(
    config: PipelineConfig, tables: EmbeddingConfig, slice_: Topology, table_configs: Path | None
) -> tuple[Json | None, str]:
    for room in hooks("pipelines", "planned_limits"):
        limits: tuple[Json | None, str] = room.planned_limits(config, tables, slice_, table_configs)
        return limits
    return None, "the optional part that computes their limits is not installed"


def lines(further: Mapping[str, Json]) -> Iterator[str]:
    """Yield lines about the results of these checks in a preflight's report."""
    yield from compiler_lines(further.get("compiler"))
    yield from sparse_core_lines(further.get("sparse_cores"))


# Describes the result of the TPU compiler in lines of text.

_SHOWN_OPERATIONS = 8
_SHOWN_LINES = 30
_NOT_SHOWN = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")  # nothing is computed there
MIB = 2**20


def compiler_lines(result: Json | None) -> Iterator[str]:
    """Yield lines about the `compiler` of a preflight's report; none if the compiler was not asked."""
    if result is None:
        return
    if result["stage"] == "not lowered":
        yield "TPU compiler: not run, because TensorFlow cannot lower the step to XLA's operations; see the findings"
        return
    name = f"TPU compiler (libtpu {result['versions']['libtpu']}, for one core of {result['target'].partition(':')[0]})"
    if result["stage"] != "compiled":
        yield f"{name}: {result['stage']}. Its message, word for word:"
        yield from message_lines(result["error"], "  ")
        yield _left_out(result)
        return
    yield f"{name}: compiled; {_memory(result)}"
    yield _compared(result)
    counts = [(kind, count) for kind, count in result["operations"].items() if kind not in _NOT_SHOWN]
    shown = ", ".join(f"{kind} x{count}" for kind, count in counts[:_SHOWN_OPERATIONS])
    yield f"operations after its optimizations: {sum(count for _, count in counts):,}; {shown}"
    seconds = result["optimal_seconds"]
    if seconds is not None and seconds > 0:
        yield (
            f"its estimate of a step: {seconds * 1e3:,.3f} ms; it orders programs of one generation and is not a "
            "measured time"
        )
    yield _left_out(result)


def message_lines(message: str, indent: str) -> Iterator[str]:
    """Yield the first lines of a compiler's message."""
    lines = str(message).splitlines()
    yield from (f"{indent}{line}" for line in lines[:_SHOWN_LINES])
    if len(lines) > _SHOWN_LINES:
        yield f"{indent}... and {len(lines) - _SHOWN_LINES} more lines, which `--json` writes"


def memory_parts(result: Json) -> str:
    """List what a compiled program needs, in MiB."""
    parts = {
        "arguments": result["argument_bytes"],
        "outputs": result["output_bytes"] - result["shared_bytes"],
        "temporary": result["temporary_bytes"],
        "program": result["program_bytes"],
    }
    return ", ".join(f"{name} {count / MIB:,.1f}" for name, count in parts.items())


def _memory(result: Json) -> str:
    return f"MiB on a core: {memory_parts(result)}, together {result['total_bytes'] / MIB:,.1f}"


def _compared(result: Json) -> str:
    planned = result["planned_bytes"] / GIB
    if not result["tables_inside"]:
        return f"tables and slots are not in this program: {planned:.3f} GiB more, by the plan"
    share = result["argument_bytes"] / GIB
    return (
        f"tables and slots are arguments of this program: {planned:.3f} GiB planned, {share:.3f} GiB with all arguments"
    )


def _left_out(result: Json) -> str:
    cut, unknown = ", ".join(result["left_out"]), result["unknown_sizes"]
    text = f"not in its program: sums over the cores{f', operations of the embedding hardware ({cut})' if cut else ''}"
    if unknown:
        from embedding_core.preflight.xla import STAND_IN_SIZE  # it loads TensorFlow

        text += f"; arguments with a size that is only known at run time, compiled as {STAND_IN_SIZE}: {unknown}"
    return text


# Describes the compiled programs of SparseCores in lines of text.


def sparse_core_lines(result: Json | None) -> Iterator[str]:
    """Yield lines about the `sparse_cores` of a preflight's report; none if they were not asked for."""
    if result is None:
        return
    if result["stage"] != "compiled":
        for reason in result["reasons"]:
            yield f"lookup and update on SparseCores: not compiled, because {reason}"
        return
    versions = result["versions"]
    yield (
        f"lookup and update on SparseCores (jax-tpu-embedding {versions['jax-tpu-embedding']}, libtpu "
        f"{versions['libtpu']}, for {result['target']}), under the limits in {result['limits']}:"
    )
    for name, stack in result["stacks"].items():
        yield from _stack(name, stack)


def _stack(name: str, stack: Json) -> Iterator[str]:
    title = f"  stack {name} ({', '.join(stack['tables'])})"
    if stack["stage"] != "compiled":
        yield f"{title}: {stack['stage']}. The message, word for word:"
        yield from message_lines(stack["error"], "    ")
        return
    listed, planned = memory_parts(stack), stack["planned_bytes"] / MIB
    yield f"{title}: compiled; MiB on a chip: {listed}; tables and slots are arguments, planned with {planned:,.1f}"
    for table, names in stack["not_passed"].items():
        yield f"    {', '.join(names)} of the optimizer of {table}: jax-tpu-embedding does not have it"
