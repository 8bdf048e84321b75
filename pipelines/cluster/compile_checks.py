"""Checks, before TensorFlow or TFX is imported, what would keep a pipeline from being compiled for a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from embedding_core.errors import ConfigError
from pipelines.cluster.kubeflow_spec import kubernetes_name
from pipelines.cluster.tpu_request import TpuRequest, tpu_request
from pipelines.config import Kubeflow, PipelineConfig
from pipelines.config.paths import is_address

Target: TypeAlias = Literal["vertex", "kubeflow"]


def check_compile(config: PipelineConfig, target: Target) -> Kubeflow:
    """Check what would keep the pipeline from being compiled for the target.

    Returns:
      The section `kubeflow`.

    Raises:
      ConfigError: the section is missing, an address is of this machine alone, a task does not exist, or a TPU is
        asked for that the target does not have, or in two ways that do not agree.
    """
    backend = config.kubeflow
    if backend is None:
        raise ConfigError(
            "`kubeflow` is null: give the section at least `image` and `pipeline_root`, such as "
            "{image: region-docker.pkg.dev/project/repository/tfx-embeddings:0.1.0, pipeline_root: gs://bucket/root}."
        )
    _check_addresses(config)
    _check_parts(config)
    kubernetes_name(config.name)
    known = tuple(task_names(config))
    for task in backend.resources:
        if task not in known:
            raise ConfigError(f"`kubeflow.resources.{task}` is for no task: choose from {', '.join(sorted(known))}.")
    tpu = requested_tpu(config, backend)
    if tpu is not None and target == "vertex":
        _check_vertex_job(backend, tpu)
    elif tpu is not None:
        tpu.node_selector()
    return backend


def _check_addresses(config: PipelineConfig) -> None:
    """Every address must mean the same in all containers; words such as "pushed" need this machine's metadata."""
    given = {
        "data.path": config.data.path,
        "push.destination": config.push_destination,
        "warm_start.checkpoint": config.warm_start.checkpoint if config.warm_start else None,
        "vocabulary_evolution.base": config.vocabulary_evolution.base if config.vocabulary_evolution else None,
        "evaluation.baseline": config.evaluation.baseline,
    }
    wrong = [(key, value) for key, value in given.items() if value is not None and not is_address(value)]
    if wrong:
        raise ConfigError(
            "\n".join(
                f"`{key}` is {value!r}: the tasks run in containers that do not see this machine; give an address such "
                "as gs://bucket/folder."
                for key, value in wrong
            )
        )


def _check_parts(config: PipelineConfig) -> None:
    """VocabularyGen would refuse it too, on the cluster."""
    for name, limits in config.vocabularies.items():
        if config.vocabulary_evolution is not None and limits.parts > 1:
            raise ConfigError(
                f"`vocabularies.{name}.parts` is {limits.parts}, but by `vocabulary_evolution` the vocabulary comes "
                "out of an earlier one, which one worker has to hold: leave out one of the two."
            )


def task_names(config: PipelineConfig) -> Iterator[str]:
    """The tasks of the compiled pipeline that run in a container."""
    yield from ("ExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "Transform", "VocabularyGen")
    yield "TableConfigGen"
    if config.warm_start is not None:
        yield "CheckpointLoader"
    yield from ("EmbeddingTrainer", "CheckpointRetriever", "QualityGate", "Evaluator", "EmbeddingPusher")


def requested_tpu(config: PipelineConfig, backend: Kubeflow) -> TpuRequest | None:
    """The TPU that the trainer needs; None if it trains on CPUs or GPUs.

    Raises:
      ConfigError: there is no such TPU, or it is asked for in two ways that do not agree.
    """
    training = config.training
    if training.strategy != "tpu":
        for key in ("tpu_topology", "machine_type", "tpu_image"):
            if getattr(backend, key) is not None:
                raise ConfigError(
                    f"`kubeflow.{key}` is {getattr(backend, key)!r}, but `training.strategy` is {training.strategy!r}: "
                    "leave it out, or train with strategy tpu."
                )
        return None
    if training.topology is None:
        raise ConfigError(
            "`training.topology` is null, but `training.strategy` is 'tpu': name the slice, such as v5e-4."
        )
    return tpu_request(training.topology, machine_type=backend.machine_type, topology=backend.tpu_topology)


def _check_vertex_job(backend: Kubeflow, tpu: TpuRequest) -> None:
    for key in ("project", "region"):
        if getattr(backend, key) is None:
            raise ConfigError(f"`kubeflow.{key}` is null: a training job on a TPU of Vertex AI needs it.")
    tpu.vertex_machine()
