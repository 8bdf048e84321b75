"""Defines the executor of CheckpointRetriever, which runs `embedding_core.checkpoint.retrieve` on artifacts."""

from __future__ import annotations

import os
from typing import get_args

from tfx.dsl.components.base import base_executor

from components import component_spec as keys
from components import progress
from components.artifact_files import read_embedding_config
from components.base_executor import ComponentExecutor, Execution
from embedding_core.checkpoint import latest_training_checkpoint, retrieve
from embedding_core.checkpoint.dense import DENSE
from embedding_core.config import NonfiniteRows
from embedding_core.errors import ConfigError
from embedding_core.training.finished_run import slice_of_run
from embedding_core.vocabulary import load_vocabularies


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Retrieves tables and slots from a training checkpoint."""

    COMPONENT = "CheckpointRetriever"

    def execute(self, execution: Execution) -> None:
        """Write an embedding checkpoint.

        Raises:
          ConfigError: `nonfinite` is neither "error" nor "keep".
          CheckpointError: the training checkpoint is missing, damaged or of other tables; or `nonfinite` is "error",
            and a table holds a NaN or an infinity.
        """
        nonfinite = execution.properties.get(keys.NONFINITE) or "error"
        if nonfinite not in get_args(NonfiniteRows):
            raise ConfigError(f"`{keys.NONFINITE}` is {nonfinite!r}: it must be 'error' or 'keep'.")
        model_run = execution.uri(keys.MODEL_RUN)
        config = read_embedding_config(execution.uri(keys.TABLE_CONFIGS))
        artifact = execution.output(keys.EMBEDDING_CHECKPOINT)
        manifest = retrieve(
            latest_training_checkpoint(os.path.join(model_run, "checkpoints")),
            config,
            artifact.uri,
            vocabularies=load_vocabularies(execution.uri(keys.VOCABULARIES)),
            slice_=slice_of_run(model_run),
            dense=os.path.join(model_run, DENSE),
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
