"""The QualityGate component."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import TableConfigs, Vocabularies
from components.quality_gate.executor import (
    BLESSING_KEY,
    CODE_FINGERPRINT_KEY,
    EXAMPLES_KEY,
    MODEL_RUN_KEY,
    RULES_KEY,
    SCHEMA_KEY,
    SEED_KEY,
    TABLE_CONFIGS_KEY,
    TRANSFORM_GRAPH_KEY,
    VOCABULARIES_KEY,
    Executor,
)
from embedding_core.errors import ConfigError
from embedding_core.evaluation import Rules

__all__ = ["QualityGate", "QualityGateSpec"]


class QualityGateSpec(ComponentSpec):
    """Inputs, parameters and outputs of QualityGate."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        RULES_KEY: ExecutionParameter(type=str),
        SEED_KEY: ExecutionParameter(type=int),
        CODE_FINGERPRINT_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        MODEL_RUN_KEY: ChannelParameter(type=standard_artifacts.ModelRun),
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        VOCABULARIES_KEY: ChannelParameter(type=Vocabularies),
        TABLE_CONFIGS_KEY: ChannelParameter(type=TableConfigs),
        TRANSFORM_GRAPH_KEY: ChannelParameter(type=standard_artifacts.TransformGraph, optional=True),
        SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing)
    }


class QualityGate(base_component.BaseComponent):
    """Judges a model by what the Evaluator does not compute.

    It counts the rows, the labels and the unknown tokens of the eval split, and measures Recall@10 and Recall@50 of a
    two-tower model over all candidates beside those of popularity. EmbeddingPusher takes its blessing besides the
    Evaluator's.

    Component `outputs` contains:
      - `blessing`: Channel of type `standard_artifacts.ModelBlessing`: `quality.json` with every figure and the outcome
        of every rule. Custom properties: `blessed` (1 or 0) and `reason` (which rules were not met).
    """

    SPEC_CLASS = QualityGateSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model_run: types.BaseChannel,
        examples: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        rules: Mapping[str, Any],
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        seed: int = 0,
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct a QualityGate.

        Args:
          model_run: a channel of `ModelRun`, from EmbeddingTrainer.
          examples: a channel of `Examples` with the splits "train" and "eval", raw.
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          table_configs: a channel of `TableConfigs`: the tables that were trained.
          rules: fields of `embedding_core.evaluation.Rules`.
          transform_graph: a channel of `TransformGraph` that computes dense features, label and weight.
          schema: a channel of `Schema`; needed if there is no transform graph.
          seed: of the sample of rows that retrieval is measured on, if the eval split has very many.
          code_fingerprint: digest of the code that runs, so that the cache sees a change of it.

        Raises:
          ConfigError: a rule of an unknown name.
        """
        try:
            Rules(**rules)
        except TypeError as error:
            raise ConfigError(f"`rules` of QualityGate is {dict(rules)!r}: {error}.") from error
        spec = QualityGateSpec(
            **{
                MODEL_RUN_KEY: model_run,
                EXAMPLES_KEY: examples,
                VOCABULARIES_KEY: vocabularies,
                TABLE_CONFIGS_KEY: table_configs,
                TRANSFORM_GRAPH_KEY: transform_graph,
                SCHEMA_KEY: schema,
                RULES_KEY: json.dumps(rules, sort_keys=True),
                SEED_KEY: seed,
                CODE_FINGERPRINT_KEY: code_fingerprint,
                BLESSING_KEY: types.Channel(type=standard_artifacts.ModelBlessing),
            }
        )
        super().__init__(spec=spec)
