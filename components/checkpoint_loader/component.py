"""Defines CheckpointLoader, the component that remaps the tables of a previous run to those of a new run."""

from __future__ import annotations

import json

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec

from components import component_spec as keys
from components.checkpoint_loader.executor import Executor
from components.component_spec import DeclaredComponent, channels, parameters
from embedding_core.training_config import RemapPolicy


class CheckpointLoader(DeclaredComponent, base_component.BaseComponent):
    """Remaps the embedding checkpoint of a previous run to a new run's tables: rows and slots move with their tokens.

    Component `outputs` contains:
      - `embedding_checkpoint`: Channel of type `EmbeddingCheckpoint`: what the trainer starts from; `remap.json`
        in it counts per table the kept, new and dropped tokens, and the traffic that the kept ones cover.
    """

    PARAMETERS = parameters({keys.POLICY: str}, optional={keys.CODE_FINGERPRINT: str})
    INPUTS = channels(keys.EARLIER_CHECKPOINT, keys.VOCABULARIES, keys.TABLE_CONFIGS)
    OUTPUTS = channels(keys.EMBEDDING_CHECKPOINT)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        earlier_checkpoint: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        policy: RemapPolicy | None = None,
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct a CheckpointLoader.

        Args:
          earlier_checkpoint: a channel of `EmbeddingCheckpoint`, of CheckpointRetriever in a previous run; it
            holds the vocabularies that its rows belong to.
          vocabularies: a channel of `Vocabularies`: the new run's.
          table_configs: a channel of `TableConfigs`: the new run's.
          policy: how to fill rows, tables and slots that `earlier_checkpoint` does not have; None is `RemapPolicy()`.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
        """
        super().__init__(
            earlier_checkpoint=earlier_checkpoint,
            vocabularies=vocabularies,
            table_configs=table_configs,
            policy=json.dumps((policy or RemapPolicy()).to_mapping()),
            code_fingerprint=code_fingerprint,
        )
