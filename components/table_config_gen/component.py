"""The TableConfigGen component."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types.component_spec import ComponentSpec

from components import spec_keys as keys
from components.component_spec import channels, parameters, spec_with_outputs
from components.table_config_gen.executor import Executor
from embedding_core.planning.table_overrides import TableSettings
from embedding_core.schema import Json


class TableConfigGenSpec(ComponentSpec):
    """Inputs, parameters and outputs of TableConfigGen."""

    PARAMETERS = parameters({keys.FEATURES: str, keys.TABLES: str}, optional={keys.TOPOLOGY: str})
    INPUTS = channels(keys.VOCABULARIES, optional=[keys.EARLIER_CHECKPOINT])
    OUTPUTS = channels(keys.TABLE_CONFIGS)


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
        features: Sequence[Json],
        tables: Mapping[str, TableSettings] | None = None,
        topology: str | None = None,
        earlier_checkpoint: types.BaseChannel | None = None,
    ) -> None:
        """Construct a TableConfigGen.

        Args:
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          features: the categorical features, with the fields that VocabularyGen takes; each may also have
            `max_sequence_length` ("auto", a percentile such as "p99", or a whole number) and `table`.
          tables: overrides by table, "*" for all tables; `embedding_core.planning.planner` has the defaults.
          topology: a TPU slice such as "v3-8" to plan memory for; tables that do not fit are an error.
          earlier_checkpoint: a channel of `EmbeddingCheckpoint` that training starts from: a table in it keeps
            its dim unless `tables` sets another (the default dim depends on the rows, which change).
        """
        spec = spec_with_outputs(
            TableConfigGenSpec,
            vocabularies=vocabularies,
            features=json.dumps(list(features)),
            tables=json.dumps({name: one.to_mapping() for name, one in (tables or {}).items()}),
            topology=topology,
            earlier_checkpoint=earlier_checkpoint,
        )
        super().__init__(spec=spec)
