"""A SavedModel exported from an embedding checkpoint returns the vectors of the engine that trained its tables."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import Adagrad
from embedding_core.checkpoint import write_tables
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines.host import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, NonfiniteError
from embedding_core.serving import export_embeddings
from embedding_core.serving.lookups import rounded
from pipelines.commands import cli
from tests.support.tf_examples import example
from tests.support.vocabularies import vocabulary_of

ADAGRAD = Adagrad(learning_rate=0.1)
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="words", vocabulary="words", vocabulary_size=5, dim=4, oov_rows=2, optimizer=ADAGRAD),
        TableConfig(name="ids", vocabulary_size=6, dim=3, combiner="sum", optimizer=ADAGRAD),
    ),
    features=(
        FeatureConfig(name="word", table="words", column=ColumnConfig(name="word")),
        FeatureConfig(name="list", table="words", column=ColumnConfig(name="list", multivalent=True)),
        FeatureConfig(name="id", table="ids", column=ColumnConfig(name="id", dtype="int64")),
        FeatureConfig(name="made", table="words", column=ColumnConfig(name="made", after_transform=True)),
    ),
)
NAMES = ["word", "list", "id"]


ROWS = [example(row) for row in ({"word": b"b", "list": [b"a", b"c", b"a"], "id": 5}, {"id": 9}, {"list": b"b"})]


@pytest.fixture
def engine():
    return HostEngine(CONFIG, seed=3)


@pytest.fixture
def checkpoint(tmp_path, engine):
    words = vocabulary_of([b"a", b"b", b"c"], "words")

    def rows_of(key):
        yield 0, engine.table_variables[key].numpy()

    def write(name="checkpoint", nonfinite="error"):
        write_tables(tmp_path / name, CONFIG, rows_of, step=7, vocabularies={"words": words}, nonfinite=nonfinite)
        return tmp_path / name

    return write


def test_vectors_are_those_of_the_engine(tmp_path, engine, checkpoint):
    signatures = export_embeddings(checkpoint(), tmp_path / "model", features=NAMES)
    assert signatures == ("serving_default", "raw", "counters")
    found = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](tf.constant(ROWS))
    ids = {
        "word": tf.ragged.constant([[1], [], []], dtype=tf.int64),
        "list": tf.ragged.constant([[0, 2, 0], [], [1]], dtype=tf.int64),
        "id": tf.ragged.constant([[5], [], []], dtype=tf.int64),
    }
    for name, expected in engine.lookup({**ids, "made": ids["word"]}).items():
        if name in NAMES:
            np.testing.assert_array_equal(found[name], expected)
    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert "words.txt" in files


def test_named_tensors_give_the_same_and_bad_ids_are_counted(tmp_path, checkpoint):
    export_embeddings(checkpoint(), tmp_path / "model", features=["id", "word"])
    served = tf.saved_model.load(str(tmp_path / "model")).signatures
    by_name = served["raw"](word=tf.constant([b"b", b"", b""]), id=tf.constant([5, 9, -(2**63)], tf.int64))
    for name, value in served["serving_default"](tf.constant(ROWS)).items():
        np.testing.assert_array_equal(value, by_name[name])
    assert served["counters"]()["dropped_ids"].numpy().tolist() == [2]


def test_what_cannot_be_exported_is_refused(tmp_path, engine, checkpoint):
    source = checkpoint()
    with pytest.raises(ConfigError, match="made by a transform"):
        export_embeddings(source, tmp_path / "model")
    with pytest.raises(ConfigError, match="did you mean 'word'"):
        export_embeddings(source, tmp_path / "model", features=["wrd"])
    engine.embedding_tables["ids"].scatter_nd_update([[4, 1]], [np.inf])
    with pytest.raises(NonfiniteError, match="1 of table 'ids'") as caught:
        export_embeddings(checkpoint("bad", "keep"), tmp_path / "model", features=NAMES)
    assert caught.value.rows == {"ids": 1}
    (source / "vocabularies" / "words.txt").write_bytes(b"a\nc\nb\n")
    with pytest.raises(CheckpointError, match=r"words\.txt"):
        export_embeddings(source, tmp_path / "model", features=NAMES)
    assert not (tmp_path / "model").exists()


def test_command_writes_a_model(tmp_path, engine, checkpoint, monkeypatch, capsys):
    monkeypatch.setattr("pipelines.commands.version_command.load_tensorflow", lambda: None)
    monkeypatch.setattr(cli, "silence", lambda: None)
    arguments = ["export-embeddings", str(checkpoint()), str(tmp_path / "model"), "--feature", "word"]
    arguments += ["--rows-dtype", "words=int8"]
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert not caught.value.code
    assert "serving_default" in capsys.readouterr().out
    vectors = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](tf.constant(ROWS))
    assert list(vectors) == ["word"]
    expected = rounded(engine.embedding_tables["words"].numpy(), "int8")[1]
    np.testing.assert_allclose(vectors["word"][0], expected, rtol=1e-6)


def test_command_refuses_one_type_beside_types_of_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipelines.commands.version_command.load_tensorflow", lambda: None)
    monkeypatch.setattr(cli, "silence", lambda: None)
    with pytest.raises(SystemExit):
        cli.main(["export-embeddings", "in", str(tmp_path), "--rows-dtype", "int8", "--rows-dtype", "words=int8"])
    assert "--rows-dtype is 'int8' beside others" in " ".join(capsys.readouterr().err.split())
