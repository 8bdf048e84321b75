"""The TableConfigGen component."""

from __future__ import annotations

from typing import ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.table_config_gen.executor import (
    EARLIER_CHECKPOINT_KEY,
    FEATURES_KEY,
    TABLE_CONFIGS_KEY,
    TABLES_KEY,
    TOPOLOGY_KEY,
    VOCABULARIES_KEY,
    Executor,
)

__all__ = ["TableConfigGen", "TableConfigGenSpec"]


class TableConfigGenSpec(ComponentSpec):
    """Inputs, parameters and outputs of TableConfigGen."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        FEATURES_KEY: ExecutionParameter(type=str),
        TABLES_KEY: ExecutionParameter(type=str),
        TOPOLOGY_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        VOCABULARIES_KEY: ChannelParameter(type=Vocabularies),
        EARLIER_CHECKPOINT_KEY: ChannelParameter(type=EmbeddingCheckpoint, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {TABLE_CONFIGS_KEY: ChannelParameter(type=TableConfigs)}


class TableConfigGen(base_component.BaseComponent):
    """Lays out embedding tables: rows, dim, combiner, optimizer, initializer, and the memory they take.

    Component `outputs` contains:
      - `table_configs`: Channel of type `TableConfigs`: `embedding_config.json` (an `EmbeddingConfig`),
        `plan.json` (bytes of tables and slots, per host and core of the topology) and `vocabularies.json`
        (the digest of the vocabulary that each table's rows belong to).
    """

    SPEC_CLASS = TableConfigGenSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        vocabularies: types.BaseChannel,
        features: str,
        tables: str = "{}",
        topology: str | None = None,
        earlier_checkpoint: types.BaseChannel | None = None,
    ) -> None:
        """Construct a TableConfigGen.

        Args:
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          features: JSON list of the categorical features, as VocabularyGen's, where each may also have
            `max_sequence_length` ("auto", a percentile such as "p99", or a whole number) and `table`.
          tables: JSON object of overrides per table, or for all ("*"): any of dim, combiner, optimizer,
            initializer and oov_rows (`embedding_core.planning.planner` has the defaults).
          topology: a TPU slice such as "v3-8" to plan memory for; tables that do not fit are an error.
          earlier_checkpoint: a channel of `EmbeddingCheckpoint` that training is to start from: a table that it has
            keeps its dim unless `tables` says otherwise (the default dim goes by the rows, which change).
        """
        spec = TableConfigGenSpec(
            **{
                VOCABULARIES_KEY: vocabularies,
                FEATURES_KEY: features,
                TABLES_KEY: tables,
                TOPOLOGY_KEY: topology,
                EARLIER_CHECKPOINT_KEY: earlier_checkpoint,
                TABLE_CONFIGS_KEY: types.Channel(type=TableConfigs),
            }
        )
        super().__init__(spec=spec)
