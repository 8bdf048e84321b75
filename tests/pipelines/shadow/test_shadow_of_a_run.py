"""Shadow is in the pipeline if the configuration has its section, and EmbeddingPusher takes its blessing."""

import json

import pytest

from embedding_core.errors import ConfigError
from pipelines.config import load_config
from pipelines.pipeline.gates import gates
from pipelines.pipeline.run_target import PreviousRun
from tests.pipelines.cluster.test_compile_kubeflow import ROOT, TAXI_FILE, compiled, containers
from tests.pipelines.cluster.test_compile_kubeflow import TAXI as TAXI_ON_A_CLUSTER

pytestmark = pytest.mark.tfx
TAXI = ROOT / TAXI_FILE


def _nodes(*overrides, against=None):
    from pipelines.pipeline.embedding_pipeline import create_pipeline

    versions = {} if against is None else {"shadow.against": against}
    pipeline = create_pipeline(load_config(TAXI, overrides), previous=PreviousRun(versions=versions))
    return {node.id: node for node in pipeline.components}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"records")
    return path


def test_pipeline_without_the_section_has_no_shadow():
    nodes = _nodes(against="/pushed/1")
    assert not {"Shadow", "PreviousModel"} & set(nodes)
    assert "shadow_blessing" not in nodes["EmbeddingPusher"].inputs


def test_shadow_compares_trained_model_with_the_last_pushed_one(log):
    nodes = _nodes(f"shadow={log}", "shadow.latency.p95=2", against="/pushed/1")
    shadow = nodes["Shadow"]
    assert shadow.inputs["model"] == nodes["EmbeddingTrainer"].outputs["model"]
    assert shadow.inputs["previous_model"] == nodes["PreviousModel"].outputs["result"]
    assert nodes["EmbeddingPusher"].inputs["shadow_blessing"] == shadow.outputs["blessing"]
    assert json.loads(shadow.exec_properties["rules"])["latency"]["p95"] == 2


def test_first_run_has_no_previous_model(log):
    nodes = _nodes(f"shadow={log}")
    assert set(nodes["Shadow"].inputs) == {"model", "table_configs"}
    assert "PreviousModel" not in nodes


def test_changed_requests_miss_the_cache(log):
    before = _nodes(f"shadow={log}")["Shadow"].exec_properties
    assert before == _nodes(f"shadow={log}")["Shadow"].exec_properties
    log.write_bytes(b"more records")
    assert before["request_files"] != _nodes(f"shadow={log}")["Shadow"].exec_properties["request_files"]


def test_compiled_pipeline_has_the_version_as_a_parameter():
    from pipelines.cluster.compile_checks import task_names
    from pipelines.cluster.kubeflow_spec import kubernetes_name

    given = "shadow={requests: gs://example-bucket/requests.log, against: gs://example-bucket/serving/1790000000}"
    spec = compiled(*TAXI_ON_A_CLUSTER, [given], "kubeflow")[0]
    parameter = spec["root"]["inputDefinitions"]["parameters"]["shadow_against"]
    assert parameter["defaultValue"] == "gs://example-bucket/serving/1790000000"
    config = load_config(ROOT / TAXI_FILE, [*TAXI_ON_A_CLUSTER[1], given])
    assert containers(spec) == {kubernetes_name(task) for task in task_names(config)}


def test_word_for_a_version_is_refused_when_compiling():
    with pytest.raises(ConfigError, match=r"`shadow.against` is 'pushed'"):
        compiled(*TAXI_ON_A_CLUSTER, ["shadow={requests: gs://b/log}"], "vertex")


def test_report_has_a_page_of_what_was_replayed():
    (gate,) = [gate for gate in gates() if gate.node == "Shadow"]
    assert gate.page({"note": "nothing was pushed yet"}).text == "nothing was pushed yet"
