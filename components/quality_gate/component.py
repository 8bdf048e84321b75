"""Defines QualityGate, the component that judges a model by what the Evaluator does not compute."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.quality_gate.executor import Executor
from embedding_core.quality_rules import Rules


class QualityGate(DeclaredComponent, base_component.BaseComponent):
    """Judges a model by what the Evaluator does not compute.

    It counts the rows, the labels and the unknown tokens of the eval split, and measures Recall@10, Recall@50 and
    NDCG@10 of a two-tower model over all candidates, and of ranking by popularity. EmbeddingPusher takes this blessing
    in addition to the Evaluator's.

    Component `outputs` contains:
      - `blessing`: Channel of type `standard_artifacts.ModelBlessing`: `quality.json` with every figure and the outcome
        of every rule. Custom properties: `blessed` (1 or 0) and `reason` (which rules were not met).
    """

    PARAMETERS = parameters({keys.RULES: str, keys.SEED: int}, optional={keys.GATES: str, keys.CODE_FINGERPRINT: str})
    INPUTS = channels(
        keys.MODEL_RUN,
        keys.EXAMPLES,
        keys.VOCABULARIES,
        keys.TABLE_CONFIGS,
        optional=[keys.TRANSFORM_GRAPH, keys.SCHEMA],
    )
    OUTPUTS = channels(keys.BLESSING)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model_run: types.BaseChannel,
        examples: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        rules: Rules,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        seed: int = 0,
        gates: Sequence[str] = (),
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct a QualityGate.

        Args:
          model_run: a channel of `ModelRun`, from EmbeddingTrainer.
          examples: a channel of `Examples` with the splits "train" and "eval", raw.
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          table_configs: a channel of `TableConfigs`: the tables that were trained.
          rules: what the model has to pass.
          transform_graph: a channel of `TransformGraph` that computes dense features, label and weight.
          schema: a channel of `Schema`; needed without a transform graph.
          seed: seed of the sample of rows that retrieval is measured on, if the eval split is very large.
          gates: dotted paths of classes of your own, whose rules the model also has to pass; see
            `embedding_core.evaluation.own_checks`.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
        """
        super().__init__(
            model_run=model_run,
            examples=examples,
            vocabularies=vocabularies,
            table_configs=table_configs,
            transform_graph=transform_graph,
            schema=schema,
            rules=json.dumps(rules.to_mapping(), sort_keys=True),
            seed=seed,
            gates=json.dumps(list(gates)) if gates else None,
            code_fingerprint=code_fingerprint,
        )
