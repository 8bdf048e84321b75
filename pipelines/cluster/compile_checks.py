"""Checks whether a pipeline can be compiled for a cluster, before TensorFlow or TFX is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from embedding_core.errors import ConfigError
from embedding_core.rooms import hooks
from pipelines.cluster.kubeflow_spec import Spec, kubernetes_name
from pipelines.cluster.tpu_request import TpuRequest, tpu_request
from pipelines.config import Kubeflow, PipelineConfig
from pipelines.config.data import is_address
from pipelines.pipeline.gates import gates

Target: TypeAlias = Literal["vertex", "kubeflow"]


class TrainerPods(Protocol):
    """Machines that the trainer needs beside its own container, for a strategy of an optional room."""

    def vertex_pools(self, container: Spec) -> list[Spec]:
        """Return the worker pools of the job on Vertex AI; `container` is their `container_spec`."""

    def kubernetes_documents(self, spec: Spec, executor: str) -> list[Spec]:
        """Return the documents of a pipeline on Kubernetes; `executor` names the trainer's."""

    def manifests(self, env: Mapping[str, str]) -> list[Spec]:
        """Make the objects of Kubernetes to apply before a run; `env` is the environment of their pods."""


def check_compile(config: PipelineConfig, target: Target) -> Kubeflow:
    """Check that the pipeline can be compiled for the target.

    Returns:
      The section `kubeflow`.

    Raises:
      ConfigError: the section is missing, an address is local, a task does not exist, the target does not have the TPU,
        or two settings ask for different TPUs.
    """
    backend = config.kubeflow
    if backend is None:
        raise ConfigError(
            "`kubeflow` is null: give the section at least `image` and `pipeline_root`, such as "
            "{image: region-docker.pkg.dev/project/repository/tfx-embeddings:0.2.0, pipeline_root: gs://bucket/root}."
        )
    _check_addresses(config)
    _check_parts(config)
    kubernetes_name(config.name)
    known = task_names(config)
    for task in backend.resources:
        if task not in known:
            raise ConfigError(f"`kubeflow.resources.{task}`: unknown task; choose from {', '.join(sorted(known))}.")
    if requested_pods(config) is not None and target == "vertex":
        _check_project(backend, "a training job on a cluster of Vertex AI")
    tpu = requested_tpu(config, backend)
    if tpu is not None and target == "vertex":
        _check_vertex_job(backend, tpu)
    elif tpu is not None:
        tpu.node_selector()
    return backend


def _check_addresses(config: PipelineConfig) -> None:
    """Check that addresses mean the same in all containers; words such as "pushed" need this machine's metadata."""
    given = {
        f"{name}.{key}": getattr(section, key) for name, section in config.sections.items() for key in section.PATHS
    }
    addresses = {**given, "push.destination": config.push_destination}
    wrong = [(key, value) for key, value in addresses.items() if value is not None and not is_address(value)]
    if wrong:
        raise ConfigError(
            "\n".join(
                f"`{key}` is {value!r}: the tasks run in containers that do not see this machine; give an address such "
                "as gs://bucket/folder."
                for key, value in wrong
            )
        )


def _check_parts(config: PipelineConfig) -> None:
    """Check that evolving vocabularies have one part, which VocabularyGen would check only on the cluster."""
    for name, limits in config.vocabularies.items():
        if config.vocabulary_evolution is not None and limits.parts > 1:
            raise ConfigError(
                f"`vocabularies.{name}.parts` is {limits.parts}, but with `vocabulary_evolution` the vocabulary "
                "extends a previous one, which one worker has to hold: leave out one of the two."
            )


def task_names(config: PipelineConfig) -> list[str]:
    """Return the tasks that run in a container; a test compares them with those of `create_pipeline`."""
    before = ["ExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "Transform", "VocabularyGen"]
    loader = [] if config.warm_start is None else ["CheckpointLoader"]
    judging = [*(gate.node for gate in gates() if gate.is_on(config)), "Evaluator"]
    return [
        *before, "TableConfigGen", *loader, "EmbeddingTrainer", "CheckpointRetriever", *judging, "EmbeddingPusher",
    ]  # fmt: skip


def requested_tpu(config: PipelineConfig, backend: Kubeflow) -> TpuRequest | None:
    """Return the TPU that the trainer needs; None if it trains on CPUs or GPUs.

    Raises:
      ConfigError: the TPU is unknown, or two settings ask for different ones.
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


def requested_pods(config: PipelineConfig) -> TrainerPods | None:
    """Return the further machines that the trainer needs, which an optional room describes; None without any.

    A room has a function `trainer_pods` in its module `pods`.

    Raises:
      ConfigError: the settings of the room contradict each other.
    """
    pods: list[TrainerPods | None] = [room.trainer_pods(config) for room in hooks("pipelines", "pods")]
    return next(filter(None, pods), None)


def _check_project(backend: Kubeflow, what: str) -> None:
    for key in ("project", "region"):
        if getattr(backend, key) is None:
            raise ConfigError(f"`kubeflow.{key}` is null: {what} needs it.")


def _check_vertex_job(backend: Kubeflow, tpu: TpuRequest) -> None:
    _check_project(backend, "a training job on a TPU of Vertex AI")
    tpu.vertex_machine()
