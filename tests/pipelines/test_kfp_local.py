"""The local backend on a pipeline of shell-sized tasks; and, slow, the demo through it for both targets."""

import json
from pathlib import Path

import pytest

from embedding_core.errors import ConfigError, DataError
from pipelines.kfp_local import load_spec, run_compiled

TAXI = Path(__file__).parents[2] / "pipelines" / "examples" / "taxi.yaml"

TASK = """
import json, os, sys
request = json.loads(sys.argv[1])
output = request["outputs"]["artifacts"]["made"]["artifacts"][0]
read = request["inputs"]["artifacts"].get("read", {"artifacts": []})["artifacts"]
assert not os.path.exists(output["uri"]), "the backend makes no folders"
os.makedirs(output["uri"])
seen = {"values": request["inputs"]["parameterValues"], "read": read, "env": os.environ.get("COLOUR")}
with open(output["uri"] + "/seen.json", "w") as file:
    json.dump(seen, file)
with open(request["outputs"]["outputFile"], "w") as file:
    json.dump({"artifacts": {"made": {"artifacts": [{"metadata": {"rows": 3.0}}]}}}, file)
"""

DRIVER = """
import json, sys
with open(json.loads(sys.argv[1])["outputs"]["outputFile"], "w") as file:
    json.dump({"artifacts": {"made": {"artifacts": [{"metadata": {"span": 7}}]}}}, file)
"""


def container(command=TASK, **more):
    env = [{"name": "COLOUR", "value": "red"}]
    return {"container": {"command": ["python", "-c", command], "args": ["{{$}}"], "env": env, **more}}


def spec(first=None):
    """An importer, and two containers that read from each other."""
    made = {"artifacts": {"made": {"artifactType": {"instanceSchema": "title: tfx.Model"}}}}
    source = {"artifactUri": {"runtimeParameter": "place"}, "typeSchema": {"instanceSchema": "title: tfx.Model"}}

    def task(name, depends=(), **inputs):
        return {"componentRef": {"name": name}, "dependentTasks": list(depends), "inputs": inputs}

    def output_of(producer):
        return {"read": {"taskOutputArtifact": {"producerTask": producer, "outputArtifactKey": "made"}}}

    return {
        "components": {
            name: {"executorLabel": name, "outputDefinitions": made} for name in ("importer", "first", "second")
        },
        "deploymentSpec": {
            "executors": {"importer": {"importer": source}, "first": first or container(), "second": container()}
        },
        "root": {
            "inputDefinitions": {
                "parameters": {
                    "address": {"parameterType": "STRING", "defaultValue": "gs://b/x"},
                    "steps": {"parameterType": "NUMBER_INTEGER", "defaultValue": 0},
                }
            },
            "dag": {
                "tasks": {
                    "second": task("second", ["first"], artifacts=output_of("first")),
                    "first": task(
                        "first",
                        ["importer"],
                        artifacts=output_of("importer"),
                        parameters={
                            "steps": {"componentInputParameter": "steps"},
                            "fixed": {"runtimeValue": {"constant": "a"}},
                        },
                    ),
                    "importer": task("importer", parameters={"place": {"componentInputParameter": "address"}}),
                }
            },
        },
    }


def seen(outputs, task):
    return json.loads(Path(outputs[task]["made"]["uri"], "seen.json").read_text())


def run(tmp_path, given=None, **parameters):
    return run_compiled(given or spec(), str(tmp_path), parameters, log=lambda _: None)


def test_tasks_run_in_order_with_parameters_and_environment(tmp_path):
    first = seen(run(tmp_path, steps=4), "first")
    assert first["values"] == {"steps": 4, "fixed": "a"}
    assert first["env"] == "red"
    assert first["read"][0]["uri"] == "gs://b/x"


def test_what_a_task_says_of_its_output_reaches_the_next(tmp_path):
    (read,) = seen(run(tmp_path), "second")["read"]
    assert read["metadata"] == {"rows": 3.0}
    assert Path(read["uri"], "seen.json").exists()


def test_driver_runs_first_and_its_word_reaches_the_executor(tmp_path):
    report = TASK.replace('"env"', '"said": output["metadata"], "env"')
    hook = {"preCacheCheck": {"command": ["python", "-c", DRIVER], "args": ["{{$}}"]}}
    outputs = run(tmp_path, spec(container(report, lifecycle=hook)))
    assert seen(outputs, "first")["said"] == {"span": 7}


def test_failed_task_is_one_error_that_names_its_log(tmp_path):
    with pytest.raises(DataError, match=r"task 'first' ended with exit code 1: ValueError: no good; its log is"):
        run(tmp_path, spec(container("raise ValueError('no good')")))


def test_unknown_parameter_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'stepps' .* choose from address, steps"):
        run(tmp_path, stepps=1)


def test_file_that_is_no_compiled_pipeline_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1")
    with pytest.raises(DataError, match="no compiled pipeline"):
        load_spec(tmp_path / "x.yaml")
