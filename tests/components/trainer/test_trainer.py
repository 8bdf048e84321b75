"""EmbeddingTrainer on hand-made artifacts: raw columns, a schema, no Transform."""

import copy
import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tfx.types import channel_utils, standard_artifacts

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.trainer import EmbeddingTrainer
from components.trainer.run import _rows_folder
from components.trainer_settings import with_steps
from embedding_core.checkpoint import retrieve
from embedding_core.errors import CheckpointError, ConfigError, DataError
from embedding_core.training.finished_run import restore_run
from tests.support.artifacts import artifact
from tests.support.trainer_runs import VOCABULARY, eval_rows, inputs_at, run

pytestmark = pytest.mark.tfx


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return inputs_at(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    return run(inputs, tmp_path_factory.mktemp("run"))


def test_model_answers_as_the_restored_run_does(inputs, trained):
    model = tf.saved_model.load(f"{trained['model'][0].uri}/Format-Serving")
    served = model.signatures["serving_default"](eval_rows(inputs))["logit"]
    restored = restore_run(trained["model_run"][0].uri)
    examples = [tf.train.Example.FromString(row) for row in eval_rows(inputs).numpy()]
    tokens = [example.features.feature["item"].bytes_list.value[0] for example in examples]
    ids = tf.ragged.constant([[[b"a", b"b", b"c"].index(token)] if token != b"d" else [3] for token in tokens])
    prices = tf.constant([list(example.features.feature["price"].float_list.value) for example in examples])
    logits = restored.model([restored.engine.lookup({"item": ids})["item"], prices])
    np.testing.assert_allclose(served, logits, rtol=1e-5, atol=1e-6)
    assert {"transform_features", "transform_labels"} <= set(model.signatures)


def test_outputs_say_what_they_are(trained):
    properties = {name: trained["model"][0].get_string_custom_property(name) for name in ("seed", "step", "eval_auc")}
    assert properties["seed"] == "5"
    assert properties["step"] == "21"
    assert float(properties["eval_auc"]) > 0.9
    assert {"checkpoints", "history.json", "logs", "training.json"} <= set(os.listdir(trained["model_run"][0].uri))


def test_resume_folder_keeps_only_rows_for_other_settings(inputs, tmp_path):
    resume, keys = tmp_path / "resume", []
    for number, rate in enumerate([0.01, 0.02]):
        training = {"dense_optimizer": {"learning_rate": rate}}
        run(inputs, tmp_path / str(number), resume_dir=str(resume), training=training)
        assert os.listdir(resume) == ["rows"]
        (key,) = (resume / "rows").iterdir()
        keys.append(key.name)
        splits = {split.name: split for split in key.iterdir()}
        assert set(splits) == {"train", "eval"}
        if number == 0:
            for split in splits.values():
                os.utime(split, (1, 1))
    assert keys[0] == keys[1]
    assert [split.stat().st_mtime for split in splits.values()] == [1, 1], "rows were encoded again"


def test_checkpoint_of_other_inputs_of_same_paths_is_not_resumed(inputs, tmp_path, monkeypatch):
    folders = []

    def stopped(*_, resume_folder, **__):
        folders.append(resume_folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("embedding_core.training.train", stopped)  # TFX reloads the module of run_fn
    examples = copy.deepcopy(inputs["examples"][0])
    for made in (1_000, 1_000, 2_000):  # the last one is from a new metadata store, which repeats paths
        examples.mlmd_artifact.create_time_since_epoch = made
        with pytest.raises(KeyboardInterrupt):
            run({**inputs, "examples": [examples]}, tmp_path / str(len(folders)), resume_dir=str(tmp_path / "resume"))
    assert folders[0] == folders[1] != folders[2]


def warm_start(inputs, trained, folder, digests=None):
    config = restore_run(trained["model_run"][0].uri).description.config
    checkpoints = f"{trained['model_run'][0].uri}/checkpoints"
    result = artifact(EmbeddingCheckpoint, folder, made=False)
    retrieve(tf.train.latest_checkpoint(checkpoints), config, result.uri, vocabularies={"item": VOCABULARY})
    return {**inputs, "warm_start": [result]}


def test_warm_start_begins_with_the_rows_of_the_checkpoint(inputs, trained, tmp_path):
    still = {
        "steps": 1,
        "batch_size": 4,
        "dense_optimizer": {"learning_rate": 0.0},
        "early_stopping": None,
        "seed": 9,
    }
    tables = restore_run(trained["model_run"][0].uri).engine.embedding_tables
    given = warm_start(inputs, trained, tmp_path / "checkpoint")
    outputs = run(given, tmp_path / "out", settings={"training": still})
    begun = restore_run(outputs["model_run"][0].uri).engine.embedding_tables
    difference = np.abs(begun["item"].numpy() - tables["item"].numpy()).max()
    assert difference < 0.012  # one step at the default rate of 0.01; newly initialized rows would differ by more


def test_damaged_warm_start_is_refused(inputs, trained, tmp_path):
    given = warm_start(inputs, trained, tmp_path / "checkpoint")
    next((tmp_path / "checkpoint").glob("tables.data*")).write_bytes(b"")
    with pytest.raises(CheckpointError):
        run(given, tmp_path / "out")


def test_unknown_setting_is_refused(inputs, tmp_path):
    with pytest.raises(ConfigError, match="colour"):
        run(inputs, tmp_path, settings={"colour": "red"})


def test_dense_column_of_text_is_refused(inputs, tmp_path):
    with pytest.raises(DataError, match="'item' is not a column of numbers"):
        run(inputs, tmp_path, settings={"dense": ["item"]})


def test_steps_are_added_to_settings_without_training():
    assert with_steps({}, 3) == {"training": {"steps": 3, "epochs": None}}


def test_rows_without_graph_and_schema_have_a_folder(monkeypatch):
    monkeypatch.setattr("components.trainer.run.rows_key", lambda *given: str(given[2]))
    job = SimpleNamespace(inputs=None, train_files=[], eval_files=[], training=SimpleNamespace(early_stopping=None))
    settings = SimpleNamespace(resume_dir="r", code_fingerprint=None)
    made_by = SimpleNamespace(transform_graph_path=None, schema_path=None)
    assert _rows_folder(made_by, settings, job) == "r/rows/{'schema': None}"


def test_component_has_the_inputs_and_outputs_of_its_contract():
    channels = {
        "examples": standard_artifacts.Examples,
        "vocabularies": Vocabularies,
        "table_configs": TableConfigs,
        "transform_graph": standard_artifacts.TransformGraph,
        "warm_start": EmbeddingCheckpoint,
    }
    given = {name: channel_utils.as_channel([cls()]) for name, cls in channels.items()}
    trainer = EmbeddingTrainer(model="m", custom_config={}, code_fingerprint="c", resume_dir="r", **given)
    assert {name: channel.type for name, channel in trainer.outputs.items()} == {
        "model": standard_artifacts.Model,
        "model_run": standard_artifacts.ModelRun,
    }
    assert trainer.exec_properties["code_fingerprint"] == "c"
