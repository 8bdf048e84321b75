"""Runs one training step of a pipeline on a GPU, and says which tables and lookups are not there, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import tensorflow as tf
from rich.table import Table

from embedding_core.placement import Placement, placement_of
from embedding_core.training.job import rows_with_drawn
from pipelines.checks.pipeline_preflight import pipeline_step
from pipelines.checks.planned_tables import planned_tables
from pipelines.config import PipelineConfig
from pipelines.config.feature_sections import ASSUMED_TOKENS
from pipelines.console.terminal import PLAIN, SafeConsole


def check_gpu(
    config: PipelineConfig,
    *,
    table_configs: Path | None = None,
    batch_size: int | None = None,
    assumed_tokens: int = ASSUMED_TOKENS,
) -> tuple[Placement, str]:
    """Create what the configuration would train on the GPU, and run a step on a batch of equal rows.

    Args:
      config: the pipeline.
      table_configs: folder of a run's `TableConfigs` artifact; see `planned_tables`.
      batch_size: rows of the batch; None is `training.batch_size`.
      assumed_tokens: size of the vocabularies that have no `max_size` and that no run has counted.

    Returns:
      The devices of tables and lookups, and a description of the source of the tables' sizes.

    Raises:
      ConfigError: the folder has no table configs.
    """
    tables, sizes = planned_tables(config, table_configs, assumed_tokens)
    step = pipeline_step(config)
    rows = rows_with_drawn(step.training, batch_size or step.training.batch_size)
    with tf.device("/GPU:0"):
        trainable = step.trainable(tables, rows)
        batch = {**tf.nest.map_structure(_zeros, step.inputs(tables, rows)), "rows": tf.constant(rows)}
        variables = {table.name: variable for table, variable in trainable.embedding.embedding_tables.items()}
        return placement_of(trainable.train_replica, batch, tables=variables, expect="GPU"), sizes


def _zeros(spec: tf.TypeSpec) -> tf.Tensor | tf.RaggedTensor:
    """Return a value of the spec; a row of ids has one, 0."""
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_uniform_row_length(tf.zeros([spec.shape[0]], spec.dtype), 1)
    return tf.zeros(spec.shape, spec.dtype)


def _short(device: str) -> str:
    return device.rpartition("/")[2]


def print_placement(found: Placement, sizes: str) -> None:
    """Print the devices of tables and lookups, and the findings, on standard output."""
    console = SafeConsole(highlight=False)
    console.print(f"sizes: {sizes}", **PLAIN)
    shown = Table("table", "rows", "dim", "type", "MiB", "device")
    for table in found.tables:
        rows, dim = table.shape
        size = f"{table.bytes / 2**20:,.1f}"
        shown.add_row(table.name, f"{rows:,}", str(dim), table.dtype, size, "\n".join(map(_short, table.devices)))
    console.print(shown)
    for device, number in Counter(_short(lookup.device) for lookup in found.lookups).items():
        console.print(f"{number} lookups of a step ran on {device}", **PLAIN)
    for finding in found.silent:
        console.print(f"finding ({finding.kind}): {finding}", style="red", **PLAIN)
    console.print(f"{len(found.silent) or 'no'} findings.", **PLAIN)
