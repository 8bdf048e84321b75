"""Finds the limits of SparseCores that a run computed for the tables that a preflight plans."""

from __future__ import annotations

from pathlib import Path

from components.artifact_files import read_embedding_config, read_sparse_core_limits
from embedding_core.config import EmbeddingConfig
from embedding_core.planning.topology import Topology
from embedding_core.preflight import SparseCores
from embedding_core.tpu_compiler import SparseCoreCompiler
from pipelines.checks.planned_tables import last_table_configs
from pipelines.config import PipelineConfig


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
        **{f"table {one.name}": (one.vocabulary_size, one.dim, one.combiner, one.optimizer) for one in tables.tables},
        **{f"feature {one.name}": (one.table, one.max_sequence_length) for one in tables.features},
    }


def _different(first: dict[str, object], second: dict[str, object]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]
