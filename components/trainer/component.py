"""Defines EmbeddingTrainer, the component that trains a model of embedding tables and a dense part."""

from __future__ import annotations

import json

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.proto import trainer_pb2

from components import component_spec as keys
from components.component_spec import DeclaredComponent, channels, parameters
from components.trainer.executor import Executor
from embedding_core.schema import Json


class EmbeddingTrainer(DeclaredComponent, base_component.BaseComponent):
    """Trains a model of embedding tables and a dense part.

    Component `outputs` contains:
      - `model`: Channel of type `Model`: a SavedModel that looks rows up on the CPU, as the served model does, with the
        signatures that the Evaluator needs.
      - `model_run`: Channel of type `ModelRun`: `checkpoints/` with the final state, `dense/` with the state that later
        runs start their dense part from, `training.json` with all that defined the model, `history.json` with the
        training curves, `logs/` for TensorBoard.
    """

    PARAMETERS = parameters(
        {
            keys.TRAIN_ARGS: trainer_pb2.TrainArgs,
            keys.EVAL_ARGS: trainer_pb2.EvalArgs,
            keys.RUN_FN: str,
            keys.CUSTOM_CONFIG: str,
            keys.MODEL_MODULE: str,
        },
        optional={keys.CODE_FINGERPRINT: str, keys.RESUME_DIR: str, keys.TRAINING_STEPS: int},
    )
    INPUTS = channels(
        keys.EXAMPLES,
        keys.VOCABULARIES,
        keys.TABLE_CONFIGS,
        optional=[keys.TRANSFORM_GRAPH, keys.SCHEMA, keys.WARM_START],
    )
    OUTPUTS = channels(keys.MODEL, keys.MODEL_RUN)
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        vocabularies: types.BaseChannel,
        table_configs: types.BaseChannel,
        model: str,
        custom_config: Json,
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
          model: dotted name of a module that defines `build(config, embeddings, dense, **arguments)`.
          custom_config: fields of `components.trainer_settings.Settings`: `training` (a `TrainingConfig`), `arguments`
            of the model, `dense`, `tasks`, `weight_key` and others. Columns have the names that the transform graph
            gives them, if there is one.
          transform_graph: a channel of `TransformGraph` that computes dense features, label and weight;
            without one they are raw columns of numbers.
          schema: a channel of `Schema`; needed without a transform graph.
          warm_start: a channel of `EmbeddingCheckpoint` that tables and slots start from; `dense_start` of
            `custom_config` says what the dense part takes from it.
          run_fn: dotted path of the function that trains.
          code_fingerprint: digest of the code that runs, so that the cache misses when the code changes.
          resume_dir: folder for checkpoints during training and, if it is local, for encoded rows; unlike outputs,
            it survives a failed run. Each run has its own subfolder of checkpoints, and removes it when it is done.
          training_steps: if above 0, replaces the steps or epochs of `custom_config`.
        """
        super().__init__(
            examples=examples,
            vocabularies=vocabularies,
            table_configs=table_configs,
            transform_graph=transform_graph,
            schema=schema,
            warm_start=warm_start,
            train_args=trainer_pb2.TrainArgs(splits=["train"]),
            eval_args=trainer_pb2.EvalArgs(splits=["eval"]),
            run_fn=run_fn,
            custom_config=json.dumps(dict(custom_config)),
            model_module=model,
            code_fingerprint=code_fingerprint,
            resume_dir=resume_dir,
            training_steps=training_steps,
        )
