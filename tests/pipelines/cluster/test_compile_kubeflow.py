"""Tests compiled pipelines against golden files, which REFRESH_GOLDEN=1 rewrites, and the rules of each."""

import json
from pathlib import Path

import pytest

from embedding_core.errors import ConfigError
from pipelines.config import load_config
from tests.pipelines.cluster.compiled_examples import (
    ADDRESSES,
    JOB,
    RETAIL_FILE,
    ROOT,
    TAXI,
    TAXI_FILE,
    assert_golden,
    assert_specification_of_kfp,
    compiled,
)

pytestmark = pytest.mark.tfx

GOLDEN = Path(__file__).parent / "golden"
TPU = ["training.strategy=tpu", "training.topology=v5e-4", "kubeflow.tpu_image=example-docker.pkg.dev/p/r/tpu:0.1.0"]
RETAIL = [RETAIL_FILE, [*ADDRESSES, "data.path=gs://example-bucket/retail/*.parquet", *TPU]]
GOLDENS = {
    "taxi_vertex": (*TAXI, [], "vertex"),
    "taxi_kubeflow": (*TAXI, ["kubeflow.resources.Transform={cpu: 4, memory_gb: 16}"], "kubeflow"),
    "online_retail_vertex_v5e": (*RETAIL, JOB, "vertex"),
    "online_retail_gke_v5e": (*RETAIL, [], "kubeflow"),
}


@pytest.fixture(scope="module")
def documents():
    return {name: compiled(*given) for name, given in GOLDENS.items()}


def tasks(spec):
    return spec["root"]["dag"]["tasks"]


@pytest.mark.parametrize("name", GOLDENS)
def test_compiled_pipeline_is_its_golden_file(documents, name, tmp_path):
    assert_golden(documents[name], GOLDEN / f"{name}.yaml", tmp_path)


@pytest.mark.parametrize("name", GOLDENS)
def test_compiled_pipeline_is_a_specification_of_kfp(documents, name):
    assert_specification_of_kfp(documents[name][0])


def test_tables_of_a_sparse_core_slice_get_the_trainers_rows():
    slice_ = ["training.topology=v6e-4" if setting.startswith("training.topology") else setting for setting in TPU]
    task = tasks(compiled(RETAIL_FILE, [*RETAIL[1], *slice_], JOB, "vertex")[0])["TableConfigGen"]
    assert {"examples", "transform_graph", "schema"} <= set(task["inputs"]["artifacts"])
    assert task["inputs"]["parameters"]["training_steps"] == {"componentInputParameter": "training_steps"}


@pytest.mark.parametrize("name", ["taxi_kubeflow", "online_retail_gke_v5e"])
def test_kfp_loads_the_file_with_both_documents(documents, name, tmp_path):
    from kfp import components

    from pipelines.cluster.compile_kubeflow import save_documents

    save_documents(documents[name], tmp_path / "pipeline.yaml")
    loaded = components.load_component_from_file(str(tmp_path / "pipeline.yaml"))
    assert {"data_folder", "push_destination", "training_steps"} <= set(loaded.component_spec.inputs)


def test_spans_and_previous_artifacts_are_runtime_parameters():
    more = [
        "data.path=gs://example-bucket/days/{YYYY}-{MM}-{DD}.csv",
        "warm_start=gs://example-bucket/checkpoint",
        "vocabulary_evolution=gs://example-bucket/vocabularies",
        "evaluation.baseline=gs://example-bucket/model",
    ]
    from pipelines.cluster.compile_checks import task_names
    from pipelines.cluster.kubeflow_spec import kubernetes_name

    spec = compiled(*TAXI, more, "kubeflow")[0]
    assert {"data_spans", "warm_start", "base_vocabularies", "baseline"} <= set(
        spec["root"]["inputDefinitions"]["parameters"]
    )
    assert "importer" in spec["deploymentSpec"]["executors"]["exec-warm-start"]
    config = load_config(ROOT / TAXI_FILE, [*TAXI[1], *more])
    assert containers(spec) == {kubernetes_name(task) for task in task_names(config)}


def test_files_for_evaluation_are_a_split_of_the_input():
    given = ["data.eval_path=gs://example-bucket/test/*.csv", "split={by: hash}"]
    spec = compiled(*TAXI, given, "vertex")[0]
    given = tasks(spec)["ExampleGen"]["inputs"]["parameters"]
    splits = json.loads(given["input_config"]["runtimeValue"]["constant"])["splits"]
    assert splits == [{"name": "train", "pattern": "taxi/data.csv"}, {"name": "eval", "pattern": "test/*.csv"}]
    folder = spec["root"]["inputDefinitions"]["parameters"]["data_folder"]
    assert folder["defaultValue"] == "gs://example-bucket"
    assert folder["description"].endswith("the files in it are taxi/data.csv, and for evaluation test/*.csv")


def test_machine_spec_is_one_of_vertex(documents):
    from google.cloud import aiplatform_v1

    for name in ("v2-8", "v3-8", "v4-16", "v5e-4"):
        from pipelines.cluster.compile_checks import tpu_request

        aiplatform_v1.MachineSpec(**tpu_request(name).vertex_machine())


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        ("vertex", ["data.path=package:tfx/examples/chicago_taxi_pipeline/data/simple/data.csv"], "`data.path` is"),
        ("vertex", ["push.destination=null"], "/serving': the tasks run in containers"),
        ("vertex", ["evaluation.baseline=latest"], "`evaluation.baseline` is"),
        ("kubeflow", [TPU[0]], "`training.topology` is null"),
        ("kubeflow", [*TPU, "kubeflow.tpu_topology=4x4"], r"'4x4', but `training.topology` 'v5e-4' is 2x2"),
        ("kubeflow", ["kubeflow.tpu_topology=2x2"], "`training.strategy` is 'auto'"),
        ("vertex", ["push.destination=gs://"], "`push.destination` is 'gs://'"),
        ("vertex", ["kubeflow.pipeline_root=://b"], "`kubeflow.pipeline_root` is '://b'"),
        (
            "vertex",
            ["vocabulary_evolution=gs://b/v", "vocabularies.company.parts=4"],
            "`vocabularies.company.parts` is 4",
        ),
    ],
)
def test_what_a_target_cannot_do_is_an_error_when_compiling(target, changes, words):
    with pytest.raises(ConfigError, match=words):
        compiled(*TAXI, changes, target)


def containers(spec):
    executors = {name for name, executor in spec["deploymentSpec"]["executors"].items() if "container" in executor}
    labels = {
        task: spec["components"][described["componentRef"]["name"]]["executorLabel"]
        for task, described in tasks(spec).items()
    }
    return {task for task, label in labels.items() if label in executors}
