"""Runs every task of the demo, compiled for both targets, by the command line of its container."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.lineage.graph import files_of, read_records, upstream
from tests.pipelines.cluster.compiled_examples import save_demo
from tests.pipelines.cluster.kfp_local import run_compiled

pytestmark = [pytest.mark.slow, pytest.mark.tfx, pytest.mark.timeout(5400)]

TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"
DETERMINISTIC = {
    "ExampleGen/examples", "SchemaGen/schema", "ExampleValidator/anomalies", "VocabularyGen/vocabularies",
    "TableConfigGen/table_configs", "CheckpointRetriever/embedding_checkpoint", "Evaluator/blessing",
}  # fmt: skip
"""Outputs with equal bytes in every run. SavedModels, logs and protocol buffers with maps differ from run to run."""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Run the demo with the local runner, and return its work_dir."""
    from pipelines.config import load_config
    from pipelines.local.run_local import run

    folder = tmp_path_factory.mktemp("here")
    assert run(load_config(TAXI, [f"work_dir={folder}"]))[0].pushed
    return folder


def outputs_here(folder):
    """Map "node/output" to the only folder that the run wrote for it."""
    paths = [path for path in folder.glob("artifacts/[A-Z]*/[a-z]*/[0-9]*") if path.is_dir()]
    return {f"{path.parts[-3]}/{path.parts[-2]}": path for path in paths}


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
    command = [sys.executable, "-c", program, version, examples]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_demo_run_by_container_command_lines_gives_same_model(here, tmp_path, target):
    from pipelines.cluster.kubeflow_spec import kubernetes_name
    from pipelines.config import data_files, load_config
    from pipelines.local.metadata_repair import read_content

    (data,) = data_files(load_config(TAXI).data)
    save_demo(tmp_path / "pipeline.yaml", target)
    values = {"data_folder": str(Path(data).parent), "push_destination": f"{tmp_path}/serving"}
    values["resume_folder"] = f"{tmp_path}/resume"
    made = run_compiled(tmp_path / "pipeline.yaml", tmp_path / "root", values)
    for name, folder in outputs_here(here).items():
        task, output = name.split("/")
        uri = made[task if target == "vertex" else kubernetes_name(task)][output]["uri"]
        assert (read_content(uri).digest == read_content(folder).digest) or name not in DETERMINISTIC, name
    (examples,) = outputs_here(here)["ExampleGen/examples"].glob("Split-eval/*")
    assert probabilities(tmp_path / "serving", examples) == probabilities(here / "serving", examples)
    lineage = read_records(str(tmp_path / "root"))
    (pushed,) = [node.id for node in lineage.values() if node.type == "PushedModel"]
    assert [file["path"] for node in upstream(lineage, pushed).values() for file in files_of(node)] == [data]
