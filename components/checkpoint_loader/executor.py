"""Defines the executor of CheckpointLoader, which calls `embedding_core.checkpoint.remap` on artifacts."""

from __future__ import annotations

from tfx.dsl.components.base import base_executor

from components import component_spec as keys
from components import progress
from components.artifact_files import read_embedding_config
from components.base_executor import ComponentExecutor, Execution
from embedding_core.checkpoint import remap
from embedding_core.training_config import RemapPolicy
from embedding_core.vocabulary import load_vocabularies

_COUNTS = ("kept", "new", "dropped", "kept_traffic")


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Remaps the checkpoint of a previous run to new vocabularies."""

    COMPONENT = "CheckpointLoader"

    def execute(self, execution: Execution) -> None:
        """Write the embedding checkpoint that a new run starts from.

        Raises:
          ConfigError: the policy breaks a rule.
          CheckpointError: the previous checkpoint is damaged, or differs in a way that the policy refuses.
        """
        policy = RemapPolicy.from_mapping(execution.json(keys.POLICY) or {})
        config = read_embedding_config(execution.uri(keys.TABLE_CONFIGS))
        artifact = execution.output(keys.EMBEDDING_CHECKPOINT)
        manifest, report = remap(
            execution.uri(keys.EARLIER_CHECKPOINT),
            config,
            load_vocabularies(execution.uri(keys.VOCABULARIES)),
            artifact.uri,
            policy=policy,
            progress=lambda key, done, total: progress.report(f"load {key}", done, total),
        )
        artifact.put_facts(
            step=manifest.step,
            tables=len(config.tables),
            vocabularies=dict(manifest.vocabularies),
            remap={name: {key: table.get(key) for key in _COUNTS} for name, table in report["tables"].items()},
            new_tables=report["tables_new"],
            dropped_tables=report["tables_dropped"],
        )
