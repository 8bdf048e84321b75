"""Tests compiled pipelines against golden files, which REFRESH_GOLDEN=1 rewrites, and the rules of each."""

import json
import re
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
    slice_ = ["training.topology=v6e-4" if one.startswith("training.topology") else one for one in TPU]
    task = tasks(compiled(RETAIL_FILE, [*RETAIL[1], *slice_], JOB, "vertex")[0])["TableConfigGen"]
    assert {"examples", "transform_graph", "schema"} <= set(task["inputs"]["artifacts"])
    assert task["inputs"]["parameters"]["training_steps"] == {"componentInputParameter": "training_steps"}


@pytest.mark.parametrize("name", ["taxi_kubeflow", "online_retail_gke_v5e"])
def test_names_for_kubeflow_are_names_of_kubernetes(documents, name):
    spec = documents[name][0]
    names = {*tasks(spec), *spec["components"], *spec["deploymentSpec"]["executors"], spec["pipelineInfo"]["name"]}
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one) for one in names)


@pytest.mark.parametrize("name", ["taxi_kubeflow", "online_retail_gke_v5e"])
def test_kfp_loads_the_file_with_both_documents(documents, name, tmp_path):
    from kfp import components

    from pipelines.cluster.compile_kubeflow import save_documents

    save_documents(documents[name], tmp_path / "pipeline.yaml")
    loaded = components.load_component_from_file(str(tmp_path / "pipeline.yaml"))
    assert {"data_folder", "push_destination", "training_steps"} <= set(loaded.component_spec.inputs)


def test_runtime_parameters_have_defaults_and_reach_their_tasks(documents):
    spec = documents["taxi_vertex"][0]
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    assert parameters["data_folder"]["defaultValue"] == "gs://example-bucket/taxi"
    assert all("defaultValue" in one for one in parameters.values())
    read = {
        (task, key): given["componentInputParameter"]
        for task, one in tasks(spec).items()
        for key, given in one.get("inputs", {}).get("parameters", {}).items()
        if "componentInputParameter" in given
    }
    assert read == {
        ("ExampleGen", "input_base"): "data_folder",
        ("EmbeddingTrainer", "training_steps"): "training_steps",
        ("EmbeddingTrainer", "resume_dir"): "resume_folder",
        ("EmbeddingPusher", "push_destination"): "push_destination",
    }


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


def test_tpu_on_gke_is_a_limit_a_selector_and_a_toleration(documents):
    spec, platform = documents["online_retail_gke_v5e"]
    container = spec["deploymentSpec"]["executors"]["exec-embedding-trainer"]["container"]
    assert container["resources"]["accelerator"] == {"type": "google.com/tpu", "count": "4"}
    placed = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-embedding-trainer"]
    assert placed["nodeSelector"]["labels"]["cloud.google.com/gke-tpu-topology"] == "2x2"
    assert placed["tolerations"][0]["key"] == "google.com/tpu"


def test_tpu_on_vertex_is_its_own_job_with_the_same_topology(documents):
    spec = documents["online_retail_vertex_v5e"][0]
    trainer = spec["deploymentSpec"]["executors"]["EmbeddingTrainer_executor"]["container"]
    assert "components.trainer.vertex.VertexExecutor" in trainer["args"]
    inputs = tasks(spec)["EmbeddingTrainer"]["inputs"]["parameters"]
    job = json.loads(inputs["custom_config"]["runtimeValue"]["constant"])["ai_platform_training_args"]
    machine = job["worker_pool_specs"][0]["machine_spec"]
    assert machine == {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "2x2"}
    assert tasks(spec)["TableConfigGen"]["inputs"]["parameters"]["topology"]["runtimeValue"]["constant"] == "v5e-4"


def test_machine_spec_is_one_of_vertex(documents):
    from google.cloud import aiplatform_v1

    for name in ("v2-8", "v3-8", "v4-16", "v5e-4"):
        from pipelines.cluster.tpu_request import tpu_request

        aiplatform_v1.MachineSpec(**tpu_request(name).vertex_machine())


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        ("vertex", ["data.path=package:tfx/examples/chicago_taxi_pipeline/data/simple/data.csv"], "`data.path` is"),
        ("vertex", ["push.destination=null"], "/serving': the tasks run in containers"),
        ("vertex", ["evaluation.baseline=latest"], "`evaluation.baseline` is"),
        ("vertex", ["kubeflow=null"], "`kubeflow` is null"),
        ("vertex", [*TPU, "kubeflow.region=x"], "`kubeflow.project` is null"),
        ("kubeflow", [TPU[0]], "`training.topology` is null"),
        ("kubeflow", [TPU[0], "training.topology=v5e-16"], "one pod"),
        ("kubeflow", [*TPU, "kubeflow.tpu_topology=4x4"], r"'4x4', but `training.topology` 'v5e-4' is 2x2"),
        ("kubeflow", ["kubeflow.tpu_topology=2x2"], "`training.strategy` is 'auto'"),
        ("kubeflow", ["kubeflow.resources.Nobody={cpu: 1}"], r"`kubeflow.resources.Nobody`: unknown task"),
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


def test_file_that_cannot_be_written_is_one_error(tmp_path):
    from pipelines.cluster.compile_kubeflow import save_documents

    with pytest.raises(ConfigError, match=r"`--out` is .* cannot be written"):
        save_documents([{}], tmp_path / "nowhere" / "pipeline.yaml")


def containers(spec):
    executors = {name for name, one in spec["deploymentSpec"]["executors"].items() if "container" in one}
    labels = {
        task: spec["components"][one["componentRef"]["name"]]["executorLabel"] for task, one in tasks(spec).items()
    }
    return {task for task, label in labels.items() if label in executors}


def test_tasks_that_resources_may_name_are_those_of_the_pipeline(documents):
    from pipelines.cluster.compile_checks import task_names

    assert containers(documents["taxi_vertex"][0]) == set(task_names(load_config(ROOT / TAXI_FILE, ADDRESSES)))
