"""What is done to the pipeline specification that TFX compiles: plain dictionaries in, plain dictionaries out.

A specification (schema 2.1) has `root.dag.tasks`, `components` and `deploymentSpec.executors`; open-source Kubeflow
Pipelines reads a second document beside it, for what only Kubernetes knows.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from embedding_core.errors import ConfigError

__all__ = ["check_spec", "kubernetes_name", "tpu_document", "with_containers", "with_defaults", "with_kubernetes_names"]

Spec = dict[str, Any]
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def kubernetes_name(name: str) -> str:
    """The name as Kubernetes takes it: "EmbeddingTrainer" is "embedding-trainer".

    Raises:
      ConfigError: nothing of it can stand there, or it is too long.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    words = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    if not _KUBERNETES_NAME.fullmatch(words):
        raise ConfigError(f"the name {name!r} is {words!r} in Kubernetes: it must have 1 to 63 letters and digits.")
    return words


def with_defaults(spec: Spec, parameters: Mapping[str, tuple[Any, str]], root: str) -> Spec:
    """The specification with the default and description of every runtime parameter, and its root folder.

    TFX leaves them out, so that whoever starts a run would have to give all of them.

    Args:
      spec: as TFX compiled it.
      parameters: default and description by name; those that the specification does not read are left out.
      root: default of the pipeline root.
    """
    spec = {**copy.deepcopy(spec), "defaultPipelineRoot": root}
    for name, definition in spec["root"].get("inputDefinitions", {}).get("parameters", {}).items():
        default, description = parameters[name]
        definition.update(defaultValue=default, description=description, isOptional=True)
    return spec


def with_containers(spec: Spec, env: Mapping[str, str], resources: Mapping[str, Mapping[str, Any]]) -> Spec:
    """The specification with environment variables in every container, and resources by task.

    Raises:
      ConfigError: resources are for no container.
    """
    spec = copy.deepcopy(spec)
    containers = dict(_containers(spec))
    for container in containers.values():
        container["env"] = [{"name": name, "value": value} for name, value in sorted(env.items())]
    for task, wanted in resources.items():
        if task not in containers:
            raise ConfigError(
                f"`kubeflow.resources.{task}` is for no task: choose from {', '.join(sorted(containers))}."
            )
        containers[task].setdefault("resources", {}).update(wanted)
    return spec


def _containers(spec: Spec) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task that starts a container, by name."""
    executors = spec["deploymentSpec"]["executors"]
    for task, given in spec["root"]["dag"]["tasks"].items():
        executor = executors[spec["components"][given["componentRef"]["name"]]["executorLabel"]]
        if "container" in executor:
            yield task, executor["container"]


def with_kubernetes_names(spec: Spec) -> Spec:
    """The specification for open-source Kubeflow Pipelines.

    Its backend uses names of tasks and components for Kubernetes objects as they are, and knows neither resolvers nor
    a driver before the cache: a task that has one (an ExampleGen) is not taken from the cache, which would not see
    that a file has changed.

    Raises:
      ConfigError: the specification has a resolver.
    """
    spec = copy.deepcopy(spec)
    executors = spec["deploymentSpec"]["executors"]
    tasks: dict[str, Any] = {}
    components: dict[str, Any] = {}
    renamed: dict[str, Any] = {}
    for name, task in spec["root"]["dag"]["tasks"].items():
        new = kubernetes_name(name)
        component = spec["components"][task["componentRef"]["name"]]
        executor = executors[component["executorLabel"]]
        if "resolver" in executor:
            raise ConfigError(f"task {name!r} is a resolver, which Kubeflow Pipelines does not have: use an Importer.")
        if executor.get("container", {}).pop("lifecycle", None) is not None:
            task.pop("cachingOptions", None)
        tasks[new] = _with_new_names(task, new)
        components[f"comp-{new}"] = {**component, "executorLabel": f"exec-{new}"}
        renamed[f"exec-{new}"] = executor
    spec["root"]["dag"]["tasks"] = tasks
    return {**spec, "components": components, "deploymentSpec": {"executors": renamed}}


def _with_new_names(task: Mapping[str, Any], name: str) -> dict[str, Any]:
    task = {**task, "taskInfo": {"name": name}, "componentRef": {"name": f"comp-{name}"}}
    if "dependentTasks" in task:
        task["dependentTasks"] = sorted(map(kubernetes_name, task["dependentTasks"]))
    for source in task.get("inputs", {}).get("artifacts", {}).values():
        output = source["taskOutputArtifact"]
        output["producerTask"] = kubernetes_name(output["producerTask"])
    return task


def tpu_document(executor: str, node_selector: Mapping[str, str]) -> Spec:
    """The second document: on which nodes the executor's pod may run. GKE keeps others off its TPU nodes by a taint."""
    placed = {
        "nodeSelector": {"labels": dict(node_selector)},
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": {executor: placed}}}}}


def check_spec(spec: Spec) -> None:
    """Check that everything a name points at is there.

    Raises:
      ConfigError: naming what is not.
    """
    tasks, components = spec["root"]["dag"]["tasks"], spec["components"]
    parameters = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    missing = [
        f"task {name!r} has no component"
        for name, task in tasks.items()
        if task["componentRef"]["name"] not in components
    ]
    executors = spec["deploymentSpec"]["executors"]
    missing += [
        f"component {name!r} has no executor"
        for name, one in components.items()
        if one["executorLabel"] not in executors
    ]
    for name, task in tasks.items():
        missing += [
            f"task {name!r} reads {what}, which is not there" for what in _dangling(task, tasks, components, parameters)
        ]
    if missing:
        raise ConfigError(f"the compiled pipeline does not hold together: {'; '.join(missing)}.")


def _dangling(
    task: Mapping[str, Any],
    tasks: Mapping[str, Any],
    components: Mapping[str, Any],
    parameters: Sequence[str] | Mapping[str, Any],
) -> Iterator[str]:
    for given in task.get("inputs", {}).get("parameters", {}).values():
        name = given.get("componentInputParameter")
        if name is not None and name not in parameters:
            yield f"the parameter {name!r}"
    for given in task.get("inputs", {}).get("artifacts", {}).values():
        output = given["taskOutputArtifact"]
        producer = tasks.get(output["producerTask"])
        made = components[producer["componentRef"]["name"]]["outputDefinitions"]["artifacts"] if producer else {}
        if output["outputArtifactKey"] not in made:
            yield f"{output['outputArtifactKey']!r} of {output['producerTask']!r}"
