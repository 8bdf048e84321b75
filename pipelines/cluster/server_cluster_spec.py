"""Describes the cluster of parameter servers and workers: pools of a Vertex CustomJob, and manifests for Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipelines.cluster.kubeflow_spec import Spec
from pipelines.config import Resources, TrainingCluster

_PORT = 2222
_SERVE = "exec python -m embedding_core.parameter_server.worker"


def vertex_pools(cluster: TrainingCluster, container: Spec) -> list[Spec]:
    """Return the worker pools in Vertex' order: the chief, the workers, the parameter servers.

    Vertex sets TF_CONFIG in each container from these pools.

    Args:
      cluster: sizes and machine.
      container: `container_spec` of all pools.
    """
    machine = {"machine_type": cluster.machine_type}
    return [
        {"machine_spec": dict(machine), "replica_count": count, "container_spec": dict(container)}
        for count in (1, cluster.workers, cluster.servers)
    ]


def addresses(name: str, cluster: TrainingCluster) -> dict[str, list[str]]:
    """Return the address of each task on Kubernetes, in the namespace of the pods."""

    def pods(kind: str, count: int) -> list[str]:
        return [f"{name}-{kind}-{number}.{name}-{kind}:{_PORT}" for number in range(count)]

    return {
        "chief": [f"{name}-chief:{_PORT}"],
        "worker": pods("worker", cluster.workers),
        "ps": pods("ps", cluster.servers),
    }


def chief_environment(name: str, cluster: TrainingCluster) -> dict[str, str]:
    """Return the environment of the trainer's container on Kubernetes."""
    task = {"cluster": addresses(name, cluster), "task": {"type": "chief", "index": 0}}
    return {"TF_CONFIG": json.dumps(task, sort_keys=True)}


def chief_document(executor: str, name: str) -> Spec:
    """Make the second document of the pipeline: it labels the trainer's pod, so that the chief's Service finds it."""
    labels = {"podMetadata": {"labels": _labels(name, "chief")}}
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": {executor: labels}}}}}


def manifests(name: str, cluster: TrainingCluster, image: str, env: Mapping[str, str]) -> list[Spec]:
    """Make the objects to apply before a run: a Service of each kind of task, and the pods of workers and servers.

    Args:
      name: name of the pipeline on Kubernetes.
      cluster: sizes and resources.
      image: image of the pods.
      env: environment of the pods.
    """
    pods = [("worker", cluster.workers, cluster.worker), ("ps", cluster.servers, cluster.server)]
    services = [_service(name, kind) for kind in ("chief", "worker", "ps")]
    text = json.dumps(addresses(name, cluster), sort_keys=True)
    return [*services, *(_stateful_set(name, *pod, image, {**env, "CLUSTER": text}) for pod in pods)]


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
