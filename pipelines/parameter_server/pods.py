"""Describes the cluster of parameter servers and workers: pools of a Vertex CustomJob, and manifests for Kubernetes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import NamedTuple

from embedding_core.errors import ConfigError
from pipelines.cluster.kubeflow_spec import Spec, kubernetes_name
from pipelines.config import PipelineConfig, Resources
from pipelines.parameter_server.keys import ClusterKeys, TrainingCluster

_PORT = 2222
_LONGEST_NAME = 45  # with "-worker", a number and the digest of a StatefulSet's revision: at most 63 letters
_SERVE = "exec python -m embedding_core.parameter_server.worker"


class ClusterPods(NamedTuple):
    """See `TrainerPods`.

    Attributes:
      name: name of the pipeline on Kubernetes.
      cluster: sizes, machine and resources.
      image: image of the pods.
    """

    name: str
    cluster: TrainingCluster
    image: str

    def vertex_pools(self, container: Spec) -> list[Spec]:
        """Return the worker pools in Vertex' order: the chief, the workers, the parameter servers.

        Vertex sets TF_CONFIG in each container from these pools.
        """
        machine = {"machine_type": self.cluster.machine_type}
        return [
            {"machine_spec": dict(machine), "replica_count": count, "container_spec": dict(container)}
            for count in (1, self.cluster.workers, self.cluster.servers)
        ]

    def kubernetes_documents(self, spec: Spec, executor: str) -> list[Spec]:
        """Give the trainer its TF_CONFIG, and label its pod, so that the chief's Service finds it."""
        spec = copy.deepcopy(spec)
        task = {"cluster": self.addresses(), "task": {"type": "chief", "index": 0}}
        container = spec["deploymentSpec"]["executors"][executor]["container"]
        container["env"] = [*container["env"], {"name": "TF_CONFIG", "value": json.dumps(task, sort_keys=True)}]
        labels = {"podMetadata": {"labels": _labels(self.name, "chief")}}
        return [spec, {"platforms": {"kubernetes": {"deploymentSpec": {"executors": {executor: labels}}}}}]

    def manifests(self, env: Mapping[str, str]) -> list[Spec]:
        """Make a Service of each kind of task, and the pods of workers and servers."""
        pods = [
            ("worker", self.cluster.workers, self.cluster.worker),
            ("ps", self.cluster.servers, self.cluster.server),
        ]
        services = [_service(self.name, kind) for kind in ("chief", "worker", "ps")]
        env = {**env, "CLUSTER": json.dumps(self.addresses(), sort_keys=True)}
        return [*services, *(_stateful_set(self.name, *pod, self.image, env) for pod in pods)]

    def addresses(self) -> dict[str, list[str]]:
        """Return the address of each task on Kubernetes, in the namespace of the pods."""

        def pods(kind: str, count: int) -> list[str]:
            return [f"{self.name}-{kind}-{number}.{self.name}-{kind}:{_PORT}" for number in range(count)]

        return {
            "chief": [f"{self.name}-chief:{_PORT}"],
            "worker": pods("worker", self.cluster.workers),
            "ps": pods("ps", self.cluster.servers),
        }


def trainer_pods(config: PipelineConfig) -> ClusterPods | None:
    """Return the cluster of parameter servers that the trainer needs; None if it trains by itself.

    Raises:
      ConfigError: strategy and cluster are not given together, or Kubernetes would refuse the pipeline's name.
    """
    backend, strategy = config.kubeflow, config.training.strategy
    cluster = backend.cluster if isinstance(backend, ClusterKeys) else None
    if strategy == "parameter_server" and cluster is None:
        raise ConfigError(
            "`kubeflow.cluster` is null, but `training.strategy` is 'parameter_server': give the numbers of workers "
            "and servers, such as {workers: 4, servers: 2}."
        )
    if strategy != "parameter_server" and cluster is not None:
        raise ConfigError(
            f"`kubeflow.cluster` is given, but `training.strategy` is {strategy!r}: leave it out, or "
            "train with strategy parameter_server."
        )
    if backend is None or cluster is None:
        return None
    name = kubernetes_name(config.name)
    if not name[0].isalpha() or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"`name` is {config.name!r}, which is {name!r} in Kubernetes: for a cluster of parameter servers it must "
            f"begin with a letter there and have at most {_LONGEST_NAME} characters; give another name."
        )
    return ClusterPods(name, cluster, backend.image)


def _labels(name: str, kind: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/component": kind}


def _service(name: str, kind: str) -> Spec:
    """Return a headless Service, whose names are known before the pods are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-{kind}", "labels": _labels(name, kind)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(name, kind),
            "ports": [{"name": "grpc", "port": _PORT}],
        },
    }


def _stateful_set(name: str, kind: str, count: int, resources: Resources, image: str, env: Mapping[str, str]) -> Spec:
    """Return pods with fixed names; each finds its number at the end of its name, and is started again if it ends."""
    config = f'{{\\"cluster\\": $CLUSTER, \\"task\\": {{\\"type\\": \\"{kind}\\", \\"index\\": ${{HOSTNAME##*-}}}}}}'
    wanted = {"cpu": resources.cpu, "memory": resources.memory_gb and f"{resources.memory_gb:g}G"}
    container = {
        "name": kind,
        "image": image,
        "command": ["sh", "-c", f'export TF_CONFIG="{config}"; {_SERVE}'],
        "env": [{"name": key, "value": value} for key, value in sorted(env.items())],
        "ports": [{"name": "grpc", "containerPort": _PORT}],
        "resources": {"requests": {key: value for key, value in wanted.items() if value is not None}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"{name}-{kind}", "labels": _labels(name, kind)},
        "spec": {
            "serviceName": f"{name}-{kind}",
            "replicas": count,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _labels(name, kind)},
            "template": {"metadata": {"labels": _labels(name, kind)}, "spec": {"containers": [container]}},
        },
    }
