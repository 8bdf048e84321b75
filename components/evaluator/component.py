"""Defines Evaluator, the component that computes a model's metrics and blesses it if it reaches the thresholds."""

from __future__ import annotations

import json

from google.protobuf import json_format
from tensorflow_model_analysis.proto import config_pb2
from tfx import types
from tfx.dsl.components.base import base_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.evaluator.executor import Executor
from embedding_core.quality_rules import RankingSettings


class Evaluator(DeclaredComponent, base_component.BaseComponent):
    """Computes the metrics of a model on the eval split, and blesses it if it reaches the thresholds.

    It replaces TFX's Evaluator and writes the same artifacts, which TFMA can load. It scores rows in batches and adds
    them up by slice with numpy; TFMA does both row by row. Memory grows with the number of slices, not of rows, with
    two exceptions. Ranking metrics keep their queries and candidates, and GroupAUC 28 bytes for each row and slice.

    Component `outputs` contains:
      - `evaluation`: Channel of type `standard_artifacts.ModelEvaluation`: the metrics by slice, in TFMA's format.
      - `blessing`: Channel of type `standard_artifacts.ModelBlessing`, with the marker file and properties of TFX.
    """

    PARAMETERS = parameters({keys.EVAL_CONFIG: str}, optional={keys.CODE_FINGERPRINT: str, keys.RANKING: str})
    INPUTS = channels(keys.EXAMPLES, keys.MODEL, optional=[keys.BASELINE_MODEL, keys.TABLE_CONFIGS, keys.VOCABULARIES])
    OUTPUTS = channels(keys.EVALUATION, keys.BLESSING)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        model: types.BaseChannel,
        eval_config: config_pb2.EvalConfig,
        baseline_model: types.BaseChannel | None = None,
        table_configs: types.BaseChannel | None = None,
        vocabularies: types.BaseChannel | None = None,
        ranking: RankingSettings | None = None,
        code_fingerprint: str | None = None,
    ) -> None:
        """Construct an Evaluator.

        Args:
          examples: a channel of `Examples` with the split "eval", and "train" if rankings are measured.
          model: a channel of `Model`, evaluated by the signature that `eval_config` names.
          eval_config: metrics, slices and thresholds. Each model needs `signature_name`, `prediction_key`,
            `label_key` and one preprocessing function: the name of a signature that returns label and weight.
          baseline_model: a channel of `Model` that the model is compared with.
          table_configs: a channel of `TableConfigs` of the model; needed for `Ranking` metrics.
          vocabularies: a channel of `Vocabularies` of the model; needed for `Ranking` metrics.
          ranking: settings of the rankings, and the column of users; needed for `Ranking` and `GroupAUC`.
          code_fingerprint: digest of the code that runs; a new digest invalidates the cache.
        """
        super().__init__(
            examples=examples,
            model=model,
            baseline_model=baseline_model,
            table_configs=table_configs,
            vocabularies=vocabularies,
            ranking=None if ranking is None else json.dumps(ranking.to_mapping(), sort_keys=True),
            eval_config=json_format.MessageToJson(eval_config, sort_keys=True),
            code_fingerprint=code_fingerprint,
        )
