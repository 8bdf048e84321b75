"""The executor of CheckpointRetriever: glue between artifacts and `embedding_core.checkpoint`."""

from __future__ import annotations

import os
from typing import Any, get_args

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from components import progress
from components.artifact_files import read_embedding_config, read_vocabularies
from components.record import record_lineage
from embedding_core.checkpoint import latest_training_checkpoint, retrieve
from embedding_core.checkpoint.dense import DENSE
from embedding_core.config import NonfiniteRows
from embedding_core.errors import ConfigError

__all__ = ["Executor"]

MODEL_RUN_KEY = "model_run"
TABLE_CONFIGS_KEY = "table_configs"
VOCABULARIES_KEY = "vocabularies"
NONFINITE_KEY = "nonfinite"
EMBEDDING_CHECKPOINT_KEY = "embedding_checkpoint"


class Executor(base_executor.BaseExecutor):
    """Retrieves tables and slots from a training checkpoint."""

    def Do(  # noqa: N802
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Write an embedding checkpoint.

        Args:
          input_dict: `model_run`, `table_configs` and `vocabularies`.
          output_dict: `embedding_checkpoint`, one artifact.
          exec_properties: `nonfinite`.

        Raises:
          CheckpointError: the training checkpoint is damaged, not of these tables, or not finite.
        """
        nonfinite = exec_properties.get(NONFINITE_KEY) or "error"
        if nonfinite not in get_args(NonfiniteRows):
            raise ConfigError(f"`{NONFINITE_KEY}` is {nonfinite!r}: it must be 'error' or 'keep'.")
        folder = {key: artifact_utils.get_single_uri(input_dict[key]) for key in input_dict}
        config = read_embedding_config(folder[TABLE_CONFIGS_KEY])
        vocabularies = read_vocabularies(folder[VOCABULARIES_KEY])
        artifact = artifact_utils.get_single_instance(output_dict[EMBEDDING_CHECKPOINT_KEY])
        fileio.makedirs(os.path.dirname(artifact.uri))
        manifest = retrieve(
            latest_training_checkpoint(os.path.join(folder[MODEL_RUN_KEY], "checkpoints")),
            config,
            artifact.uri,
            vocabularies=vocabularies,
            dense=os.path.join(folder[MODEL_RUN_KEY], DENSE),
            nonfinite="keep" if nonfinite == "keep" else "error",
            progress=lambda key, done, total: progress.report(f"retrieve {key}", done, total),
        )
        artifact.put_facts(
            step=manifest.step,
            tables=len(config.tables),
            bytes=sum(file["size"] for file in manifest.files.values()),
            vocabularies=dict(manifest.vocabularies),
            nonfinite_rows=dict(manifest.nonfinite_rows),
        )
        record_lineage("CheckpointRetriever", input_dict, output_dict)
