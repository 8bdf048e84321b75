"""Defines CheckpointRetriever, the component that extracts tables and slots from a training checkpoint."""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec

from components import component_spec as keys
from components.checkpoint_retriever.executor import Executor
from components.component_spec import DeclaredComponent, channels, parameters


class CheckpointRetriever(DeclaredComponent, base_component.BaseComponent):
    """Extracts tables and slots from a training checkpoint, in slices, into an artifact that outlives the run.

    Component `outputs` contains:
      - `embedding_checkpoint`: Channel of type `EmbeddingCheckpoint`: logical tables and slots by name,
        independent of any TPU topology, the vocabularies that the rows belong to, the dense part, and a manifest with
        a digest of every file.
    """

    PARAMETERS = parameters({keys.NONFINITE: str}, optional={keys.CODE_FINGERPRINT: str})
    INPUTS = channels(keys.MODEL_RUN, keys.TABLE_CONFIGS, keys.VOCABULARIES)
    OUTPUTS = channels(keys.EMBEDDING_CHECKPOINT)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model_run: types.BaseChannel,
        table_configs: types.BaseChannel,
        vocabularies: types.BaseChannel,
        nonfinite: str = "error",
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct a CheckpointRetriever.

        Args:
          model_run: a channel of `ModelRun`, from EmbeddingTrainer; its newest `checkpoints/ckpt-<step>` is read.
          table_configs: a channel of `TableConfigs`: the tables that were trained.
          vocabularies: a channel of `Vocabularies`: those that the tables were planned from.
          nonfinite: "error" rejects tables with a NaN or an infinity, "keep" keeps and counts such rows.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
        """
        super().__init__(
            model_run=model_run,
            table_configs=table_configs,
            vocabularies=vocabularies,
            nonfinite=nonfinite,
            code_fingerprint=code_fingerprint,
        )
