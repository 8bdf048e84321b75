"""Runs the examples of docs/models.md, docs/retrieval.md and docs/own_model.md."""

import dataclasses
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.columns import DenseInputs
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import build_model, call_model, check_two_tower, sequence_lengths
from embedding_core.serving import export_model
from embedding_core.tasks import Task
from embedding_core.training import train
from embedding_core.training.finished_run import restore_weights
from pipelines.config.pipeline_config import BUILT_IN_MODELS
from tests.support.training_jobs import SPEC, job_in

DOCS = Path(__file__).parents[3] / "docs"
PAGES = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("own_model.md", "models.md", "retrieval.md"))
PYTHON = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)
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


def example_of(words):
    (number,) = [number for number, source in enumerate(PYTHON) if words in source]
    return number


MOOD = Task(name="mood", kind="multiclass", classes=("a", "b", "c"))


@pytest.mark.parametrize("tasks", [(Task(),), (Task(name="click"), Task(name="stars", kind="regression")), (MOOD,)])
def test_model_of_your_own_has_an_output_for_each_task(monkeypatch, tasks):
    model = build_model(module_of(0, monkeypatch), CONFIG, ["price"], {"width": 8}, tasks)
    outputs = call_model(model, ACTIVATIONS, {"price": tf.ones([2, 1])}, tasks)
    assert {name: tuple(output.shape) for name, output in outputs.items()} == {
        task.name: (2, task.width) for task in tasks
    }


def test_own_loss_and_metric_are_the_same_on_both_devices(monkeypatch, tmp_path):
    """The job of the trainer's tests, with its dense feature as the label: nine of ten labels must be covered."""
    job = job_in(tmp_path, epochs=4, batch_size=36)
    label = Task(key="number", kind="regression")
    inputs = dataclasses.replace(job.inputs, dense=(), tasks=(label,))
    results = []
    for strategy in ({"strategy": "cpu"}, {"strategy": "simulated_tpu", "topology": "1x2"}):
        training = job.training.replace(**strategy, dense_optimizer={"learning_rate": 0.1})
        module = module_of(example_of("row_loss"), monkeypatch)
        own = dataclasses.replace(job, inputs=inputs, model=module, arguments={}, training=training)
        history = train(own, str(tmp_path / training.strategy)).history
        results.append([(entry["loss"], entry["metrics"]["covered"]) for entry in history.evals])
    np.testing.assert_allclose(*results, rtol=1e-3, atol=0.006)  # a label at the bound may be on either side
    assert 0.8 < results[0][-1][1] < 0.97


OF_KERAS_3 = """
import keras


def build(config, embeddings, dense, *, tasks):
    vector = keras.layers.Concatenate()([*embeddings.values(), *dense.values()])
    hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(8, "relu", kernel_regularizer="l2")(vector))
    hidden = keras.layers.BatchNormalization()(hidden)
    outputs = {task: keras.layers.Dense(columns)(hidden) for task, columns in tasks.items()}
    return keras.Model([dict(embeddings), dict(dense)], outputs)
"""


@pytest.mark.parametrize("strategy", [{"strategy": "cpu"}, {"strategy": "simulated_tpu", "topology": "1x2"}])
def test_model_of_keras_3_is_trained_restored_and_served(strategy, monkeypatch, tmp_path):
    module = types.ModuleType("model_of_keras_3")
    exec(OF_KERAS_3, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    job = job_in(tmp_path, epochs=4, batch_size=36, **strategy)
    own = dataclasses.replace(job, model=module.__name__, arguments={})
    result = train(own, str(tmp_path / "run"))
    assert result.history.evals[-1]["auc"] > 0.8
    _, again = restore_weights(result.checkpoint, own.model, job.inputs.config, ("number",), {}, job.inputs.tasks)
    assert len(again.weights) > len(again.trainable_weights) == 6
    given = {"word": tf.random.normal([5, 4])}, {"number": tf.ones([5, 1])}
    np.testing.assert_array_equal(call_model(again, *given)["label"], call_model(result.model, *given)["label"])
    export_model(
        tmp_path / "served",
        config=job.inputs.config,
        tables=result.tables,
        vocabularies=job.inputs.vocabularies,
        model=result.model,
        dense=DenseInputs(names=("number",), spec={"number": SPEC["number"]}),
    )
    signature = tf.saved_model.load(str(tmp_path / "served")).signatures["raw"]
    served = signature(word=tf.constant(["w1"]), number=tf.constant([0.5]))["logit"]
    rows = tf.gather(next(iter(result.tables.values())), [1])
    expected = call_model(result.model, {"word": rows}, {"number": tf.constant([[0.5]])})["label"]
    np.testing.assert_allclose(served, expected, rtol=1e-5)


def test_two_kinds_of_keras_in_one_model_are_refused(monkeypatch):
    module = types.ModuleType("mixed")
    exec("import keras\n" + PYTHON[0].replace("import tf_keras\n", "").replace("tf_keras", "keras"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigError, match="inputs of keras to layers of tf_keras: use one Keras"):
        build_model(module.__name__, CONFIG, ["price"], {})


def test_model_of_your_own_reads_lengths(monkeypatch):
    model = build_model(module_of(example_of("lengths):"), monkeypatch), CONFIG, [], {})
    assert call_model(model, ACTIVATIONS, LENGTHS)["label"].shape == (2, 1)


def test_softmax_refuses_a_model_without_towers(monkeypatch):
    module = module_of(0, monkeypatch)
    with pytest.raises(ConfigError, match=rf"{module}.*has no query_features and no .*: return a `TwoTower`"):
        check_two_tower(build_model(module, CONFIG, [], {}), module)


def test_every_model_is_on_the_page():
    assert set(BUILT_IN_MODELS) == set(
        re.findall(r"`(\w+)`", PAGES.partition("|---|")[2].partition("Each is one file")[0])
    )
