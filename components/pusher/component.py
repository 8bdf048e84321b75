"""The EmbeddingPusher component."""

from __future__ import annotations

from typing import ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import TableConfigs, Vocabularies
from components.pusher.executor import (
    EXAMPLES_KEY,
    KEEP_LAST_KEY,
    MODEL_BLESSING_KEY,
    MODEL_KEY,
    MODEL_RUN_KEY,
    PARITY_ROWS_KEY,
    PARITY_SPLIT_KEY,
    PUSH_DESTINATION_KEY,
    PUSHED_MODEL_KEY,
    QUALITY_BLESSING_KEY,
    REPUBLISH_KEY,
    ROWS_DTYPE_KEY,
    SCHEMA_KEY,
    TABLE_CONFIGS_KEY,
    TOLERANCE_KEY,
    TRANSFORM_GRAPH_KEY,
    VOCABULARIES_KEY,
    Executor,
)
from embedding_core.errors import ConfigError

__all__ = ["EmbeddingPusher", "EmbeddingPusherSpec"]


class EmbeddingPusherSpec(ComponentSpec):
    """Inputs, parameters and outputs of EmbeddingPusher."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        PUSH_DESTINATION_KEY: ExecutionParameter(type=str),
        TOLERANCE_KEY: ExecutionParameter(type=float),
        KEEP_LAST_KEY: ExecutionParameter(type=int, optional=True),
        PARITY_ROWS_KEY: ExecutionParameter(type=int),
        PARITY_SPLIT_KEY: ExecutionParameter(type=str),
        REPUBLISH_KEY: ExecutionParameter(type=str, optional=True),
        ROWS_DTYPE_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        MODEL_RUN_KEY: ChannelParameter(type=standard_artifacts.ModelRun),
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        VOCABULARIES_KEY: ChannelParameter(type=Vocabularies),
        TABLE_CONFIGS_KEY: ChannelParameter(type=TableConfigs),
        TRANSFORM_GRAPH_KEY: ChannelParameter(type=standard_artifacts.TransformGraph, optional=True),
        SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema, optional=True),
        MODEL_BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing, optional=True),
        QUALITY_BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        PUSHED_MODEL_KEY: ChannelParameter(type=standard_artifacts.PushedModel)
    }


class EmbeddingPusher(base_component.BaseComponent):
    """Exports the serving-only model, proves that it computes what was trained, and publishes a version of it.

    The exported model looks up on CPU, holds its vocabularies and no slots, and loads with TensorFlow
    alone. It is loaded in a fresh process and scores rows of the eval split and generated edge
    cases; where it differs from the training lookup and model, or from the model that was evaluated, by
    more than the tolerance, nothing is pushed. A version folder appears in one rename, complete.

    Component `outputs` contains:
      - `pushed_model`: Channel of type `standard_artifacts.PushedModel`: the model (nothing where it was not
        pushed). Custom properties: `pushed` (1 or 0), `pushed_destination`, `pushed_version`, `reason` (why it
        was not pushed), `parity` (the figures, JSON), `nonfinite_rows` (how many of which table, JSON, where
        that is the reason), `model_digest`, `vocabularies_digest`, `vocabularies` (the digest of each, JSON).
    """

    SPEC_CLASS = EmbeddingPusherSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: types.BaseChannel,
        model_run: types.BaseChannel,
        examples: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        push_destination: str,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        model_blessing: types.BaseChannel | None = None,
        quality_blessing: types.BaseChannel | None = None,
        tolerance: float = 1e-5,
        keep_last: int | None = None,
        parity_rows: int = 1000,
        parity_split: str = "eval",
        republish: str | None = None,
        rows_dtype: str | None = None,
    ) -> None:
        """Construct an EmbeddingPusher.

        Args:
          model: a channel of `Model`, as evaluated, from EmbeddingTrainer.
          model_run: a channel of `ModelRun`, from EmbeddingTrainer: checkpoint and `training.json`.
          examples: a channel of `Examples`.
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          table_configs: a channel of `TableConfigs`, from TableConfigGen.
          push_destination: folder that holds the versions; a TensorFlow Serving `base_path`.
          transform_graph: a channel of `TransformGraph`, for dense features and transformed columns.
          schema: a channel of `Schema`; needed where dense features are raw columns, without a transform graph.
          model_blessing: a channel of `ModelBlessing`, from TFX's Evaluator; a model that is not blessed is not pushed.
          quality_blessing: a channel of `ModelBlessing`, from QualityGate; likewise, with its reason.
          tolerance: the largest difference allowed, absolute below 1 and relative above.
          keep_last: how many of the newest versions stay; None keeps all.
          parity_rows: how many rows are compared, before edge cases are added.
          parity_split: the split that they are from.
          republish: any text; another one than before makes the cache miss, so that a model whose version is no longer
            there, or no longer the newest, is pushed again.
          rows_dtype: "float32", the default, or "float16": tables of half the size. What it costs is measured, as the
            differences of `parity`; `tolerance` has to allow for it.

        Raises:
          ConfigError: a number is out of its range.
        """
        for name, value, minimum in ((TOLERANCE_KEY, tolerance, 0), (PARITY_ROWS_KEY, parity_rows, 1)):
            if not value >= minimum:
                raise ConfigError(f"`{name}` of EmbeddingPusher is {value!r}: it must be at least {minimum}.")
        if rows_dtype not in (None, "float32", "float16"):
            raise ConfigError(f"`rows_dtype` of EmbeddingPusher is {rows_dtype!r}: it must be 'float32' or 'float16'.")
        spec = EmbeddingPusherSpec(
            **{
                MODEL_KEY: model,
                MODEL_RUN_KEY: model_run,
                EXAMPLES_KEY: examples,
                VOCABULARIES_KEY: vocabularies,
                TABLE_CONFIGS_KEY: table_configs,
                TRANSFORM_GRAPH_KEY: transform_graph,
                SCHEMA_KEY: schema,
                MODEL_BLESSING_KEY: model_blessing,
                QUALITY_BLESSING_KEY: quality_blessing,
                PUSH_DESTINATION_KEY: push_destination,
                TOLERANCE_KEY: float(tolerance),
                KEEP_LAST_KEY: keep_last,
                PARITY_ROWS_KEY: parity_rows,
                PARITY_SPLIT_KEY: parity_split,
                REPUBLISH_KEY: republish,
                ROWS_DTYPE_KEY: rows_dtype,
                PUSHED_MODEL_KEY: types.Channel(type=standard_artifacts.PushedModel),
            }
        )
        super().__init__(spec=spec)
