"""Tests the local backend on a pipeline of tiny tasks and, in slow tests, on the demo compiled for both targets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from embedding_core.errors import ConfigError, DataError
from pipelines.lineage.graph import files_of, read_records, upstream
from tests.pipelines.cluster.kfp_local import load_spec, run_compiled

TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"

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
    """Return a pipeline in which `first` reads the output of an importer, and `second` the output of `first`."""
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
    with pytest.raises(ConfigError, match=r"'stepps': choose from address, steps"):
        run(tmp_path, stepps=1)


def test_file_that_is_no_compiled_pipeline_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1")
    with pytest.raises(DataError, match="not a compiled pipeline"):
        load_spec(tmp_path / "x.yaml")


DETERMINISTIC = {
    "ExampleGen/examples", "SchemaGen/schema", "ExampleValidator/anomalies", "VocabularyGen/vocabularies",
    "TableConfigGen/table_configs", "CheckpointRetriever/embedding_checkpoint", "Evaluator/blessing",
}  # fmt: skip
"""Outputs with equal bytes in every run. SavedModels, logs and protocol buffers with maps differ from run to run."""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Run the demo with the local runner, and return its work_dir."""
    from pipelines.config import load_config
    from pipelines.local.run_local import run as run_here

    folder = tmp_path_factory.mktemp("here")
    assert run_here(load_config(TAXI, [f"work_dir={folder}"]))[0].pushed
    return folder


def outputs_here(folder):
    """Map "node/output" to the only folder that the run wrote for it."""
    return {
        f"{path.parts[-3]}/{path.parts[-2]}": path
        for path in folder.glob("artifacts/[A-Z]*/[a-z]*/[0-9]*")
        if path.is_dir()
    }


def probabilities(serving, examples):
    """Return the probabilities that the served version computes for the examples.

    It runs in a separate process, since TensorFlow shares vocabulary tables of the same name within a process.
    """
    program = (
        "import sys, json, tensorflow as tf\n"
        "rows = next(iter(tf.data.TFRecordDataset(sys.argv[2], 'GZIP').batch(500)))\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "answer = model.signatures['serving_default'](examples=rows)['probability']\n"
        "print(json.dumps(answer.numpy().ravel().tolist()))"
    )
    (version,) = [path for path in Path(serving).iterdir() if path.name.isdigit()]
    done = subprocess.run(
        [sys.executable, "-c", program, version, examples], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.tfx
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_demo_run_by_container_command_lines_gives_same_model(here, tmp_path, target):
    from pipelines.cluster.compile_kubeflow import compile_pipeline, save_documents
    from pipelines.cluster.kubeflow_spec import kubernetes_name
    from pipelines.config import data_files, load_config
    from pipelines.local.content import read_content

    (data,) = data_files(load_config(TAXI).data)
    addresses = [
        "data.path=gs://bucket/data.csv",
        "push.destination=gs://bucket/serving",
        "kubeflow={image: none, pipeline_root: gs://bucket/root}",
    ]
    save_documents(compile_pipeline(load_config(TAXI, addresses), target), tmp_path / "pipeline.yaml")
    values = {"data_folder": str(Path(data).parent), "push_destination": f"{tmp_path}/serving"}
    values["resume_folder"] = f"{tmp_path}/resume"
    made = run_compiled(load_spec(tmp_path / "pipeline.yaml"), str(tmp_path / "root"), values)
    for name, folder in outputs_here(here).items():
        task, output = name.split("/")
        uri = made[task if target == "vertex" else kubernetes_name(task)][output]["uri"]
        assert (read_content(uri).digest == read_content(folder).digest) or name not in DETERMINISTIC, name
    (examples,) = outputs_here(here)["ExampleGen/examples"].glob("Split-eval/*")
    assert probabilities(tmp_path / "serving", examples) == probabilities(here / "serving", examples)
    lineage = read_records(str(tmp_path / "root"))
    (pushed,) = [node.id for node in lineage.values() if node.type == "PushedModel"]
    assert [one["path"] for node in upstream(lineage, pushed).values() for one in files_of(node)] == [data]
