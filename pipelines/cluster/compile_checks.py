"""Checks whether a pipeline can be compiled for a cluster, and translates TPU slices for Vertex AI and GKE.

This is done before TensorFlow or TFX is imported. The machines, labels and topologies are from the documentation of
Cloud TPU, Vertex AI and GKE on planning TPUs. GKE counts chips; a slice's name counts cores for v2 to v5p (two in a
chip) and chips for v5e and v6e.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from embedding_core.errors import ConfigError
from embedding_core.planning.topology import named_topology
from embedding_core.rooms import hooks
from pipelines.cluster.kubeflow_spec import Spec, kubernetes_name
from pipelines.config import Kubeflow, PipelineConfig
from pipelines.config.sections import is_address
from pipelines.pipeline.gates import gates


class _Machines(NamedTuple):
    cores_per_chip: int  # by how much one chip raises the number in a slice's name
    machine: Mapping[int, str]  # chips of one host -> machine type
    label: str | None  # value of cloud.google.com/gke-tpu-accelerator; None if GKE does not offer these TPUs
    cube: bool  # whether its topology has three dimensions


_MACHINES: Mapping[str, _Machines] = {
    "v2": _Machines(2, {4: "cloud-tpu"}, None, False),
    "v3": _Machines(2, {4: "ct3-hightpu-4t"}, "tpu-v3-device", False),
    "v4": _Machines(2, {4: "ct4p-hightpu-4t"}, "tpu-v4-podslice", True),
    "v5e": _Machines(1, {chips: f"ct5lp-hightpu-{chips}t" for chips in (1, 4, 8)}, "tpu-v5-lite-podslice", False),
    "v5p": _Machines(2, {4: "ct5p-hightpu-4t"}, "tpu-v5p-slice", True),
    "v6e": _Machines(1, {chips: f"ct6e-standard-{chips}t" for chips in (1, 4, 8)}, "tpu-v6e-slice", False),
}
_VERTEX_TYPES = {"v2": "TPU_V2", "v3": "TPU_V3"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuRequest:
    """A TPU slice in the terms of Vertex AI and GKE.

    Attributes:
      name: name of the slice, such as "v5e-4".
      hosts: number of its machines.
      cores: number of its cores, as the slice's name counts them.
      chips_per_host: number of TPU chips of each machine; the resource `google.com/tpu` on GKE.
      machine_type: machine type of each host.
      topology: arrangement of the chips as GKE and Vertex write it, such as "2x2" or "2x2x1".
      label: GKE's name of the accelerator, or None if GKE does not offer it.
    """

    name: str
    hosts: int
    cores: int
    chips_per_host: int
    machine_type: str
    topology: str
    label: str | None

    def vertex_machine(self) -> dict[str, str | int]:
        """Return the `machine_spec` of a Vertex worker pool.

        Raises:
          ConfigError: the slice has several hosts of v2 or v3, which Vertex does not offer.
        """
        kind = _VERTEX_TYPES.get(self.name.partition("-")[0])
        if kind is None:
            return {"machine_type": self.machine_type, "tpu_topology": self.topology}
        if self.hosts > 1:
            raise ConfigError(
                f"`training.topology` is {self.name!r}: Vertex AI names no accelerator for more than one host of "
                "v2 or v3; take v3-8, or a slice of v4, v5e, v5p or v6e."
            )
        return {"machine_type": "cloud-tpu", "accelerator_type": kind, "accelerator_count": self.cores}

    def node_selector(self) -> dict[str, str]:
        """Return the labels of GKE's node pool for this slice.

        Raises:
          ConfigError: GKE does not offer these TPUs, or the slice has several hosts.
        """
        if self.label is None:
            raise ConfigError(f"`training.topology` is {self.name!r}: GKE has no such nodes; take v3 or later.")
        if self.hosts > 1:
            raise ConfigError(
                f"`training.topology` is {self.name!r}, {self.hosts} hosts: a task of Kubeflow Pipelines is one pod, "
                "so one host; take a slice of one host, or compile for vertex."
            )
        labels = {"cloud.google.com/gke-tpu-accelerator": self.label}
        if self.chips_per_host > 1:
            labels["cloud.google.com/gke-tpu-topology"] = self.topology
        return labels


def tpu_request(name: str, *, machine_type: str | None = None, topology: str | None = None) -> TpuRequest:
    """Return the request for a slice, and check that the settings of `kubeflow` agree with it.

    Args:
      name: name of the slice, as in `training.topology`.
      machine_type: `kubeflow.machine_type`, which must be that of the slice; None is not checked.
      topology: `kubeflow.tpu_topology`, which must be that of the slice. None takes the default arrangement, which
        exists only if the number of chips is a power of two.

    Raises:
      ConfigError: the slice is unknown or needs a topology, or `machine_type` or `topology` contradicts it.
    """
    slice_ = named_topology(name)
    generation, _, size = slice_.name.replace("v5litepod", "v5e").partition("-")
    machines = _MACHINES[generation]
    chips = int(size) // machines.cores_per_chip
    per_host = chips // slice_.hosts
    dimensions = 3 if machines.cube else 2
    if chips & (chips - 1):
        arrangement = _given_topology(slice_.name, chips, dimensions, topology)
    else:
        arrangement = _default_topology(chips, dimensions)
    request = TpuRequest(
        name=f"{generation}-{size}",
        hosts=slice_.hosts,
        cores=int(size),
        chips_per_host=per_host,
        machine_type=machines.machine[per_host],
        topology=arrangement,
        label=machines.label,
    )
    _check_same(request, machine_type, topology)
    return request


def _default_topology(chips: int, dimensions: int) -> str:
    """Return the topology of 2**n chips: sides as equal as possible, shorter ones first (except 2x2x1)."""
    if dimensions == 3 and chips == 4:
        return "2x2x1"
    sides = [1] * dimensions
    for step in range(chips.bit_length() - 1):
        sides[dimensions - 1 - step % dimensions] *= 2
    return "x".join(map(str, sides))


def _given_topology(name: str, chips: int, dimensions: int, given: str | None) -> str:
    """Return the given topology, and check it: this number of chips can be arranged in several ways."""
    if given is None or math.prod(given_sides := _sides(given)) != chips or len(given_sides) != dimensions:
        raise ConfigError(
            f"`training.topology` is {name!r}, {chips} chips, which can be arranged in several ways: set "
            f"`kubeflow.tpu_topology` to {dimensions} numbers whose product is {chips}, as Google Cloud lists them."
        )
    return given


def _sides(topology: str) -> list[int]:
    return sorted(int(side) for side in re.findall(r"\d+", topology))


def _check_same(request: TpuRequest, machine_type: str | None, topology: str | None) -> None:
    if topology is not None and _sides(topology) != _sides(request.topology):
        raise ConfigError(
            f"`kubeflow.tpu_topology` is {topology!r}, but `training.topology` {request.name!r} is {request.topology}: "
            "leave it out, or correct one of the two."
        )
    machines = {request.machine_type, *(["cloud-tpu"] if request.name.partition("-")[0] in _VERTEX_TYPES else [])}
    if machine_type is not None and machine_type not in machines:
        raise ConfigError(
            f"`kubeflow.machine_type` is {machine_type!r}, but the hosts of `training.topology` {request.name!r} are "
            f"{request.machine_type!r}: leave it out, or correct one of the two."
        )


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
    wrong = [(key, value) for key, value in config.addresses.items() if not is_address(value)]
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
