"""The pipeline itself: from examples to a pushed model, as TFX nodes. A pure function of the configuration.

    ExampleGen ─► StatisticsGen ─► SchemaGen ─► ExampleValidator
        │                              └─► Transform ─┐
        ├─► VocabularyGen ─► TableConfigGen ──────────┤   (WarmStart ─► CheckpointLoader)
        └─────────────────────────────────────► EmbeddingTrainer ─► CheckpointRetriever
                                                      └─► Evaluator ─► EmbeddingPusher

No Resolver: a warm start or a baseline model is a URI that the command line finds and an Importer
brings in, which is the same on every orchestrator.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tfx import types
from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode

from components import (
    CheckpointLoader,
    CheckpointRetriever,
    EmbeddingCheckpoint,
    EmbeddingPusher,
    EmbeddingTrainer,
    ExampleGen,
    TableConfigGen,
    VocabularyGen,
)
from pipelines import component_inputs
from pipelines.config import PipelineConfig
from pipelines.earlier import EarlierRun, metadata_path
from pipelines.evaluation import eval_config
from pipelines.fingerprint import code_fingerprint, preprocessing_fingerprint

__all__ = ["create_pipeline"]


def create_pipeline(config: PipelineConfig, *, earlier: EarlierRun | None = None, republish: str | None = None) -> Any:
    """Build the pipeline that the configuration describes.

    Args:
      config: the configuration.
      earlier: what is taken over from an earlier run.
      republish: see `EmbeddingPusher`.

    Returns:
      A `tfx.dsl.Pipeline` with sqlite metadata in the work_dir, for a local run; nothing is run or written yet.
    """
    return tfx.dsl.Pipeline(
        pipeline_name=config.name,
        pipeline_root=os.path.join(config.work_dir, "artifacts"),
        components=_nodes(config, earlier or EarlierRun(), republish),
        enable_cache=True,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(metadata_path(config)),
        # In the process: Beam's default would first look for a runner on the network.
        beam_pipeline_args=["--runner=DirectRunner", "--direct_running_mode=in_memory"],
    )


def _nodes(config: PipelineConfig, earlier: EarlierRun, republish: str | None) -> list[BaseNode]:
    base, pattern = component_inputs.input_location(config)
    example_gen = ExampleGen(
        input_base=base,
        pattern=pattern,
        data_format=component_inputs.data_format(config),
        settings=json.dumps(component_inputs.example_settings(config)),
    )
    examples = example_gen.outputs["examples"]
    statistics_gen = tfx.components.StatisticsGen(examples=examples)
    schema_gen = tfx.components.SchemaGen(statistics=statistics_gen.outputs["statistics"], infer_feature_shape=False)
    schema = schema_gen.outputs["schema"]
    validator = tfx.components.ExampleValidator(statistics=statistics_gen.outputs["statistics"], schema=schema)
    transform = tfx.components.Transform(
        examples=examples,
        schema=schema,
        preprocessing_fn=config.preprocessing_fn or "pipelines.preprocessing.preprocessing_fn",
        materialize=False,
        disable_statistics=True,
        custom_config=_transform_config(config),
    )
    features = json.dumps(component_inputs.vocabulary_features(config))
    vocabulary_gen = VocabularyGen(
        examples=examples,
        features=features,
        vocabularies=json.dumps(component_inputs.vocabulary_limits(config)),
        **({"transform_graph": transform.outputs["transform_graph"]} if _after_transform(config) else {}),
    )
    table_config_gen = TableConfigGen(
        vocabularies=vocabulary_gen.outputs["vocabularies"],
        features=features,
        tables=json.dumps(component_inputs.table_overrides(config)),
    )
    inputs = {
        "vocabularies": vocabulary_gen.outputs["vocabularies"],
        "table_configs": table_config_gen.outputs["table_configs"],
    }
    warm_start = _warm_start(earlier, inputs)
    trainer = EmbeddingTrainer(
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        schema=schema,
        model=config.model.module,
        custom_config=json.dumps(component_inputs.trainer_config(config)),
        code_fingerprint=code_fingerprint(config),
        resume_dir=os.path.join(config.work_dir, "resume"),
        **({"warm_start": warm_start[-1].outputs["embedding_checkpoint"]} if warm_start else {}),
        **inputs,
    )
    retriever = CheckpointRetriever(model_run=trainer.outputs["model_run"], **inputs)
    baseline = _baseline(earlier)
    evaluator = tfx.components.Evaluator(
        examples=examples,
        model=trainer.outputs["model"],
        eval_config=eval_config(config, has_baseline=bool(baseline)),
        example_splits=["eval"],
        **({"baseline_model": baseline[0].outputs["result"]} if baseline else {}),
    )
    pusher = EmbeddingPusher(
        examples=examples,
        model=trainer.outputs["model"],
        model_run=trainer.outputs["model_run"],
        transform_graph=transform.outputs["transform_graph"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=config.push_destination,
        tolerance=config.push.tolerance,
        keep_last=config.push.keep_last,
        republish=republish,
        **inputs,
    )
    before = [example_gen, statistics_gen, schema_gen, validator, transform, vocabulary_gen, table_config_gen]
    return [*before, *warm_start, trainer, retriever, *baseline, evaluator, pusher]


def _after_transform(config: PipelineConfig) -> bool:
    return any(feature.after_transform for feature in config.features.categorical)


def _transform_config(config: PipelineConfig) -> dict[str, Any]:
    """What Transform's function is told, with a digest of the user's own one: the cache must see a change of it."""
    return {**component_inputs.transform_config(config), "code": preprocessing_fingerprint(config)}


def _warm_start(earlier: EarlierRun, inputs: dict[str, types.Channel]) -> list[BaseNode]:
    """The nodes that bring an earlier run's rows to this run's tables, the loader last."""
    if earlier.checkpoint is None:
        return []
    importer = tfx.dsl.Importer(source_uri=earlier.checkpoint, artifact_type=EmbeddingCheckpoint).with_id("WarmStart")
    return [importer, CheckpointLoader(earlier_checkpoint=importer.outputs["result"], **inputs)]


def _baseline(earlier: EarlierRun) -> list[BaseNode]:
    if earlier.baseline is None:
        return []
    model = tfx.types.standard_artifacts.Model
    return [tfx.dsl.Importer(source_uri=earlier.baseline, artifact_type=model).with_id("BaselineModel")]
