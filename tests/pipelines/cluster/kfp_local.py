"""Runs a compiled pipeline on this machine, task by task, as a Kubeflow backend would start its containers.

Each task is a separate process: the command line of its container, with `{{$}}` replaced by an ExecutorInput that names
inputs, parameters and output folders. Tasks share only files: the metadata of a task's outputs is read from the file
that the task writes, and passed to later tasks. This finds errors that a run in one process hides: output folders that
nobody creates, integers that arrive as floats, artifact types that cannot be imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, TypeAlias

import yaml

from embedding_core.errors import ConfigError, DataError

Json: TypeAlias = Mapping[str, Any]
Artifact: TypeAlias = dict[str, Any]
Outputs: TypeAlias = dict[str, dict[str, Artifact]]
"""The artifacts by task and output key; each has `uri`, `metadata`, `name` and `type`."""

_INPUT = "{{$}}"


@dataclasses.dataclass(frozen=True)
class _Run:
    """One run: the specification, its root folder, the values of its parameters, and the outputs of finished tasks."""

    spec: Json
    root: str
    parameters: Json
    outputs: Outputs

    def component(self, task: str) -> Json:
        name = self.spec["root"]["dag"]["tasks"][task]["componentRef"]["name"]
        component: Json = self.spec["components"][name]
        return component

    def executor(self, task: str) -> Json:
        executor: Json = self.spec["deploymentSpec"]["executors"][self.component(task)["executorLabel"]]
        return executor


def load_spec(path: str | os.PathLike[str]) -> Json:
    """Read the pipeline specification: the first document of a compiled YAML file; the Kubernetes document is ignored.

    Raises:
      DataError: the file cannot be read, or is not a compiled pipeline.
    """
    try:
        with open(path, encoding="utf-8") as file:
            spec = next(yaml.safe_load_all(file), None)
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"{os.fspath(path)!r} cannot be read as YAML: {error}; compile the pipeline again.") from error
    if not isinstance(spec, dict) or "deploymentSpec" not in spec:
        raise DataError(f"{os.fspath(path)!r} is not a compiled pipeline: write it with `tfx-embeddings compile`.")
    return spec


def run_compiled(
    spec: Json,
    root: str,
    parameters: Json | None = None,
    *,
    python: str = sys.executable,
    log: Callable[[str], None] = print,
) -> Outputs:
    """Run all tasks in the order of their dependencies, and return their outputs.

    Args:
      spec: the specification.
      root: folder in which every task has a folder with its outputs and its log.
      parameters: values of runtime parameters that replace their defaults.
      python: interpreter that replaces the image's `python`.
      log: called with a line for each task.

    Raises:
      ConfigError: a parameter is unknown.
      DataError: a task failed; the message names its log.
    """
    values = _parameters(spec, parameters or {})
    run = _Run(spec, os.path.abspath(root), values, {})
    tasks = spec["root"]["dag"]["tasks"]
    order = TopologicalSorter({name: task.get("dependentTasks", ()) for name, task in tasks.items()}).static_order()
    for task in order:
        started = time.monotonic()
        executor = run.executor(task)
        made = (
            _import(run, task) if "importer" in executor else _run_container(run, task, executor["container"], python)
        )
        run.outputs[task] = made
        log(f"{task}: {time.monotonic() - started:.1f} s")
    return run.outputs


def _parameters(spec: Json, given: Json) -> Json:
    known = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown parameter {name!r}: choose from {', '.join(sorted(known))}.")
    return {**{name: one.get("defaultValue") for name, one in known.items()}, **given}


def _values(run: _Run, task: str) -> Json:
    """Return the values of the task's parameters: constants, and parameters of the pipeline."""
    wanted = run.spec["root"]["dag"]["tasks"][task].get("inputs", {}).get("parameters", {})
    return {
        name: run.parameters[one["componentInputParameter"]]
        if "componentInputParameter" in one
        else one["runtimeValue"]["constant"]
        for name, one in wanted.items()
    }


def _import(run: _Run, task: str) -> dict[str, Artifact]:
    importer = run.executor(task)["importer"]
    source = importer["artifactUri"]
    uri = _values(run, task)[source["runtimeParameter"]] if "runtimeParameter" in source else source["constant"]
    (key,) = run.component(task)["outputDefinitions"]["artifacts"]
    return {key: _artifact(task, key, uri, importer["typeSchema"], importer.get("metadata", {}))}


def _artifact(task: str, key: str, uri: str, kind: Json, metadata: Json) -> Artifact:
    number = int(hashlib.sha256(uri.encode()).hexdigest()[:12], 16)
    return {"name": f"{task}/{key}/{number}", "uri": uri, "type": dict(kind), "metadata": dict(metadata)}


def _run_container(run: _Run, task: str, container: Json, python: str) -> dict[str, Artifact]:
    folder = os.path.join(run.root, task)
    os.makedirs(folder, exist_ok=True)
    request = _executor_input(run, task, folder)
    driver = container.get("lifecycle", {}).get("preCacheCheck")
    for number, one in enumerate([driver, container] if driver else [container]):
        command = [*one["command"], *one.get("args", ())]
        name = "driver" if driver and number == 0 else "executor"
        _start(command, request, python, container, os.path.join(folder, f"{name}.log"), task)
        request = _with_output_metadata(request)
    made = request["outputs"]["artifacts"]
    return {key: one["artifacts"][0] for key, one in made.items()}


def _executor_input(run: _Run, task: str, folder: str) -> Artifact:
    inputs = run.spec["root"]["dag"]["tasks"][task].get("inputs", {}).get("artifacts", {})
    sources = {name: one["taskOutputArtifact"] for name, one in inputs.items()}
    outputs = run.component(task).get("outputDefinitions", {}).get("artifacts", {})
    return {
        "inputs": {
            "parameterValues": _values(run, task),
            "artifacts": {
                name: {"artifacts": [run.outputs[one["producerTask"]][one["outputArtifactKey"]]]}
                for name, one in sources.items()
            },
        },
        "outputs": {
            # The folders are not created: executors have to do that.
            "artifacts": {
                key: {
                    "artifacts": [
                        _artifact(task, key, os.path.join(folder, key), one["artifactType"], one.get("metadata", {}))
                    ]
                }
                for key, one in outputs.items()
            },
            "outputFile": os.path.join(folder, "output_metadata.json"),
        },
    }


def _start(command: Sequence[str], request: Json, python: str, container: Json, log: str, task: str) -> None:
    text = json.dumps(request)
    filled = [python if one == "python" else one.replace(_INPUT, text) for one in command]
    given = {one["name"]: one["value"] for one in container.get("env", ())}
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run(filled, env={**os.environ, **given}, stdout=file, stderr=file, check=False)
    if done.returncode:
        with open(log, encoding="utf-8") as file:
            last = [line.strip() for line in file if line.strip()][-1:]
        raise DataError(f"task {task!r} ended with exit code {done.returncode}: {''.join(last)}; its log is {log!r}.")


def _with_output_metadata(request: Artifact) -> Artifact:
    """Update the request with the metadata and URIs that the process wrote for its outputs."""
    path = request["outputs"]["outputFile"]
    if not os.path.isfile(path):
        return request
    with open(path, encoding="utf-8") as file:
        written = json.load(file).get("artifacts", {})
    for key, one in written.items():
        artifact, update = request["outputs"]["artifacts"][key]["artifacts"][0], one["artifacts"][0]
        artifact["metadata"] = {**artifact["metadata"], **update.get("metadata", {})}
        artifact["uri"] = update.get("uri") or artifact["uri"]
    return request
