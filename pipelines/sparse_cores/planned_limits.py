"""Finds the limits of SparseCores that a run computed for the tables that a preflight plans."""

from __future__ import annotations

from pathlib import Path

from components.artifact_files import read_embedding_config
from components.sparse_cores.table_limits import read_sparse_core_limits
from embedding_core.config import EmbeddingConfig
from embedding_core.planning.topology import Topology
from embedding_core.schema import Json
from pipelines.checks.planned_tables import last_table_configs
from pipelines.config import PipelineConfig


def planned_limits(
    config: PipelineConfig, tables: EmbeddingConfig, slice_: Topology, table_configs: Path | None
) -> tuple[Json | None, str]:
    """Return the limits that TableConfigGen computed for these tables, and their source in words.

    Args:
      config: the pipeline.
      tables: the tables that a run would train.
      slice_: the slice.
      table_configs: folder of a TableConfigs artifact; None takes that of the last run.

    Returns:
      The limits, and the folder that they are from. If no limits fit, None, and why and what to do.

    Raises:
      ConfigError: the artifact is damaged.
    """
    if config.model.run_fn is not None:
        return None, "a `run_fn` may draw other batches, so no limits are computed for it"
    last = last_table_configs(config) if table_configs is None else None
    folder = str(table_configs) if table_configs is not None else last and last[1]
    remedy = (
        f"`tfx-embeddings run` with `--set training.topology={slice_.name}` computes them; or name the TableConfigs of "
        "such a run with `--table-configs`"
    )
    if folder is None:
        return None, f"no run has computed the limits of {slice_.name}: {remedy}"
    limits = read_sparse_core_limits(folder)
    if limits is None:
        return None, f"the table configs in {folder} have no limits of SparseCores: {remedy}"
    others = _different(_shape(read_embedding_config(folder)), _shape(tables))
    if others:
        reason = (
            f"the limits in {folder} are for other tables or features than those planned here ({', '.join(others)}). "
            f"A run may choose other dims than this preflight; add `--table-configs {folder}` to check that run's "
            "tables"
        )
        return None, reason
    return limits, folder


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
