"""Runs one training step of a pipeline on a GPU, and says which tables and lookups are not there, and why."""

from __future__ import annotations

from collections import Counter

import tensorflow as tf
from rich.table import Table

from embedding_core.config import EmbeddingConfig
from embedding_core.placement import Placement, placement_of
from embedding_core.training.job import rows_with_drawn
from pipelines.checks.pipeline_preflight import pipeline_step
from pipelines.config import PipelineConfig
from pipelines.console.terminal import PLAIN, SafeConsole


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
