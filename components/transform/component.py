"""Defines Transform, the component that writes the graph of dense features, label and weight."""

from __future__ import annotations

import json

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.transform.executor import Executor
from embedding_core.schema import Json


class Transform(DeclaredComponent, base_beam_component.BaseBeamComponent):
    """Analyses the train split and writes the graph that computes dense features, label and weight.

    Replaces TFX's Transform, which reads row by row, traces `preprocessing_fn` twice as often and has no base
    checkpoint. Leaves out what this pipeline does not use: materialized examples, statistics and the analyzer cache.

    Component `outputs` contains:
      - `transform_graph`: Channel of type `TransformGraph`, for training and serving.
    """

    PARAMETERS = parameters({keys.PREPROCESSING_FN: str, keys.CUSTOM_CONFIG: str})
    INPUTS = channels(keys.EXAMPLES, keys.SCHEMA, optional=[keys.BASE_CHECKPOINT, keys.BASE_TRANSFORM_GRAPH])
    OUTPUTS = channels(keys.TRANSFORM_GRAPH)
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        schema: types.BaseChannel,
        preprocessing_fn: str,
        custom_config: Json,
        base_checkpoint: types.BaseChannel | None = None,
        base_transform_graph: types.BaseChannel | None = None,
    ) -> None:
        """Construct a Transform.

        Args:
          examples: a channel of `Examples` with the splits "train" and "eval"; the former is analysed.
          schema: a channel of `Schema`.
          preprocessing_fn: dotted path of the function, which takes `inputs` and optionally `custom_config`.
          custom_config: a JSON object for that function.
          base_checkpoint: a channel of `EmbeddingCheckpoint`; `preprocessing_fn` gets the ranges of the checkpoint's
            dense features as `ranges` in `custom_config`, so that it can keep them.
          base_transform_graph: a channel of `TransformGraph` of a previous run. It is copied, and nothing is analysed,
            unless `preprocessing_fn`, `custom_config` or the types of the columns differ from those it was made with.
        """
        super().__init__(
            examples=examples,
            schema=schema,
            base_checkpoint=base_checkpoint,
            base_transform_graph=base_transform_graph,
            preprocessing_fn=preprocessing_fn,
            custom_config=json.dumps(dict(custom_config)),
        )
