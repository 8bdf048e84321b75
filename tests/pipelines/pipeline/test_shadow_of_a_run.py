"""Shadow is in the pipeline if the configuration has its section, and EmbeddingPusher takes its blessing."""

import json
from pathlib import Path

import pytest

from pipelines.config import load_config
from pipelines.pipeline.run_target import PreviousRun

pytestmark = pytest.mark.tfx
TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"


def _nodes(*overrides, **previous):
    from pipelines.pipeline.embedding_pipeline import create_pipeline

    pipeline = create_pipeline(load_config(TAXI, overrides), previous=PreviousRun(**previous))
    return {node.id: node for node in pipeline.components}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"records")
    return path


def test_pipeline_without_the_section_has_no_shadow():
    nodes = _nodes(shadowed="/pushed/1")
    assert not {"Shadow", "PreviousModel"} & set(nodes)
    assert "shadow_blessing" not in nodes["EmbeddingPusher"].inputs


def test_shadow_compares_the_trained_model_with_the_last_pushed_one(log):
    nodes = _nodes(f"shadow={log}", "shadow.latency.p95=2", shadowed="/pushed/1")
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
