"""Runs the examples of docs/models.md."""

import re
import sys
import types
from pathlib import Path

import pytest
import tensorflow as tf
import yaml

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.model_inputs import build_model, call_model, sequence_lengths
from embedding_core.tasks import Task
from pipelines.config import config_from_mapping
from pipelines.config.model import BUILT_IN_MODELS

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=9, dim=4),),
    features=(FeatureConfig(name="history", table="t", max_sequence_length=3), FeatureConfig(name="item", table="t")),
)
ACTIVATIONS = {"history": tf.ones([2, 3, 4]), "item": tf.ones([2, 4])}
LENGTHS = sequence_lengths(CONFIG, {"history": tf.ragged.constant([[1], [1, 2]], tf.int64)})


def module_of(number, monkeypatch):
    module = types.ModuleType(f"documented_{number}")
    exec(PYTHON[number], module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize("tasks", [(Task(),), (Task(name="click"), Task(name="stars", kind="regression"))])
def test_model_of_your_own_has_an_output_for_each_task(monkeypatch, tasks):
    model = build_model(module_of(0, monkeypatch), CONFIG, ["price"], {"width": 8}, tasks)
    outputs = call_model(model, ACTIVATIONS, {"price": tf.ones([2, 1])}, tasks)
    assert {name: tuple(output.shape) for name, output in outputs.items()} == {task.name: (2, 1) for task in tasks}


def test_model_of_your_own_reads_lengths(monkeypatch):
    model = build_model(module_of(1, monkeypatch), CONFIG, [], {})
    assert call_model(model, ACTIVATIONS, LENGTHS)["label"].shape == (2, 1)


def test_every_model_is_on_the_page():
    assert set(BUILT_IN_MODELS) == set(
        re.findall(r"`(\w+)`", PAGE.partition("|---|")[2].partition("Each is one file")[0])
    )


def test_histories_of_the_page_are_valid(tmp_path):
    (tmp_path / "purchases.csv").write_text("user,item,time\nu,i,1\n")
    (text,) = [text for text in YAML if "histories" in text]
    config = config_from_mapping(yaml.safe_load(text), str(tmp_path))
    assert config.data.histories.columns == {"history": "item"}


def test_labels_of_the_page_are_valid(tmp_path):
    (tmp_path / "rows.csv").write_text("user,item,clicked,rating,purchases\nu,i,1,2,3\n")
    one, several = YAML[0].split("\n\n")
    given = [yaml.safe_load(line) for line in one.splitlines()] + [yaml.safe_load(several)]
    for labels in given:
        if labels.get("label") == {"kind": "positive"}:
            labels = {**labels, "training": {"negatives": "item"}}  # noqa: PLW2901
        config_from_mapping(
            {"data": "rows.csv", "features": {"categorical": ["user", "item"]}, **labels}, str(tmp_path)
        )
    retrieval = {**yaml.safe_load(YAML[1]), **yaml.safe_load(YAML[2])}
    config_from_mapping({"data": "rows.csv", "features": {"categorical": ["user", "item"]}, **retrieval}, str(tmp_path))
