"""The Transform component."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_component_specs import (
    CUSTOM_CONFIG_KEY,
    DISABLE_STATISTICS_KEY,
    EXAMPLES_KEY,
    PREPROCESSING_FN_KEY,
    SCHEMA_KEY,
    TRANSFORM_GRAPH_KEY,
)

from components.artifacts import EmbeddingCheckpoint
from components.transform.executor import BASE_CHECKPOINT_KEY, Executor

__all__ = ["Transform", "TransformSpec"]


class TransformSpec(ComponentSpec):
    """Inputs, parameters and outputs of Transform: those of TFX's that the pipeline uses, and the base."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        PREPROCESSING_FN_KEY: ExecutionParameter(type=str),
        CUSTOM_CONFIG_KEY: ExecutionParameter(type=str),
        DISABLE_STATISTICS_KEY: ExecutionParameter(type=int),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema),
        BASE_CHECKPOINT_KEY: ChannelParameter(type=EmbeddingCheckpoint, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        TRANSFORM_GRAPH_KEY: ChannelParameter(type=standard_artifacts.TransformGraph)
    }


class Transform(base_beam_component.BaseBeamComponent):
    """Analyses the train split and writes the graph that computes dense features, label and weight.

    TFX's Transform, with one input more, and without what this pipeline does not use: materialized examples,
    statistics and the analyzer cache.

    Component `outputs` contains:
      - `transform_graph`: Channel of type `TransformGraph`, for training and serving.
    """

    SPEC_CLASS = TransformSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        schema: types.BaseChannel,
        preprocessing_fn: str,
        custom_config: Mapping[str, Any],
        base_checkpoint: types.BaseChannel | None = None,
    ) -> None:
        """Construct a Transform.

        Args:
          examples: a channel of `Examples` with the splits "train" and "eval"; the former is analysed.
          schema: a channel of `Schema`.
          preprocessing_fn: dotted path of the function, which takes `inputs` and `custom_config`.
          custom_config: a JSON object for that function.
          base_checkpoint: a channel of `EmbeddingCheckpoint`: dense features keep the ranges of its dense part, which
            the function finds as `ranges` in its `custom_config`.
        """
        spec = TransformSpec(
            **{
                EXAMPLES_KEY: examples,
                SCHEMA_KEY: schema,
                BASE_CHECKPOINT_KEY: base_checkpoint,
                PREPROCESSING_FN_KEY: preprocessing_fn,
                CUSTOM_CONFIG_KEY: json.dumps(dict(custom_config)),
                DISABLE_STATISTICS_KEY: 1,
                TRANSFORM_GRAPH_KEY: types.Channel(type=standard_artifacts.TransformGraph),
            }
        )
        super().__init__(spec=spec)
