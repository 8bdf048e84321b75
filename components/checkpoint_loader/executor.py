"""The executor of CheckpointLoader: glue between artifacts and `embedding_core.checkpoint.remap`."""

from __future__ import annotations

import json
import os
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from components import progress
from components.artifact_files import read_embedding_config, read_vocabularies
from components.record import record_lineage
from embedding_core.checkpoint import RemapPolicy, remap
from embedding_core.errors import ConfigError

__all__ = ["Executor"]

EARLIER_CHECKPOINT_KEY = "earlier_checkpoint"
VOCABULARIES_KEY = "vocabularies"
TABLE_CONFIGS_KEY = "table_configs"
POLICY_KEY = "policy"
EMBEDDING_CHECKPOINT_KEY = "embedding_checkpoint"


class Executor(base_executor.BaseExecutor):
    """Remaps an earlier checkpoint to new vocabularies."""

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Write the embedding checkpoint that a new run starts from.

        Args:
          input_dict: `earlier_checkpoint`, `vocabularies` and `table_configs`.
          output_dict: `embedding_checkpoint`, one artifact.
          exec_properties: `policy`, a JSON object.

        Raises:
          CheckpointError: the earlier checkpoint is damaged, or the policy refuses what differs.
        """
        policy = _policy(exec_properties.get(POLICY_KEY) or "{}")
        folder = {key: artifact_utils.get_single_uri(input_dict[key]) for key in input_dict}
        config = read_embedding_config(folder[TABLE_CONFIGS_KEY])
        vocabularies = read_vocabularies(folder[VOCABULARIES_KEY])
        artifact = artifact_utils.get_single_instance(output_dict[EMBEDDING_CHECKPOINT_KEY])
        fileio.makedirs(os.path.dirname(artifact.uri))
        manifest, report = remap(
            folder[EARLIER_CHECKPOINT_KEY],
            config,
            vocabularies,
            artifact.uri,
            policy=policy,
            progress=lambda key, done, total: progress.report(f"load {key}", done, total),
        )
        counts = ("kept", "new", "dropped", "kept_traffic")
        artifact.put_facts(
            step=manifest.step,
            tables=len(config.tables),
            vocabularies=dict(manifest.vocabularies),
            remap={name: {key: table.get(key) for key in counts} for name, table in report["tables"].items()},
            tables_new=report["tables_new"],
            tables_dropped=report["tables_dropped"],
        )
        record_lineage("CheckpointLoader", input_dict, output_dict)


def _policy(text: str) -> RemapPolicy:
    try:
        return RemapPolicy(**json.loads(text))
    except (json.JSONDecodeError, TypeError) as error:
        raise ConfigError(
            f"`{POLICY_KEY}` is {text!r}: it must be a JSON object with any of new_rows, new_tables, "
            f"changed_optimizer, changed_dim and seed ({error})."
        ) from error
