"""A line of YAML adds a gate of the user to QualityGate, which runs again if its code changes."""

import json
import sys

import pytest

from pipelines.config import load_config

pytestmark = pytest.mark.tfx
CONFIG = "data: rows.csv\nlabel: label\nfeatures: {categorical: [item]}\n"


def nodes_with(folder, gate, more=""):
    from pipelines.pipeline.embedding_pipeline import create_pipeline

    (folder / "my_gates.py").write_text(gate)
    (folder / "rows.csv").write_text("item,label\na,1\n")
    (folder / "my.yaml").write_text(CONFIG + more)
    return {node.id: node for node in create_pipeline(load_config(folder / "my.yaml")).components}


def test_quality_gate_has_the_gate_as_parameter_and_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    before = nodes_with(tmp_path, "class MyGate: pass\n")
    first = nodes_with(tmp_path, "class MyGate: pass\n", "gates: [my_gates.MyGate]\n")
    second = nodes_with(tmp_path, "class MyGate:\n    pass\n", "gates: [my_gates.MyGate]\n")
    assert before["QualityGate"].exec_properties["gates"] is None
    assert json.loads(first["QualityGate"].exec_properties["gates"]) == ["my_gates.MyGate"]
    prints = [
        {name: nodes[name].exec_properties["code_fingerprint"] for name in ("QualityGate", "EmbeddingTrainer")}
        for nodes in (first, second)
    ]
    assert prints[0]["QualityGate"] != prints[1]["QualityGate"]
    assert prints[0]["EmbeddingTrainer"] == prints[1]["EmbeddingTrainer"]


def test_data_is_read_again_only_if_our_code_changes(tmp_path, monkeypatch):
    from pipelines.pipeline import fingerprint

    monkeypatch.setattr("sys.path", list(sys.path))
    nodes = nodes_with(tmp_path, "class MyGate: pass\n")
    names = ("ExampleGen", "StatisticsGen", "VocabularyGen", "CheckpointRetriever", "EmbeddingPusher")
    assert len({nodes[name].exec_properties["code_fingerprint"] for name in names}) == len(names)
    loaded = fingerprint.loaded_files(["components.vocabulary_gen.component"], str(tmp_path))
    assert any(file.endswith("embedding_core/columns.py") for file in loaded)
    assert not any(file.endswith("pipelines/models/ranking.py") for file in loaded)
