"""Defines Shadow, the component that replays requests on the trained model and on the last pushed version."""

from __future__ import annotations

import json

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.shadow.executor import PREVIOUS_MODEL, REQUEST_FILES, REQUESTS, Executor
from components.shadow.keys import Shadow as Section


class Shadow(DeclaredComponent, base_component.BaseComponent):
    """Replays recorded requests on the trained model and on the last pushed version, and judges the differences.

    EmbeddingPusher takes this blessing in addition to the Evaluator's. Before the first push, no version exists to
    compare with, and the model is blessed.

    Component `outputs` contains:
      - `blessing`: Channel of type `standard_artifacts.ModelBlessing`: `shadow.json` with every figure and the outcome
        of every rule. Custom properties: `blessed` (1 or 0), `reason` (which rules were not met) and `note` (why
        nothing was compared, if so).
    """

    PARAMETERS = parameters({REQUESTS: str, keys.RULES: str}, optional={REQUEST_FILES: str})
    INPUTS = channels(keys.MODEL, keys.TABLE_CONFIGS) | {
        PREVIOUS_MODEL: ChannelParameter(type=standard_artifacts.PushedModel, optional=True)
    }
    OUTPUTS = channels(keys.BLESSING)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: types.BaseChannel,
        table_configs: types.BaseChannel,
        shadow: Section,
        previous_model: types.BaseChannel | None = None,
        request_files: str | None = None,
    ) -> None:
        """Construct a Shadow.

        Args:
          model: a channel of `Model`, from EmbeddingTrainer: the model that would be pushed.
          table_configs: a channel of `TableConfigs`: they say which columns are private.
          shadow: the requests, and what the model has to keep to.
          previous_model: a channel of `PushedModel`: the version to compare with; None if nothing was pushed yet.
          request_files: any text that changes with the files of requests, so that the cache misses.
        """
        super().__init__(
            model=model,
            table_configs=table_configs,
            previous_model=previous_model,
            requests=shadow.requests,
            rules=json.dumps(shadow.rules().to_mapping(), sort_keys=True),
            request_files=request_files,
        )
