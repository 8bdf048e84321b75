"""Compiles the configured pipeline for Vertex AI Pipelines or open-source Kubeflow Pipelines v2 (schema 2.1).

The pipeline is the one that runs on a laptop, with the addresses of `kubeflow` instead of the work_dir, and with
parameters whose values are given when a run starts. It never has a Resolver (see `embedding_pipeline`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tfx import v1 as tfx

from pipelines.cluster.compile_checks import Target, TpuRequest, check_compile, requested_pods, requested_tpu
from pipelines.cluster.kubeflow_spec import (
    Spec,
    check_spec,
    kubernetes_name,
    tpu_document,
    with_containers,
    with_defaults,
    with_kubernetes_names,
)
from pipelines.config import Kubeflow, PipelineConfig
from pipelines.config.loading import yaml_documents
from pipelines.config.sections import data_location, eval_pattern
from pipelines.console.terminal import write_output
from pipelines.pipeline.embedding_pipeline import create_pipeline
from pipelines.pipeline.gates import Gate, gates
from pipelines.pipeline.run_target import PreviousRun, RunTarget, beam_args

_TRAINER = "EmbeddingTrainer"
_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1"}
Parameters: TypeAlias = Mapping[str, Any]
"""TFX's runtime parameters by name."""

_COMMAND = ("python", "-m", "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor")


def compile_pipeline(config: PipelineConfig, target: Target) -> list[Spec]:
    """Compile the pipeline.

    Args:
      config: with the section `kubeflow`.
      target: "vertex", or "kubeflow" for open-source Kubeflow Pipelines.

    Returns:
      The YAML documents: the specification, and on Kubernetes the settings of pods if the trainer needs them.

    Raises:
      ConfigError: see `check_compile`.
    """
    backend = check_compile(config, target)
    tpu = requested_tpu(config, backend)
    pods = requested_pods(config)
    job = None
    if target == "vertex" and tpu is not None:  # one replica drives all hosts of the slice
        pool = {"machine_spec": tpu.vertex_machine(), "replica_count": 1}
        job = _vertex_job(backend, [{**pool, "container_spec": _container(backend.tpu_image or backend.image)}])
    elif target == "vertex" and pods is not None:
        job = _vertex_job(backend, pods.vertex_pools(_container(backend.image)))
    parameters = _parameters(config, backend)
    pipeline = create_pipeline(config, previous=_previous(parameters), target=_target(config, backend, parameters, job))
    spec = _compiled(pipeline, _images(backend, tpu))
    defaults = {name: (parameter.default, parameter.description) for name, parameter in parameters.items()}
    spec = with_defaults(spec, defaults, backend.pipeline_root)
    on_gke = tpu if target == "kubeflow" else None
    spec = with_containers(spec, _ENVIRONMENT, _resources(backend, on_gke))
    documents = [spec]
    if target == "kubeflow":
        spec, executor = with_kubernetes_names(spec), f"exec-{kubernetes_name(_TRAINER)}"
        documents = [spec] if pods is None else pods.kubernetes_documents(spec, executor)
        if on_gke is not None:
            documents.append(tpu_document(executor, on_gke.node_selector()))
    check_spec(documents[0])
    return documents


def save_documents(documents: Sequence[Spec], path: str | os.PathLike[str]) -> None:
    """Write the documents into one YAML file; equal documents give equal bytes. See `write_output` for errors."""
    write_output("--out", path, yaml_documents(documents))


def compile_cluster(config: PipelineConfig) -> list[Spec]:
    """Make the Kubernetes objects of further machines that the trainer needs; empty without any.

    Raises:
      ConfigError: see `requested_pods`.
    """
    pods = requested_pods(config)
    return [] if pods is None else pods.manifests(_ENVIRONMENT)


def _container(image: str) -> Spec:
    return {"image_uri": image, "env": [{"name": name, "value": value} for name, value in _ENVIRONMENT.items()]}


def _vertex_job(backend: Kubeflow, pools: list[Spec]) -> Spec:
    """Describe the job of `VertexEmbeddingTrainer`."""
    job: Spec = {"project": backend.project, "worker_pool_specs": pools}
    if backend.service_account is not None:
        job["service_account"] = backend.service_account
    cloud = tfx.extensions.google_cloud_ai_platform
    return {
        cloud.ENABLE_VERTEX_KEY: True,
        cloud.VERTEX_REGION_KEY: backend.region,
        cloud.TRAINING_ARGS_KEY: job,
    }


def _parameters(config: PipelineConfig, backend: Kubeflow) -> Parameters:
    """Return the values that can be given when a run starts, with the configuration's values as defaults."""
    base, pattern = data_location(config.data)
    judged = eval_pattern(config.data)
    files = pattern if judged is None else f"{pattern}, and for evaluation {judged}"
    given: list[tuple[str, type[str | int], str | int | None, str]] = [
        ("data_folder", str, base, f"folder of the data; the files in it are {files}"),
        ("push_destination", str, config.push_destination, "folder of the served versions"),
        (
            "resume_folder",
            str,
            f"{backend.pipeline_root.rstrip('/')}/resume",
            "folder of the checkpoints of a training",
        ),
        ("training_steps", int, config.training.steps or 0, "number of batches to train on; 0 is as configured"),
    ]
    if config.data.has_spans:
        given.append(
            ("data_spans", str, "", "first and last span to read, as <first>/<last>; an empty side is as configured")
        )
    if config.warm_start is not None:
        checkpoint = config.warm_start.checkpoint
        given.append(("warm_start", str, checkpoint, "EmbeddingCheckpoint that the tables start from"))
    if config.vocabulary_evolution is not None:
        vocabularies = config.vocabulary_evolution.base
        given.append(("base_vocabularies", str, vocabularies, "Vocabularies that the new ones come out of"))
    if config.evaluation.baseline is not None:
        given.append(("baseline", str, config.evaluation.baseline, "Model that the evaluation compares with"))
    for gate in gates():
        if (version := gate.version(config)) is not None:
            given.append((_parameter(gate), str, version, f"version that {gate.node} compares with"))
    parameter = tfx.dsl.experimental.RuntimeParameter
    return {
        name: parameter(name=name, ptype=kind, default=value, description=text) for name, kind, value, text in given
    }


def _parameter(gate: Gate) -> str:
    """Name the parameter with the version that a gate compares with."""
    return gate.compares_with.replace(".", "_")


def _previous(parameters: Parameters) -> PreviousRun:
    return PreviousRun(
        checkpoint=parameters.get("warm_start"),
        vocabularies=parameters.get("base_vocabularies"),
        baseline=parameters.get("baseline"),
        versions={gate.compares_with: parameters[name] for gate in gates() if (name := _parameter(gate)) in parameters},
    )


def _target(config: PipelineConfig, backend: Kubeflow, parameters: Parameters, job: Spec | None) -> RunTarget:
    return RunTarget(
        name=kubernetes_name(config.name),
        root=backend.pipeline_root,
        input_base=parameters["data_folder"],
        push_destination=parameters["push_destination"],
        resume_dir=parameters["resume_folder"],
        beam_args=backend.beam_args or beam_args(config),
        spans=parameters.get("data_spans"),
        training_steps=parameters["training_steps"],
        vertex_job=job,
    )


def _images(backend: Kubeflow, tpu: TpuRequest | None) -> dict[str, str]:
    images = {"default_image_path": backend.image}
    return images if tpu is None or backend.tpu_image is None else {**images, _TRAINER: backend.tpu_image}


def _resources(backend: Kubeflow, tpu: TpuRequest | None) -> dict[str, Spec]:
    resources: dict[str, Spec] = {}
    for task, wanted in backend.resources.items():
        limits = {"cpuLimit": wanted.cpu, "memoryLimit": wanted.memory_gb}
        resources[task] = {key: value for key, value in limits.items() if value is not None}
    if tpu is not None:
        accelerator = {"type": "google.com/tpu", "count": str(tpu.chips_per_host)}
        resources.setdefault(_TRAINER, {})["accelerator"] = accelerator
    return resources


def _compiled(pipeline: Any, images: dict[str, str]) -> Spec:
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image=images, default_commands=list(_COMMAND), use_pipeline_spec_2_1=True
        )
    )
    spec: Spec = runner.run(pipeline, write_out=False)["pipelineSpec"]
    return spec
