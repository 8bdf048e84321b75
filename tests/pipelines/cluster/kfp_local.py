"""Runs a compiled pipeline on this machine, task by task, as a Kubeflow backend would start its containers.

Each task is a separate process: the command line of its container, with `{{$}}` replaced by an ExecutorInput that names
inputs, parameters and output folders. Tasks share only files: the metadata of a task's outputs is read from the file
that the task writes, and passed to later tasks. This finds errors that a run in one process hides: output folders that
nobody creates, integers that arrive as floats, artifact types that cannot be imported.
"""

import hashlib
import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import yaml


def run_compiled(path, root, parameters, python=sys.executable):
    """Run all tasks of a compiled file in the order of their dependencies; return their artifacts by task and output.

    Each task gets a folder in `root` for its outputs and logs. `parameters` replace defaults of runtime parameters;
    `python` replaces the image's.
    """
    with open(path, encoding="utf-8") as file:
        spec = next(yaml.safe_load_all(file))
    known = spec["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) <= set(known)
    values = {**{name: parameter.get("defaultValue") for name, parameter in known.items()}, **parameters}
    run = _Run(spec, Path(root).absolute(), values, python)
    graph = {name: task.get("dependentTasks", ()) for name, task in run.tasks.items()}
    for task in TopologicalSorter(graph).static_order():
        run.run_task(task)
    return run.outputs


class _Run:
    """One run: the specification, its root folder, the values of its parameters, and the outputs of finished tasks."""

    def __init__(self, spec, root, parameters, python):
        self.spec, self.root, self.parameters, self.python, self.outputs = spec, root, parameters, python, {}
        self.tasks = spec["root"]["dag"]["tasks"]

    def run_task(self, task):
        component = self.spec["components"][self.tasks[task]["componentRef"]["name"]]
        executor = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]
        artifacts = component.get("outputDefinitions", {}).get("artifacts", {})
        if "importer" in executor:
            self.outputs[task] = self._import(task, artifacts, executor["importer"])
        else:
            self.outputs[task] = self._run_container(task, artifacts, executor["container"])

    def _import(self, task, artifacts, importer):
        source = importer["artifactUri"]
        uri = source.get("constant") or self._values(task)[source["runtimeParameter"]]
        (key,) = artifacts
        return {key: _artifact(task, key, uri, importer["typeSchema"], importer)}

    def _run_container(self, task, artifacts, container):
        folder = self.root / task
        folder.mkdir(parents=True)
        outputs = {  # executors have to make the folders
            key: {"artifacts": [_artifact(task, key, str(folder / key), artifact["artifactType"], artifact)]}
            for key, artifact in artifacts.items()
        }
        request = {
            "inputs": {"parameterValues": self._values(task), "artifacts": self._inputs(task)},
            "outputs": {"artifacts": outputs, "outputFile": str(folder / "output_metadata.json")},
        }
        driver = container.get("lifecycle", {}).get("preCacheCheck")
        for name, command in (("driver", driver), ("executor", container)):
            if command:
                words = [*command["command"], *command.get("args", ())]
                self._start(words, request, container.get("env", ()), folder / f"{name}.log")
                _read_metadata(request["outputs"])
        return {key: output["artifacts"][0] for key, output in outputs.items()}

    def _values(self, task):
        """Return the values of a task's parameters: constants, and parameters of the pipeline."""
        wanted = self.tasks[task].get("inputs", {}).get("parameters", {})
        return {
            name: self.parameters[parameter["componentInputParameter"]]
            if "componentInputParameter" in parameter
            else parameter["runtimeValue"]["constant"]
            for name, parameter in wanted.items()
        }

    def _inputs(self, task):
        wanted = self.tasks[task].get("inputs", {}).get("artifacts", {})
        sources = {name: source["taskOutputArtifact"] for name, source in wanted.items()}
        return {
            name: {"artifacts": [self.outputs[source["producerTask"]][source["outputArtifactKey"]]]}
            for name, source in sources.items()
        }

    def _start(self, command, request, variables, log):
        text = json.dumps(request)
        words = [self.python if word == "python" else word.replace("{{$}}", text) for word in command]
        environment = {**os.environ, **{variable["name"]: variable["value"] for variable in variables}}
        with open(log, "w", encoding="utf-8") as file:
            done = subprocess.run(words, env=environment, stdout=file, stderr=file, check=False)
        assert done.returncode == 0, f"{log}: {log.read_text()[-2000:]}"


def _artifact(task, key, uri, kind, given):
    number = int(hashlib.sha256(uri.encode()).hexdigest()[:12], 16)
    name = f"{task}/{key}/{number}"
    return {"name": name, "uri": uri, "type": dict(kind), "metadata": dict(given.get("metadata", {}))}


def _read_metadata(outputs):
    """Update the outputs with the metadata and URIs that the process wrote for them."""
    file = Path(outputs["outputFile"])
    written = json.loads(file.read_text()).get("artifacts", {}) if file.is_file() else {}
    for key, value in written.items():
        artifact, update = outputs["artifacts"][key]["artifacts"][0], value["artifacts"][0]
        artifact["metadata"].update(update.get("metadata", {}))
        artifact["uri"] = update.get("uri") or artifact["uri"]
