"""Describes the compiled programs of SparseCores in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from embedding_core.schema import Json
from pipelines.checks.compiler_lines import MIB, memory_parts, message_lines


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
        yield from message_lines(found["error"], "    ")
        return
    listed, planned = memory_parts(found), found["planned_bytes"] / MIB
    yield f"{title}: compiled; MiB on a chip: {listed}; tables and slots are arguments, planned with {planned:,.1f}"
    for table, names in found["not_passed"].items():
        yield f"    {', '.join(names)} of the optimizer of {table}: jax-tpu-embedding does not have it"
