"""Defines TableConfigGen, the component that lays out embedding tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.table_config_gen.executor import Executor
from embedding_core.config import TableSettings
from embedding_core.errors import ConfigError
from embedding_core.schema import Json


class TableConfigGen(DeclaredComponent, base_component.BaseComponent):
    """Lays out embedding tables: rows, dim, combiner, optimizer, initializer, and the memory they take.

    Component `outputs` contains:
      - `table_configs`: Channel of type `TableConfigs`: `embedding_config.json` (an `EmbeddingConfig`),
        `plan.json` (bytes of tables and slots, per host and core of the topology) and `vocabularies.json`
        (the digest of the vocabulary that each table's rows belong to). With a `custom_config`, also what optional
        rooms compute from the batches of the training (`table_limits` in their folder of `components`).
    """

    PARAMETERS = parameters(
        {keys.FEATURES: str, keys.TABLES: str},
        optional={
            keys.TOPOLOGY: str,
            keys.CUSTOM_CONFIG: str,
            keys.TRAINING_STEPS: int,
            keys.CODE_FINGERPRINT: str,
        },
    )
    INPUTS = channels(
        keys.VOCABULARIES,
        optional=[
            keys.EARLIER_CHECKPOINT,
            keys.EXAMPLES,
            keys.TRANSFORM_GRAPH,
            keys.SCHEMA,
            keys.BASE_TABLE_CONFIGS,
        ],
    )
    OUTPUTS = channels(keys.TABLE_CONFIGS)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        vocabularies: types.BaseChannel,
        features: Sequence[Json],
        tables: Mapping[str, TableSettings] | None = None,
        topology: str | None = None,
        earlier_checkpoint: types.BaseChannel | None = None,
        examples: types.BaseChannel | None = None,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        base_table_configs: types.BaseChannel | None = None,
        custom_config: Json | None = None,
        training_steps: int | None = None,
        code_fingerprint: str | None = None,
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
          examples: a channel of `Examples`; needed with `custom_config`, as EmbeddingTrainer gets it.
          transform_graph: a channel of `TransformGraph`, if EmbeddingTrainer gets one.
          schema: a channel of `Schema`, if EmbeddingTrainer gets one.
          base_table_configs: a channel of `TableConfigs` of a previous run, for the drift of what rooms compute.
          custom_config: `custom_config` of EmbeddingTrainer, if a room computes figures of the batches that this
            training draws.
          training_steps: `training_steps` of EmbeddingTrainer.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.

        Raises:
          ConfigError: there is a `custom_config`, but no `examples`.
        """
        if custom_config is not None and examples is None:
            raise ConfigError(
                "`custom_config` of TableConfigGen is given, but no `examples`: give the channel that EmbeddingTrainer "
                "gets, whose batches are drawn."
            )
        super().__init__(
            vocabularies=vocabularies,
            features=json.dumps([_with_vocabulary(feature) for feature in features]),
            tables=json.dumps({name: table.to_mapping() for name, table in (tables or {}).items()}),
            topology=topology,
            earlier_checkpoint=earlier_checkpoint,
            examples=examples,
            transform_graph=transform_graph,
            schema=schema,
            base_table_configs=base_table_configs,
            custom_config=None if custom_config is None else json.dumps(dict(custom_config)),
            training_steps=training_steps,
            code_fingerprint=code_fingerprint,
        )


def _with_vocabulary(feature: Json) -> Json:
    """Give a feature without a vocabulary the one that VocabularyGen counts it into: that of its name."""
    return feature if feature.get("vocabulary") else {**feature, "vocabulary": feature.get("name")}
