"""Builds the pipeline that a configuration describes: TFX nodes from ExampleGen to EmbeddingPusher.

    ExampleGen ─► StatisticsGen ─► SchemaGen ─► ExampleValidator
        │                              └─► Transform ─┐
        ├─► VocabularyGen ─► TableConfigGen ──────────┤
        └─────────────────────────────────────► EmbeddingTrainer ─► CheckpointRetriever
                                                      │            └─► TableHealth ─┐
                                                      ├─► QualityGate ──────────────┤
                                                      └─► Evaluator ────────────────┴─► EmbeddingPusher

Optional nodes provide artifacts of previous runs:

    WarmStart ─► Transform, TableConfigGen, CheckpointLoader, TableHealth
    CheckpointLoader ─► EmbeddingTrainer
    BaseVocabularies ─► VocabularyGen
    BaseTableConfigs ─► TableConfigGen
    BaseTransformGraph ─► Transform
    BaselineModel ─► Evaluator

Optional packages add gates beside QualityGate (`gates.py`). If limits are computed from rows, TableConfigGen gets the
trainer's inputs and reads the same batches.

The pipeline has no Resolver: the command line finds the URIs of these artifacts, and Importers import them. This is the
same on every orchestrator.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.components import Evaluator as TfmaEvaluator
from tfx.components import ExampleValidator, SchemaGen
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.importer import Importer
from tfx.orchestration.pipeline import Pipeline
from tfx.types import standard_artifacts

from components import (
    CheckpointLoader,
    CheckpointRetriever,
    EmbeddingCheckpoint,
    EmbeddingPusher,
    EmbeddingTrainer,
    Evaluator,
    ExampleGen,
    StatisticsGen,
    TableConfigGen,
    TableConfigs,
    Transform,
    Vocabularies,
    VocabularyGen,
)
from pipelines.config import PipelineConfig
from pipelines.config.sections import data_location, eval_pattern
from pipelines.pipeline import component_inputs
from pipelines.pipeline.fingerprint import code_fingerprint, component_fingerprint, preprocessing_fingerprint
from pipelines.pipeline.gates import TrainedChannels, gates
from pipelines.pipeline.run_target import PreviousRun, RunTarget, local_target
from pipelines.pipeline.tfma_config import eval_config

_SAMPLE_ROWS = 10_000


def create_pipeline(
    config: PipelineConfig,
    *,
    previous: PreviousRun | None = None,
    republish: str | None = None,
    target: RunTarget | None = None,
) -> Any:
    """Build the pipeline that the configuration describes.

    Args:
      config: the configuration.
      previous: artifacts of previous runs that the pipeline starts from.
      republish: see `EmbeddingPusher`.
      target: machine or cluster that the pipeline runs on; None is this machine.

    Returns:
      A `tfx.dsl.Pipeline`; nothing is run or written yet.
    """
    target = target or local_target(config)
    return Pipeline(
        pipeline_name=target.name,
        pipeline_root=target.root,
        components=_nodes(config, previous or PreviousRun(), republish, target),
        enable_cache=True,
        metadata_connection_config=target.metadata,
        beam_pipeline_args=list(target.beam_args),
    )


def _nodes(config: PipelineConfig, previous: PreviousRun, republish: str | None, target: RunTarget) -> list[BaseNode]:
    example_gen, _, schema_gen, _ = read = _reading(config, target)
    examples, schema = example_gen.outputs["examples"], schema_gen.outputs["schema"]
    checkpoint = imported("WarmStart", previous.checkpoint, EmbeddingCheckpoint)
    kept = imported("BaseTransformGraph", previous.transform_graph, standard_artifacts.TransformGraph)
    transform = _transform(config, examples, schema, checkpoint, kept)
    known = imported("BaseVocabularies", previous.vocabularies, Vocabularies)
    reads_transform = any(feature.after_transform for feature in config.features.categorical)
    vocabulary_gen = VocabularyGen(
        examples=examples,
        features=component_inputs.counted_features(config),
        vocabularies=component_inputs.vocabulary_limits(config),
        evolution=config.vocabulary_evolution,
        transform_graph=transform.outputs["transform_graph"] if reads_transform else None,
        base_vocabularies=_result(known),
        code_fingerprint=component_fingerprint(config, "vocabulary_gen"),
    )
    tables = _table_config_gen(config, previous, target, vocabulary_gen, transform, checkpoint)
    inputs = {
        "vocabularies": vocabulary_gen.outputs["vocabularies"],
        "table_configs": tables[-1].outputs["table_configs"],
    }
    policy = component_inputs.remap_policy(config)
    loader = [
        CheckpointLoader(
            earlier_checkpoint=node.outputs["result"],
            policy=policy,
            code_fingerprint=component_fingerprint(config, "checkpoint_loader"),
            **inputs,
        )
        for node in checkpoint
    ]
    trainer = _trainer_class(target)(
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        schema=schema,
        model=config.model.module,
        run_fn=config.model.run_fn or "components.trainer.run.run_fn",
        custom_config={**component_inputs.trainer_config(config), **(target.vertex_job or {})},
        code_fingerprint=code_fingerprint(config, "trainer"),
        resume_dir=target.resume_dir,
        training_steps=target.training_steps,
        warm_start=loader[0].outputs["embedding_checkpoint"] if loader else None,
        **inputs,
    ).with_id("EmbeddingTrainer")
    retriever = CheckpointRetriever(
        model_run=trainer.outputs["model_run"],
        nonfinite=config.training.nonfinite_rows,
        code_fingerprint=component_fingerprint(config, "checkpoint_retriever"),
        **inputs,
    )
    baseline = imported("BaselineModel", previous.baseline, standard_artifacts.Model)
    evaluator = _evaluator(config, examples, trainer, baseline, inputs)
    trained = TrainedChannels(
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        model=trainer.outputs["model"],
        model_run=trainer.outputs["model_run"],
        embedding_checkpoint=retriever.outputs["embedding_checkpoint"],
        base_checkpoint=checkpoint[0].outputs["result"] if checkpoint else None,
        **inputs,
    )
    judging = {gate.blessing: gate.nodes(config, trained, previous) for gate in gates() if gate.is_on(config)}
    pusher = EmbeddingPusher(
        examples=examples,
        model=trainer.outputs["model"],
        model_run=trainer.outputs["model_run"],
        transform_graph=transform.outputs["transform_graph"],
        model_blessing=evaluator.outputs["blessing"],
        **{name: nodes[-1].outputs["blessing"] for name, nodes in judging.items()},
        push_destination=target.push_destination,
        push=config.push,
        republish=republish,
        code_fingerprint=component_fingerprint(config, "pusher"),
        **inputs,
    )
    before = [*read, *checkpoint, *kept, transform, *known, vocabulary_gen]
    after = [*itertools.chain(*judging.values()), *baseline, evaluator, pusher]
    return [*before, *tables, *loader, trainer, retriever, *after]


def _reading(config: PipelineConfig, target: RunTarget) -> tuple[BaseNode, BaseNode, BaseNode, BaseNode]:
    """Return ExampleGen, StatisticsGen, SchemaGen and ExampleValidator."""
    example_gen = ExampleGen(
        input_base=target.input_base,
        pattern=data_location(config.data)[1],
        data_format=component_inputs.data_format(config),
        settings=component_inputs.example_settings(config),
        spans=target.spans,
        eval_pattern=eval_pattern(config.data),
        code_fingerprint=component_fingerprint(config, "example_gen"),
    )
    statistics_gen = StatisticsGen(
        examples=example_gen.outputs["examples"],
        sample_rows=_SAMPLE_ROWS if config.data.statistics == "sample" else 0,
        code_fingerprint=component_fingerprint(config, "statistics_gen"),
    )
    schema_gen = SchemaGen(statistics=statistics_gen.outputs["statistics"], infer_feature_shape=False)
    validator = ExampleValidator(statistics=statistics_gen.outputs["statistics"], schema=schema_gen.outputs["schema"])
    return example_gen, statistics_gen, schema_gen, validator


def _table_config_gen(
    config: PipelineConfig,
    previous: PreviousRun,
    target: RunTarget,
    vocabulary_gen: VocabularyGen,
    transform: Transform,
    checkpoint: Sequence[BaseNode],
) -> list[BaseNode]:
    """Return TableConfigGen; if limits are computed from rows, after the Importer of the previous run's TableConfigs.

    In this case TableConfigGen gets the trainer's inputs and reads the same batches.
    """
    limits: dict[str, Any] = {}
    known: list[BaseNode] = []
    if component_inputs.plans_with_rows(config):
        known = imported("BaseTableConfigs", previous.table_configs, TableConfigs)
        limits = {
            "examples": transform.inputs["examples"],
            "transform_graph": transform.outputs["transform_graph"],
            "schema": transform.inputs["schema"],
            "custom_config": component_inputs.trainer_config(config),
            "training_steps": target.training_steps,
            "code_fingerprint": code_fingerprint(config, "table_config_gen"),
            "base_table_configs": _result(known),
        }
    node = TableConfigGen(
        vocabularies=vocabulary_gen.outputs["vocabularies"],
        features=component_inputs.vocabulary_features(config),
        tables=component_inputs.table_overrides(config),
        topology=component_inputs.planned_topology(config),
        earlier_checkpoint=_result(checkpoint),
        **limits,
    )
    return [*known, node]


def _transform(
    config: PipelineConfig,
    examples: types.BaseChannel,
    schema: types.BaseChannel,
    checkpoint: Sequence[BaseNode],
    kept: Sequence[BaseNode],
) -> Transform:
    keeps_ranges = config.warm_start is not None and config.warm_start.ranges == "keep"
    return Transform(
        examples=examples,
        schema=schema,
        preprocessing_fn=config.preprocessing_fn or "pipelines.preprocessing.preprocessing_fn",
        custom_config={**component_inputs.transform_config(config), "code": preprocessing_fingerprint(config)},
        base_checkpoint=_result(checkpoint) if keeps_ranges else None,
        base_transform_graph=_result(kept),
    )


def _evaluator(
    config: PipelineConfig,
    examples: types.BaseChannel,
    trainer: BaseNode,
    baseline: Sequence[BaseNode],
    inputs: Mapping[str, types.BaseChannel],
) -> BaseNode:
    given = {
        "examples": examples,
        "model": trainer.outputs["model"],
        "eval_config": eval_config(config, has_baseline=bool(baseline)),
        "baseline_model": _result(baseline),
    }
    if config.evaluation.engine == "tfma":
        return TfmaEvaluator(example_splits=["eval"], **given)
    ranking = component_inputs.ranking_settings(config)
    ranked = inputs if config.evaluation.ranked else {}
    return Evaluator(code_fingerprint=code_fingerprint(config, "evaluator"), ranking=ranking, **given, **ranked)


def _trainer_class(target: RunTarget) -> Any:
    if target.vertex_job is None:
        return EmbeddingTrainer
    from components.trainer.vertex import VertexEmbeddingTrainer  # it loads Google's clients

    return VertexEmbeddingTrainer


def _result(importers: Sequence[BaseNode]) -> types.BaseChannel | None:
    return importers[0].outputs["result"] if importers else None


def imported(name: str, uri: str | None, artifact_type: type[types.Artifact]) -> list[BaseNode]:
    """Return a list with the Importer of an artifact of a previous run; empty if `uri` is None."""
    return [] if uri is None else [Importer(source_uri=uri, artifact_type=artifact_type).with_id(name)]
