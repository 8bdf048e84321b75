"""Computes what choices need on TPU slices: by the memory plan, and by the TPU compiler."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError, nearest
from embedding_core.planning.topology import GIB, Topology, memory_plan, named_topology
from embedding_core.rows_dtype import RowsDtypes, dtypes_of_tables, row_bytes
from embedding_core.schema import Json
from embedding_core.sparsecore.layout import slice_of, stacks_of
from embedding_core.storage import json_digest
from embedding_core.tpu_compiler import TpuCompiler
from pipelines.choices.choice import Choice, smallest
from pipelines.choices.kept import KeptResults, Types
from pipelines.config import PipelineConfig
from pipelines.local.run_log import captured
from pipelines.pipeline.fingerprint import training_fingerprint

_UNITS = {"B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": GIB, "TB": 10**12}
_COMMON = ("v2-8", "v3-8", "v3-32", "v4-8", "v5e-1", "v5e-4", "v5e-8", "v5p-8", "v6e-1", "v6e-4", "v6e-8")
_MOST_CORES = 2048
_LEAST_SHARE = 0.001  # of the rows that is shown as a number
_COMPILED = "compiled.json"
_ANSWERS = ("compiled", "refused", "not converted")  # of the compiler; other stages are of a process that ended early
_KEPT: Types = {
    "stage": (str,),
    "core_bytes": (int,),
    "table_bytes": (int,),
    "argument_bytes": (int,),
    "temporary_bytes": (int,),
    "tables_inside": (bool,),
    "error": (str,),
    "seconds": (float, int),
}


def parse_budget(text: str) -> int:
    """Read a number of bytes with its unit, such as 16GiB.

    Raises:
      ConfigError: it is not a number above 0 and a unit, or less than a byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or not float(match[1]):
        raise ConfigError(f"`--budget` is {text!r}: it must be a number above 0 and a unit, such as 16GiB.")
    number, unit = match.groups()
    if unit not in _UNITS:
        remedy = nearest(unit, _UNITS) if unit else f"did you mean {number}GiB?"
        raise ConfigError(f"`--budget` is {text!r}: it must end with a unit ({', '.join(_UNITS)}); {remedy}")
    count = int(float(number) * _UNITS[unit])
    if not count:
        raise ConfigError(f"`--budget` is {text!r}: it must be at least 1 byte, such as 16GiB.")
    return count


def parse_slices(text: str) -> list[Topology]:
    """Read the names of slices, separated by commas.

    Raises:
      ConfigError: none is given, or one is unknown.
    """
    names = [one.strip() for one in text.split(",") if one.strip()]
    if not names:
        raise ConfigError(f"`--slices` is {text!r}: name TPU slices, such as v3-8,v5e-4.")
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(named_topology(name))
        except ConfigError as error:
            rule = str(error).partition(": ")[2].removesuffix(".")
            close = nearest(name, _COMMON)
            remedy = f" {close[0].upper()}{close[1:]}" if close.startswith("did you mean") else ""
            raise ConfigError(f"`--slices` names {name!r}: {rule}.{remedy}") from error
    return found


class Need(NamedTuple):
    """What a choice needs on a slice.

    Attributes:
      batch_size: rows of a global batch, a multiple of what the slice needs.
      table_bytes: bytes of tables and slots on the fullest core, by the plan.
      core_bytes: with gradients and padded copies of the tables, on a slice whose program has them.
      served_bytes: bytes of the served rows.
      stacks: number of stacks of tables on SparseCores; None without SparseCores.
    """

    batch_size: int
    table_bytes: int
    core_bytes: int
    served_bytes: int
    stacks: int | None


def need_of(
    choice: Choice, tables: EmbeddingConfig, slice_: Topology, batch_size: int, rows_dtype: RowsDtypes = "float32"
) -> Need:
    """Compute what a choice needs on a slice.

    Args:
      choice: the choice.
      tables: the configured tables.
      slice_: the slice.
      batch_size: the configured rows of a global batch.
      rows_dtype: type of the served rows.
    """
    chosen = choice.applied_to(tables)
    parts = slice_.cores * max(1, slice_.sparse_cores)
    rows = -(-(choice.batch_size or batch_size) // parts) * parts
    dtypes = dtypes_of_tables(rows_dtype, [table.name for table in chosen.tables])
    sparse, plan = slice_of(slice_), memory_plan(chosen, slice_)
    return Need(
        batch_size=rows,
        table_bytes=plan["fullest_core_bytes"],
        core_bytes=_core_bytes(plan),
        served_bytes=sum(table.vocabulary_size * row_bytes(table.dim, dtypes[table.name]) for table in chosen.tables),
        stacks=None if sparse is None else len(stacks_of(chosen, sparse, rows)),
    )


def _core_bytes(plan: Json) -> int:
    return int(plan["fullest_core_bytes"] + plan["copy_bytes"])


def what_would_fit(tables: EmbeddingConfig, slice_: Topology, budget: int) -> str:
    """Say what would fit if no choice fits on a slice: more chips, fewer rows, or a larger budget."""
    least = smallest(tables).applied_to(tables)
    needed = _core_bytes(memory_plan(least, slice_))
    remedies = []
    if slice_.placement == "sharded":
        remedies += _larger_slice(least, slice_, budget)
    else:
        remedies.append("more chips do not help, because each holds a whole copy; v6e shards the tables")
    if needed > budget:
        share = budget / needed
        part = f"{share:.1%}" if share >= _LEAST_SHARE else f"less than {_LEAST_SHARE:.1%}"
        remedies.append(f"{part} of the rows (`vocabularies.NAME.max_size`) would")
    text = f"the smallest dims need {size_words(needed)} of {size_words(budget)} for tables and slots on a core"
    return "; ".join([text, *remedies])


def _larger_slice(tables: EmbeddingConfig, slice_: Topology, budget: int) -> list[str]:
    generation, _, size = slice_.name.partition("-")
    number = int(size)
    while number < _MOST_CORES:
        number *= 2
        try:
            larger = named_topology(f"{generation}-{number}")
        except ConfigError:  # a generation does not come in all sizes
            continue
        if _core_bytes(memory_plan(tables, larger)) <= budget:
            return [f"{larger.name}, of {larger.chips} chips, would hold them"]
    return []


def size_words(count: float) -> str:
    """Return a number of bytes in words, such as 1.5 GiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:,.1f} {unit}"
    return f"{count:,.0f} B"


class Compiled:
    """Compiles the programs of choices, and keeps the results in a folder.

    Args:
      config: the configuration.
      tables: the configured tables.
      sizes: source of the numbers of rows.
      compiler: the TPU compiler.
      folder: folder of the results.

    Raises:
      DataError: the file of the results is damaged.
    """

    def __init__(
        self, config: PipelineConfig, tables: EmbeddingConfig, sizes: str, compiler: TpuCompiler, folder: str
    ) -> None:
        self._config, self._tables, self._sizes, self._compiler = config, tables, sizes, compiler
        self._folder = folder
        self._kept = KeptResults(os.path.join(folder, _COMPILED), _KEPT)
        self._code = training_fingerprint(config)

    def of(self, choice: Choice, slice_: Topology, batch_size: int) -> Json:
        """Compile the program of a core; an answer of the compiler is kept, and not asked for again.

        Returns:
          "stage": "compiled" or how it failed; "core_bytes": bytes of tables, slots and program on a core, 0 if it was
          not compiled; "table_bytes" of them by the plan, "argument_bytes" and "temporary_bytes"; "tables_inside":
          whether the program holds the tables; "error": the compiler's message; "seconds".
        """
        tables = choice.applied_to(self._tables)
        model = {key: self._config.to_mapping()[key] for key in ("features", "model", "training", "label", "labels")}
        facts = {"tables": json.loads(tables.to_json()), "slice": slice_.name, "batch": batch_size, **model}
        key = json_digest({**facts, "code": self._code, "versions": TpuCompiler.pinned_versions()})
        kept = self._kept.get(key)
        if kept is None:
            kept = self._compiled(tables, slice_, batch_size)
            if kept["stage"] in _ANSWERS:
                self._kept.keep(key, kept)
        return kept

    def _compiled(self, tables: EmbeddingConfig, slice_: Topology, batch_size: int) -> Json:
        from pipelines.checks.pipeline_preflight import check_tables  # it imports TensorFlow

        begun = time.monotonic()
        with captured(self._folder):
            report = check_tables(
                self._config, slice_, tables, sizes=self._sizes, batch_size=batch_size, compiler=self._compiler
            )
        found = report.compiler or {}
        inside = found.get("tables_inside", report.hardware == "V0")
        outside = 0 if inside else report.memory["fullest_core_bytes"]
        lines = str(found.get("error") or "").splitlines() or [str(one) for one in report.findings]
        compiled = found.get("stage") == "compiled"
        return {
            "stage": found.get("stage", "not lowered"),
            "core_bytes": found["total_bytes"] + outside if compiled else 0,
            "table_bytes": report.memory["fullest_core_bytes"],
            "argument_bytes": found.get("argument_bytes", 0),
            "temporary_bytes": found.get("temporary_bytes", 0),
            "tables_inside": inside,
            "error": "" if compiled else lines[0] if lines else "",
            "seconds": time.monotonic() - begun,
        }


def pareto_front(points: Sequence[tuple[float, float, int]]) -> set[int]:
    """Return the positions of the points that no other point beats.

    Args:
      points: (bytes, loss, number of differences) of each choice; of points that are equal in bytes and loss, the one
        with the fewest differences is on the front.
    """
    best, front = float("inf"), set()
    for at in sorted(range(len(points)), key=lambda at: points[at]):
        if points[at][1] < best:
            front.add(at)
            best = points[at][1]
    return front
