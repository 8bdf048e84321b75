"""The EmbeddingTrainer component."""

from __future__ import annotations

from typing import ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.proto import trainer_pb2
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.trainer.executor import (
    CODE_FINGERPRINT_KEY,
    CUSTOM_CONFIG_KEY,
    EVAL_ARGS_KEY,
    EXAMPLES_KEY,
    MODEL_KEY,
    MODEL_MODULE_KEY,
    MODEL_RUN_KEY,
    RESUME_DIR_KEY,
    RUN_FN_KEY,
    SCHEMA_KEY,
    TABLE_CONFIGS_KEY,
    TRAIN_ARGS_KEY,
    TRAINING_STEPS_KEY,
    TRANSFORM_GRAPH_KEY,
    VOCABULARIES_KEY,
    WARM_START_KEY,
    Executor,
)

__all__ = ["EmbeddingTrainer", "EmbeddingTrainerSpec"]


class EmbeddingTrainerSpec(ComponentSpec):
    """Inputs, parameters and outputs of EmbeddingTrainer: those of TFX's Trainer that it uses, and its own."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        TRAIN_ARGS_KEY: ExecutionParameter(type=trainer_pb2.TrainArgs),
        EVAL_ARGS_KEY: ExecutionParameter(type=trainer_pb2.EvalArgs),
        RUN_FN_KEY: ExecutionParameter(type=str),
        CUSTOM_CONFIG_KEY: ExecutionParameter(type=str),
        MODEL_MODULE_KEY: ExecutionParameter(type=str),
        CODE_FINGERPRINT_KEY: ExecutionParameter(type=str, optional=True),
        RESUME_DIR_KEY: ExecutionParameter(type=str, optional=True),
        TRAINING_STEPS_KEY: ExecutionParameter(type=int, optional=True),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        VOCABULARIES_KEY: ChannelParameter(type=Vocabularies),
        TABLE_CONFIGS_KEY: ChannelParameter(type=TableConfigs),
        TRANSFORM_GRAPH_KEY: ChannelParameter(type=standard_artifacts.TransformGraph, optional=True),
        SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema, optional=True),
        WARM_START_KEY: ChannelParameter(type=EmbeddingCheckpoint, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        MODEL_RUN_KEY: ChannelParameter(type=standard_artifacts.ModelRun),
    }


class EmbeddingTrainer(base_component.BaseComponent):
    """Trains a model of embedding tables and a dense part.

    Component `outputs` contains:
      - `model`: Channel of type `Model`: a SavedModel whose lookup runs on CPU, with the signatures that the
        Evaluator wants, so that it judges what will be served.
      - `model_run`: Channel of type `ModelRun`: `checkpoints/` with the final state, `dense/` with what later runs
        start their dense part from, `training.json` with what the model was made of, `history.json` with the curves,
        `logs/` for TensorBoard.
    """

    SPEC_CLASS = EmbeddingTrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        model: str,
        custom_config: str,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        warm_start: types.BaseChannel | None = None,
        run_fn: str = "components.trainer.run.run_fn",
        code_fingerprint: str | None = None,
        resume_dir: str | None = None,
        training_steps: int | None = None,
    ) -> None:
        """Construct an EmbeddingTrainer.

        Args:
          examples: a channel of `Examples` with the splits "train" and "eval", raw.
          vocabularies: a channel of `Vocabularies`, from VocabularyGen.
          table_configs: a channel of `TableConfigs`, from TableConfigGen.
          model: dotted module with `build(config, embeddings, dense, **arguments)`.
          custom_config: JSON object, see `components.trainer.run.Settings`: `training` (a `TrainingConfig`),
            `arguments` of the model, `dense`, `label_key` and `weight_key` (names of columns, transformed ones where
            there is a transform graph).
          transform_graph: a channel of `TransformGraph` that computes dense features, label and weight;
            without one they are raw columns of numbers.
          schema: a channel of `Schema`; needed where there is no transform graph.
          warm_start: a channel of `EmbeddingCheckpoint` that tables and slots start from, and the dense part as
            `dense_start` of `custom_config` says.
          run_fn: dotted path of the function that trains.
          code_fingerprint: digest of the code that runs, so that the cache sees a change of it.
          resume_dir: folder that keeps checkpoints while training, outside of what a failed run loses; each
            run has its own folder in there, and removes it when it is done.
          training_steps: instead of the steps or epochs of `custom_config`, where above 0.
        """
        spec = EmbeddingTrainerSpec(
            **{
                EXAMPLES_KEY: examples,
                VOCABULARIES_KEY: vocabularies,
                TABLE_CONFIGS_KEY: table_configs,
                TRANSFORM_GRAPH_KEY: transform_graph,
                SCHEMA_KEY: schema,
                WARM_START_KEY: warm_start,
                TRAIN_ARGS_KEY: trainer_pb2.TrainArgs(splits=["train"]),
                EVAL_ARGS_KEY: trainer_pb2.EvalArgs(splits=["eval"]),
                RUN_FN_KEY: run_fn,
                CUSTOM_CONFIG_KEY: custom_config,
                MODEL_MODULE_KEY: model,
                CODE_FINGERPRINT_KEY: code_fingerprint,
                RESUME_DIR_KEY: resume_dir,
                TRAINING_STEPS_KEY: training_steps,
                MODEL_KEY: types.Channel(type=standard_artifacts.Model),
                MODEL_RUN_KEY: types.Channel(type=standard_artifacts.ModelRun),
            }
        )
        super().__init__(spec=spec)
