"""Tests that files of the previous release (`data/previous_release`) are read exactly and can be continued from."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from components.artifact_files import read_embedding_config
from components.pusher.proof import prove_again
from components.pusher.publish import publish, roll_back
from components.pusher.served import damage_of, find_published, manifest_facts, verify_version
from embedding_core.checkpoint import (
    BundleReader,
    CheckpointSeries,
    read_training_checkpoint,
    remap,
    training_key,
    verify,
)
from embedding_core.training import Inputs, TrainingJob, train
from embedding_core.training import job as job_module
from embedding_core.training.finished_run import RunDescription, restore_run
from embedding_core.vocabulary import load_vocabularies

pytestmark = pytest.mark.tfx

FILES = Path(__file__).parent / "data/previous_release"
EXPECTED = json.loads((FILES / "expected.json").read_text())
ARRAYS = np.load(FILES / "expected.npz")
VERSION = EXPECTED["version"]["number"]


@pytest.fixture
def files(tmp_path):
    """Copy the files, so that no test can change the originals."""
    return Path(shutil.copytree(FILES, tmp_path / "files"))


def eval_rows():
    data = tf.data.TFRecordDataset(str(FILES / "examples/Split-eval/data-00000-of-00001"))
    return [row.numpy() for row in data]


def rows_of(reader, key):
    return np.concatenate([rows for _, rows in reader.slices(key)])


def test_vocabularies_and_their_evolution_are_read():
    names = ("base_vocabularies", "vocabularies")
    base, vocabulary = (load_vocabularies(str(FILES / name))["item"] for name in names)
    assert [base.digest, vocabulary.digest] == [EXPECTED["digests"][name] for name in names]
    assert vocabulary.features["item"].rows == base.features["item"].rows == 155
    assert [token.decode() for token in vocabulary.tokens.to_pylist()] == EXPECTED["tokens"]
    assert vocabulary.evolution.idle.tolist() == EXPECTED["idle"]
    assert vocabulary.evolution.base == base.digest


def test_table_configs_are_read():
    assert json.loads(read_embedding_config(str(FILES / "table_configs")).to_json()) == EXPECTED["config"]


def test_embedding_checkpoint_is_remapped_to_another_vocabulary(tmp_path):
    config = verify(FILES / "embedding_checkpoint").config
    base = load_vocabularies(str(FILES / "base_vocabularies"))["item"]
    table = config.tables[0].replace(vocabulary_size=len(base) + 1)
    config = config.replace(tables=(table,))
    remap(FILES / "embedding_checkpoint", config, {"item": base}, tmp_path / "new")
    rows = rows_of(BundleReader(str(tmp_path / "new/tables")), "item")
    places = [EXPECTED["tokens"].index(token.decode()) for token in base.tokens.to_pylist()]
    np.testing.assert_array_equal(rows[:-1], ARRAYS["trained/item"][places])


def test_training_checkpoint_verifies_and_is_read():
    checkpoint = read_training_checkpoint(FILES / "model_run/checkpoints")
    assert checkpoint.step == EXPECTED["model_run/step"]
    reader = BundleReader(checkpoint.prefix)
    for key in ("item", "item/accumulators"):
        np.testing.assert_array_equal(rows_of(reader, training_key(key)), ARRAYS[f"trained/{key}"])


def test_finished_run_is_restored():
    run = restore_run(str(FILES / "model_run"))
    np.testing.assert_array_equal(run.engine.embedding_tables["item"].numpy(), ARRAYS["trained/item"])


def split_by_the_bytes_alone(fraction):
    def held_back(serialized):
        return tf.strings.to_hash_bucket_fast(serialized, 1 << 20) < round(fraction * (1 << 20))

    return lambda serialized: ~held_back(serialized), held_back


def test_stopped_training_goes_on(files, tmp_path, monkeypatch):
    # That release gave a short batch the weight of a whole one, which has no `share` here, and held back equal rows
    # together (decision 12): all else is equal.
    read = job_module.read_batches
    monkeypatch.setattr(job_module, "read_batches", lambda *given: read(*given[:4]))
    monkeypatch.setattr(job_module, "split_filters", split_by_the_bytes_alone)
    assert CheckpointSeries(files / "series").steps() == [10, 5]
    description = RunDescription.load(str(files / "model_run"))
    stopping = {"metric": "loss", "validation_fraction": 0.2, "patience": 9, "train_on_validation": False}
    settings = {**json.loads((files / "model_run/training.json").read_text())["training"], "early_stopping": stopping}
    settings |= {"eval_every": 5, "checkpoint_every": 5}
    job = TrainingJob(
        inputs=Inputs(
            config=description.config,
            vocabularies={"item": str(files / "vocabularies/item.txt")},
            dense=description.dense,
            tasks=description.tasks,
            raw_spec={"price": tf.io.FixedLenFeature([], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)},
        ),
        training=type(description.training).from_mapping(settings),
        model=description.model,
        arguments=description.arguments,
        train_files=[str(files / "examples/Split-train/data-00000-of-00001")],
        eval_files=[str(files / "examples/Split-eval/data-00000-of-00001")],
    )
    result = train(job, str(tmp_path / "out"), resume_folder=str(files / "series"))
    assert result.history.facts["resumed_at"] == 10
    assert result.step == EXPECTED["continued/step"]
    np.testing.assert_allclose([entry["auc"] for entry in result.history.evals], EXPECTED["continued/evals"], atol=1e-6)
    reader = BundleReader(result.checkpoint)
    for key in ("item", "item/accumulators"):  # another CPU may round differently
        np.testing.assert_allclose(rows_of(reader, training_key(key)), ARRAYS[f"continued/{key}"], rtol=1e-4, atol=1e-6)


def test_pushed_version_verifies_and_answers():
    folder = FILES / f"serving/{VERSION}"
    assert verify_version(folder)["digest"] == EXPECTED["version"]["digest"]
    assert damage_of(str(FILES / "serving"), VERSION, EXPECTED["version"]["digest"]) is None
    served = tf.saved_model.load(str(folder)).signatures["serving_default"](tf.constant(eval_rows()))["logit"]
    np.testing.assert_allclose(served, ARRAYS["logits"], rtol=1e-5, atol=1e-6)


def test_pushed_version_is_recognized_and_rolled_back_to(files):
    base = str(files / "serving")
    assert find_published(base, "one")[0].version == VERSION
    publish(files / f"serving/{VERSION}", base, check=lambda _: {"identity": "two"}, clock=lambda: VERSION + 1)
    back = roll_back(base)
    assert manifest_facts(base, back.version)["rollback"]["of"] == VERSION
    assert back.digest == EXPECTED["version"]["digest"]


def test_pushed_version_is_proven_again_from_its_artifacts(files, monkeypatch):
    """The manifest has relative paths and no examples: the test changes to the files' folder and adds examples."""
    monkeypatch.chdir(files)
    shutil.copytree(files / f"serving/{VERSION}", files / "model")
    manifest = verify_version(files / f"serving/{VERSION}")
    manifest["facts"]["sources"]["examples"] = [str(files / "examples/Split-eval")]
    publish(files / f"serving/{VERSION}", files / "again", check=lambda _: manifest["facts"], clock=lambda: VERSION)
    proof = prove_again(str(files / f"again/{VERSION}"), 40, 1e-5)
    assert proof.report.passed
    assert proof.rows == 40
