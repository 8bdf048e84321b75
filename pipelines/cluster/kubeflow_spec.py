"""Edits the pipeline specification that TFX compiles: plain dictionaries in, plain dictionaries out.

A specification (schema 2.1) has `root.dag.tasks`, `components` and `deploymentSpec.executors`. Open-source Kubeflow
Pipelines reads a second document with the settings of Kubernetes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeAlias

from embedding_core.errors import ConfigError

Spec: TypeAlias = dict[str, Any]
"""A specification, or a part of it."""
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def kubernetes_name(name: str) -> str:
    """Convert a name to Kubernetes' form: "EmbeddingTrainer" becomes "embedding-trainer".

    Raises:
      ConfigError: it has no letters or digits, or is too long.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    words = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    if not _KUBERNETES_NAME.fullmatch(words):
        raise ConfigError(
            f"`name` is {name!r}, which becomes {words!r} in Kubernetes: it must have 1 to 63 letters a-z or digits "
            "there; give another name."
        )
    return words


def with_defaults(spec: Spec, parameters: Mapping[str, tuple[object, str]], root: str) -> Spec:
    """Add the default and description of every runtime parameter, and the root folder.

    TFX leaves them out. Without them, a user who starts a run would have to give every value.

    Args:
      spec: as TFX compiled it.
      parameters: default and description by name; parameters that the specification does not read are left out.
      root: default of the pipeline root.
    """
    spec = {**copy.deepcopy(spec), "defaultPipelineRoot": root}
    for name, definition in spec["root"].get("inputDefinitions", {}).get("parameters", {}).items():
        default, description = parameters[name]
        definition.update(defaultValue=default, description=description, isOptional=True)
    return spec


def with_containers(spec: Spec, env: Mapping[str, str], resources: Mapping[str, Spec]) -> Spec:
    """Add environment variables to every container, and resources by task."""
    spec = copy.deepcopy(spec)
    containers = dict(_containers(spec))
    for container in containers.values():
        container["env"] = [{"name": name, "value": value} for name, value in sorted(env.items())]
    for task, wanted in resources.items():
        containers[task].setdefault("resources", {}).update(wanted)
    return spec


def _containers(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield the name and the container of every task that starts one."""
    executors = spec["deploymentSpec"]["executors"]
    for task, given in spec["root"]["dag"]["tasks"].items():
        executor = executors[spec["components"][given["componentRef"]["name"]]["executorLabel"]]
        if "container" in executor:
            yield task, executor["container"]


def with_kubernetes_names(spec: Spec) -> Spec:
    """Adapt the specification to open-source Kubeflow Pipelines.

    Its backend uses the names of tasks and components for Kubernetes objects. It has no resolvers, and looks into the
    cache before it runs a driver. So caching is turned off for a task with a driver (an ExampleGen): the cache would
    not see a changed file.

    Raises:
      ConfigError: the specification has a resolver.
    """
    spec = copy.deepcopy(spec)
    executors = spec["deploymentSpec"]["executors"]
    tasks: Spec = {}
    components: Spec = {}
    renamed: Spec = {}
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


def _with_new_names(task: Spec, name: str) -> Spec:
    task = {**task, "taskInfo": {"name": name}, "componentRef": {"name": f"comp-{name}"}}
    if "dependentTasks" in task:
        task["dependentTasks"] = sorted(map(kubernetes_name, task["dependentTasks"]))
    for source in task.get("inputs", {}).get("artifacts", {}).values():
        output = source["taskOutputArtifact"]
        output["producerTask"] = kubernetes_name(output["producerTask"])
    return task


def tpu_document(executor: str, node_selector: Mapping[str, str]) -> Spec:
    """Make the second document: it places the executor's pod on TPU nodes, which GKE taints."""
    placed = {
        "nodeSelector": {"labels": dict(node_selector)},
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": {executor: placed}}}}}


def check_spec(spec: Spec) -> None:
    """Check that every name refers to something that exists.

    Raises:
      ConfigError: some names refer to nothing; the message lists them.
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
        for name, component in components.items()
        if component["executorLabel"] not in executors
    ]
    for name, task in tasks.items():
        missing += [
            f"task {name!r} reads {what}, which does not exist"
            for what in _dangling(task, tasks, components, parameters)
        ]
    if missing:
        raise ConfigError(f"the compiled pipeline is inconsistent: {'; '.join(missing)}.")


def _dangling(
    task: Spec,
    tasks: Spec,
    components: Spec,
    parameters: Container[str],
) -> Iterator[str]:
    for given in task.get("inputs", {}).get("parameters", {}).values():
        name = given.get("componentInputParameter")
        if name is not None and name not in parameters:
            yield f"the parameter {name!r}"
    for given in task.get("inputs", {}).get("artifacts", {}).values():
        output = given["taskOutputArtifact"]
        producer = tasks.get(output["producerTask"])
        component = components.get(producer["componentRef"]["name"], {}) if producer else {}
        if output["outputArtifactKey"] not in component.get("outputDefinitions", {}).get("artifacts", {}):
            yield f"{output['outputArtifactKey']!r} of {output['producerTask']!r}"
