"""The CheckpointRetriever component."""

from __future__ import annotations

from typing import ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.checkpoint_retriever.executor import (
    EMBEDDING_CHECKPOINT_KEY,
    MODEL_RUN_KEY,
    NONFINITE_KEY,
    TABLE_CONFIGS_KEY,
    VOCABULARIES_KEY,
    Executor,
)

__all__ = ["CheckpointRetriever", "CheckpointRetrieverSpec"]


class CheckpointRetrieverSpec(ComponentSpec):
    """Inputs, parameters and outputs of CheckpointRetriever."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {NONFINITE_KEY: ExecutionParameter(type=str)}
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        MODEL_RUN_KEY: ChannelParameter(type=standard_artifacts.ModelRun),
        TABLE_CONFIGS_KEY: ChannelParameter(type=TableConfigs),
        VOCABULARIES_KEY: ChannelParameter(type=Vocabularies),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EMBEDDING_CHECKPOINT_KEY: ChannelParameter(type=EmbeddingCheckpoint)
    }


class CheckpointRetriever(base_component.BaseComponent):
    """Takes the tables and slots out of a training checkpoint, in slices, so that they outlive the run.

    Component `outputs` contains:
      - `embedding_checkpoint`: Channel of type `EmbeddingCheckpoint`: logical tables and slots by name, without
        any topology, the vocabularies that the rows belong to, the dense part, and a manifest with a digest of every
        file.
    """

    SPEC_CLASS = CheckpointRetrieverSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model_run: types.BaseChannel,
        table_configs: types.BaseChannel,
        vocabularies: types.BaseChannel,
        nonfinite: str = "error",
    ) -> None:
        """Construct a CheckpointRetriever.

        Args:
          model_run: a channel of `ModelRun`, from EmbeddingTrainer; its newest `checkpoints/ckpt-<step>` is taken.
          table_configs: a channel of `TableConfigs`: the tables that were trained.
          vocabularies: a channel of `Vocabularies`: those that the tables were planned from.
          nonfinite: "error" refuses tables with a NaN or an infinity, "keep" counts them.
        """
        spec = CheckpointRetrieverSpec(
            **{
                MODEL_RUN_KEY: model_run,
                TABLE_CONFIGS_KEY: table_configs,
                VOCABULARIES_KEY: vocabularies,
                NONFINITE_KEY: nonfinite,
                EMBEDDING_CHECKPOINT_KEY: types.Channel(type=EmbeddingCheckpoint),
            }
        )
        super().__init__(spec=spec)
