"""Describes the result of the TPU compiler in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from embedding_core.planning.topology import GIB
from embedding_core.preflight.program_part import STAND_IN_SIZE
from embedding_core.schema import Json

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
        text += f"; arguments with a size that is only known at run time, compiled as {STAND_IN_SIZE}: {unknown}"
    return text
