"""Describes the compiled programs of SparseCores in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from embedding_core.schema import Json

_MIB = 2**20
_SHOWN_LINES = 30


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
    for name, found in result["stacks"].items():
        yield from _stack(name, found)


def _stack(name: str, found: Json) -> Iterator[str]:
    title = f"  stack {name} ({', '.join(found['tables'])})"
    if found["stage"] != "compiled":
        yield f"{title}: {found['stage']}. The message, word for word:"
        lines = str(found["error"]).splitlines()
        yield from (f"    {line}" for line in lines[:_SHOWN_LINES])
        if len(lines) > _SHOWN_LINES:
            yield f"    ... and {len(lines) - _SHOWN_LINES} more lines, which `--json` writes"
        return
    parts = {
        "arguments": found["argument_bytes"],
        "outputs": found["output_bytes"] - found["shared_bytes"],
        "temporary": found["temporary_bytes"],
        "program": found["program_bytes"],
    }
    listed = ", ".join(f"{part} {count / _MIB:,.1f}" for part, count in parts.items())
    planned = found["planned_bytes"] / _MIB
    yield f"{title}: compiled; MiB on a chip: {listed}; tables and slots are arguments, planned with {planned:,.1f}"
    for table, names in found["not_passed"].items():
        yield f"    {', '.join(names)} of the optimizer of {table}: jax-tpu-embedding does not have it"
