"""TableConfigGen of the pipeline gets what EmbeddingTrainer gets, if the slice has SparseCores."""

import json
from pathlib import Path

import pytest

from pipelines.config import load_config
from pipelines.pipeline.run_target import PreviousRun

pytestmark = pytest.mark.tfx
TAXI = Path(__file__).parents[3] / "pipelines" / "examples" / "taxi.yaml"


def _nodes(topology, **previous):
    from pipelines.pipeline.embedding_pipeline import create_pipeline

    config = load_config(TAXI, [f"training.topology={topology}"])
    pipeline = create_pipeline(config, previous=PreviousRun(**previous))
    return {node.id: node for node in pipeline.components}


def test_limits_are_of_the_trainers_settings_and_inputs():
    nodes = _nodes("v6e-4")
    tables, trainer = nodes["TableConfigGen"], nodes["EmbeddingTrainer"]
    for key in ("custom_config", "training_steps"):
        assert tables.exec_properties.get(key) == trainer.exec_properties.get(key)
    assert {"examples", "transform_graph", "schema"} <= set(tables.inputs)
    for key in ("examples", "transform_graph", "schema"):
        assert tables.inputs[key] == trainer.inputs[key]
    assert json.loads(tables.exec_properties["custom_config"])["training"]["batch_size"] == 256


def test_limits_are_compared_with_those_of_the_previous_run():
    nodes = _nodes("v6e-4", table_configs="/runs/tables")
    assert nodes["TableConfigGen"].inputs["base_table_configs"] == nodes["BaseTableConfigs"].outputs["result"]


def test_slice_without_sparse_cores_needs_no_rows():
    nodes = _nodes("v3-8", table_configs="/runs/tables")
    assert set(nodes["TableConfigGen"].inputs) == {"vocabularies"}
    assert "BaseTableConfigs" not in nodes
