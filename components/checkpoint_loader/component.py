"""The CheckpointLoader component."""

from __future__ import annotations

from typing import ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.checkpoint_loader.executor import (
    EARLIER_CHECKPOINT_KEY,
    EMBEDDING_CHECKPOINT_KEY,
    POLICY_KEY,
    TABLE_CONFIGS_KEY,
    VOCABULARIES_KEY,
    Executor,
)

__all__ = ["CheckpointLoader", "CheckpointLoaderSpec"]


class CheckpointLoaderSpec(ComponentSpec):
    """Inputs, parameters and outputs of CheckpointLoader."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {POLICY_KEY: ExecutionParameter(type=str)}
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EARLIER_CHECKPOINT_KEY: ChannelParameter(type=EmbeddingCheckpoint),
        VOCABULARIES_KEY: ChannelParameter(type=Vocabularies),
        TABLE_CONFIGS_KEY: ChannelParameter(type=TableConfigs),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EMBEDDING_CHECKPOINT_KEY: ChannelParameter(type=EmbeddingCheckpoint)
    }


class CheckpointLoader(base_component.BaseComponent):
    """Brings an earlier embedding checkpoint to a new run's tables: rows and slots move with their tokens.

    Component `outputs` contains:
      - `embedding_checkpoint`: Channel of type `EmbeddingCheckpoint`: what the trainer starts from; `remap.json`
        in it tells per table how many tokens were kept, new and dropped, and the traffic that they cover.
    """

    SPEC_CLASS = CheckpointLoaderSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        earlier_checkpoint: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        policy: str = "{}",
    ) -> None:
        """Construct a CheckpointLoader.

        Args:
          earlier_checkpoint: a channel of `EmbeddingCheckpoint`, of CheckpointRetriever in an earlier run; it
            holds the vocabularies that its rows belong to.
          vocabularies: a channel of `Vocabularies`: the new run's.
          table_configs: a channel of `TableConfigs`: the new run's.
          policy: JSON object with fields of `embedding_core.checkpoint.RemapPolicy`: `new_rows`, `new_tables`,
            `changed_optimizer`, `changed_dim` and `seed`.
        """
        spec = CheckpointLoaderSpec(
            **{
                EARLIER_CHECKPOINT_KEY: earlier_checkpoint,
                VOCABULARIES_KEY: vocabularies,
                TABLE_CONFIGS_KEY: table_configs,
                POLICY_KEY: policy,
                EMBEDDING_CHECKPOINT_KEY: types.Channel(type=EmbeddingCheckpoint),
            }
        )
        super().__init__(spec=spec)
