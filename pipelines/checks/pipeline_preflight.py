"""Checks the tables, model and training step of a pipeline for a TPU, without one, and says it in lines of text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from components.artifact_files import read_embedding_config, read_sparse_core_limits
from embedding_core.config import EmbeddingConfig
from embedding_core.placement import Placement
from embedding_core.planning.topology import GIB, Topology
from embedding_core.preflight import Finding, PipelineStep, Report, SparseCores, preflight
from embedding_core.preflight.xla import STAND_IN_SIZE
from embedding_core.schema import Json
from embedding_core.tpu_compiler import SparseCoreCompiler, TpuCompiler
from embedding_core.training.job import rows_with_drawn
from embedding_core.training_config import TrainingConfig
from pipelines.checks.early_checks import requested_slice
from pipelines.checks.planned_tables import last_table_configs, memory_text, planned_tables
from pipelines.config import PipelineConfig
from pipelines.config.feature_sections import ASSUMED_TOKENS
from pipelines.console.terminal import PLAIN, SafeConsole, write_output
from pipelines.pipeline.component_inputs import training_config

# Finds the limits of SparseCores that a run computed for the tables that a preflight plans.


def planned_sparse_cores(
    config: PipelineConfig,
    tables: EmbeddingConfig,
    slice_: Topology,
    table_configs: Path | None,
    compiler: SparseCoreCompiler | None,
) -> SparseCores:
    """Return the limits that TableConfigGen computed for these tables, with the compiler.

    Args:
      config: the pipeline.
      tables: the tables that a run would train.
      slice_: the slice.
      table_configs: folder of a TableConfigs artifact; None takes that of the last run.
      compiler: the compiler for SparseCores; None if its environment is not there.

    Raises:
      ConfigError: the artifact is damaged.
    """
    if config.model.run_fn is not None:
        return SparseCores(compiler, None, "a `run_fn` may draw other batches, so no limits are computed for it")
    folder = _last_folder(config) if table_configs is None else str(table_configs)
    remedy = (
        f"`tfx-embeddings run` with `--set training.topology={slice_.name}` computes them; or name the TableConfigs of "
        "such a run with `--table-configs`"
    )
    if folder is None:
        return SparseCores(compiler, None, f"no run has computed the limits of {slice_.name}: {remedy}")
    limits = read_sparse_core_limits(folder)
    if limits is None:
        return SparseCores(compiler, None, f"the table configs in {folder} have no limits of SparseCores: {remedy}")
    others = _different(_shape(read_embedding_config(folder)), _shape(tables))
    if others:
        reason = (
            f"the limits in {folder} are for other tables or features than those planned here ({', '.join(others)}), "
            f"as a run may choose dims by its data: `--table-configs {folder}` checks the tables of that run"
        )
        return SparseCores(compiler, None, reason)
    return SparseCores(compiler, limits, folder)


def _last_folder(config: PipelineConfig) -> str | None:
    last = last_table_configs(config)
    return None if last is None else last[1]


def _shape(tables: EmbeddingConfig) -> dict[str, object]:
    """Return what the limits and the program depend on, by the name of the table or feature in words."""
    return {
        **{
            f"table {table.name}": (table.vocabulary_size, table.dim, table.combiner, table.optimizer)
            for table in tables.tables
        },
        **{f"feature {feature.name}": (feature.table, feature.max_sequence_length) for feature in tables.features},
    }


def _different(first: dict[str, object], second: dict[str, object]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


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


# Checks the tables, model and training step of a pipeline for a TPU, without one.


def check(
    config: PipelineConfig,
    *,
    topology: str | None = None,
    table_configs: Path | None = None,
    batch_size: int | None = None,
    assumed_tokens: int = ASSUMED_TOKENS,
    compiler: TpuCompiler | None = None,
    sparse_core_compiler: SparseCoreCompiler | None = None,
) -> Report:
    """Run the preflight of what the configuration would train.

    Args:
      config: the pipeline.
      topology: a slice such as "v3-8"; None is `training.topology`.
      table_configs: folder of a run's `TableConfigs` artifact; None takes the sizes of the last run, if any, else those
        of the configuration.
      batch_size: rows of a global batch; None is `training.batch_size`.
      assumed_tokens: size of the vocabularies that have no `max_size` and that no run has counted.
      compiler: the TPU compiler that compiles the program of a core too.
      sparse_core_compiler: with `compiler`, the one that compiles lookup and update on SparseCores.

    Raises:
      ConfigError: the topology is missing or unknown, the folder has no table configs, or the environment of a
        compiler is damaged or has other versions.
    """
    slice_ = requested_slice(config, topology)
    tables, sizes = planned_tables(config, table_configs, assumed_tokens)
    sparse_cores = None
    if compiler is not None and slice_.sparse_cores:
        sparse_cores = planned_sparse_cores(config, tables, slice_, table_configs, sparse_core_compiler)
    step = pipeline_step(config)
    training = step.training
    rows = batch_size or training.batch_size
    report = preflight(
        tables,
        slice_,
        batch_size=rows_with_drawn(training, rows),
        make_step=step,
        own_tables=True,
        sizes=sizes,
        notes=_notes(training, rows),
        compiler=compiler,
        sparse_cores=sparse_cores,
    )
    return dataclasses.replace(report, findings=(*report.findings, *input_findings(config, slice_)))


def pipeline_step(config: PipelineConfig) -> PipelineStep:
    """Return the training step of a pipeline."""
    return PipelineStep(
        model=config.model.module,
        dense=[feature.name for feature in config.features.dense],
        arguments=config.model.build_arguments,
        training=training_config(config),
        tasks=config.tasks,
    )


def input_findings(config: PipelineConfig, slice_: Topology) -> Iterator[Finding]:
    """Yield a finding if the pipeline trains on several hosts that would all have to read a local `work_dir`.

    Args:
      config: the pipeline.
      slice_: the slice that the pipeline trains on.
    """
    if config.training.strategy == "tpu" and slice_.hosts > 1 and config.kubeflow is None:
        yield Finding(
            kind="input",
            what=f"`work_dir` {config.work_dir!r} on {slice_.hosts} hosts",
            rule="every host of a slice opens the examples and vocabularies itself",
            remedy="give the section `kubeflow` with an address as `pipeline_root` and compile for vertex, or take a "
            "slice of one host",
        )


def _notes(training: TrainingConfig, rows: int) -> Iterator[str]:
    if training.negatives:
        yield (
            f"a global batch is {rows:,} rows and {training.negatives.per_positive} negatives for each, as if all "
            "rows are positive; other batches are padded with empty rows."
        )
    if training.softmax and training.softmax.sampled:
        yield f"a global batch is {rows:,} rows and {training.softmax.sampled:,} drawn candidates."


def save_json(report: Report | Placement, path: Path) -> None:
    """Write the report as JSON; see `write_output` for errors."""
    write_output("--json", path, json.dumps(report.to_json(), indent=2, default=str) + "\n")


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the tables, the program and the findings of a report, by default on standard output."""
    console = console or SafeConsole(highlight=False)
    slice_, batch = report.topology, report.batch
    console.print(
        f"{slice_['name']}: {slice_['hosts']} hosts x {slice_['cores_per_host']} cores, embedding hardware "
        f"{report.hardware}; {batch['rows']:,} rows in a batch, {batch['rows_per_core']:,} on each core",
        **PLAIN,
    )
    console.print(f"sizes: {report.sizes}", **PLAIN)
    console.print(_table_of_tables(report))
    console.print(f"tables and slots: {memory_text(report.memory)}", **PLAIN)
    for line in _program(report):
        console.print(line, **PLAIN)
    for line in (*compiler_lines(report.compiler), *sparse_core_lines(report.sparse_cores)):
        console.print(line, **PLAIN)
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", **PLAIN)
    for finding in report.findings:
        console.print(f"finding ({finding.kind}): {finding}", style="red", **PLAIN)
    console.print("no findings." if report.green else f"{len(report.findings)} findings.", **PLAIN)
    console.print(report.meaning, **PLAIN)


def _table_of_tables(report: Report) -> Table:
    names = ("table", "rows", "dim", "rows per host", "optimizer", "learning rate", "features: on each core")
    shown = Table(*(Column(name, overflow="fold") for name in names))
    shapes = {feature["name"]: feature["activations_on_core"] for feature in report.features}
    rates = _rates(report)
    for table in report.tables:
        shown.add_row(
            table["name"],
            f"{table['rows']:,}",
            str(table["dim"]),
            _ranges(table["rows_per_host"]),
            table["optimizer"]["name"],
            rates.get(table["name"], str(table["learning_rate"])),
            "\n".join(f"{name}: {shapes[name]}" for name in table["features"]),
        )
    return shown


def _rates(report: Report) -> dict[str, str]:
    """Return the tag of each table whose learning rate the traced program sends with every step."""
    engine = (report.program or {}).get("engine") or {"tables": []}
    tags = {table["name"]: table["learning_rate"] for table in engine["tables"]}
    return {name: f"tag {rate['tag']}" for name, rate in tags.items() if isinstance(rate, dict)}


def _ranges(rows: list[int]) -> str:
    few, many = min(rows), max(rows)
    return f"{many:,}" if few == many else f"{few:,} to {many:,}"


def _program(report: Report) -> Iterator[str]:
    if report.program is None:
        yield "the step could not be traced."
        return
    program = report.program
    operations = ", ".join(f"{kind} x{count}" for kind, count in program["embedding_operations"].items())
    reduced = program["all_reduced_bytes"] / 2**20
    yield f"the step, traced: {program['operations_on_core']:,} operations on a core, {reduced:,.1f} MiB all-reduced"
    yield f"operations of the embedding engine: {operations or 'none'}"
    xla = program["xla"]
    yield f"XLA (for CPU): {xla['kinds_checked']} kinds of operations checked one by one; all together: {xla['whole']}"
