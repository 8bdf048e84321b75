"""Checks the tables, model and training step of a pipeline for a TPU or on a GPU, and says it in lines of text.

The check for a TPU does not need one. On a GPU, one step is trained, to say which tables and lookups are not there, and
why.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf
from rich.console import Console
from rich.table import Column, Table

from embedding_core.config import EmbeddingConfig
from embedding_core.placement import Placement, placement_of
from embedding_core.planning.topology import Topology
from embedding_core.preflight import Finding, PipelineStep, Report, preflight
from embedding_core.preflight.preflight_run import Check
from embedding_core.rooms import hooks
from embedding_core.training.job import rows_with_drawn
from embedding_core.training_config import TrainingConfig
from pipelines.checks.planned_tables import memory_text
from pipelines.config import PipelineConfig
from pipelines.console.terminal import PLAIN, SafeConsole, write_output
from pipelines.pipeline.component_inputs import training_config


def check(
    config: PipelineConfig,
    slice_: Topology,
    tables: EmbeddingConfig,
    sizes: str,
    *,
    batch_size: int | None = None,
    checks: Mapping[str, Check] | None = None,
) -> Report:
    """Run the preflight of what the configuration would train.

    Args:
      config: the pipeline.
      slice_: the slice that it is for; see `requested_slice`.
      tables: the tables that a run would train; see `planned_tables`.
      sizes: a description of the source of their sizes.
      batch_size: rows of a global batch; None is `training.batch_size`.
      checks: further checks of the program, by name.

    Raises:
      ConfigError: a further check cannot run.
    """
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
        checks=checks,
    )
    return dataclasses.replace(report, findings=(*report.findings, *input_findings(config, slice_)))


def pipeline_step(config: PipelineConfig) -> PipelineStep:
    """Return the training step of a pipeline."""
    return PipelineStep(
        model=config.model.module,
        dense=[feature.name for feature in config.features.dense],
        arguments=config.build_arguments,
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
    for line in (line for room in hooks("pipelines", "preflight_checks") for line in room.lines(report.further)):
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


def check_gpu(config: PipelineConfig, tables: EmbeddingConfig, *, batch_size: int | None = None) -> Placement:
    """Create what the configuration would train on the GPU, and run a step on a batch of equal rows.

    Args:
      config: the pipeline.
      tables: the tables that a run would train.
      batch_size: rows of the batch; None is `training.batch_size`.

    Returns:
      The devices of tables and lookups.
    """
    step = pipeline_step(config)
    rows = rows_with_drawn(step.training, batch_size or step.training.batch_size)
    with tf.device("/GPU:0"):
        trainable = step.trainable(tables, rows)
        batch = {**tf.nest.map_structure(_zeros, step.inputs(tables, rows)), "rows": tf.constant(rows)}
        variables = {table.name: variable for table, variable in trainable.embedding.embedding_tables.items()}
        return placement_of(trainable.train_replica, batch, tables=variables, expect="GPU")


def _zeros(spec: tf.TypeSpec) -> tf.Tensor | tf.RaggedTensor:
    """Return a value of the spec; a row of ids has one, 0."""
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_uniform_row_length(tf.zeros([spec.shape[0]], spec.dtype), 1)
    return tf.zeros(spec.shape, spec.dtype)


def _short(device: str) -> str:
    return device.rpartition("/")[2]


def print_placement(placement: Placement, sizes: str) -> None:
    """Print the devices of tables and lookups, and the findings, on standard output."""
    console = SafeConsole(highlight=False)
    console.print(f"sizes: {sizes}", **PLAIN)
    shown = Table("table", "rows", "dim", "type", "MiB", "device")
    for table in placement.tables:
        rows, dim = table.shape
        size = f"{table.bytes / 2**20:,.1f}"
        shown.add_row(table.name, f"{rows:,}", str(dim), table.dtype, size, "\n".join(map(_short, table.devices)))
    console.print(shown)
    for device, number in Counter(_short(lookup.device) for lookup in placement.lookups).items():
        console.print(f"{number} lookups of a step ran on {device}", **PLAIN)
    for finding in placement.silent:
        console.print(f"finding ({finding.kind}): {finding}", style="red", **PLAIN)
    console.print(f"{len(placement.silent) or 'no'} findings.", **PLAIN)
