import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.tasks import POSITIVE
from embedding_core.training.candidate_counts import candidate_counts
from embedding_core.training.training_inputs import Inputs

ROWS = [(["a", "b"], "a"), (["a"], "c"), (["b", "b"], "a"), ([], "unknown"), (["c"], "")]
SUMMED = {"items": np.array([6, 3, 2])}  # counts of both features, in the rows of two splits


def inputs(folder, tables):
    """Return inputs with an item in the first and a history in the last of the named tables."""
    (folder / "items.txt").write_text("a\nb\nc\n", encoding="utf-8")
    return Inputs(
        config=EmbeddingConfig(
            tables=[
                TableConfig(name=name, vocabulary_size=4, dim=2, vocabulary="items", oov_rows=1) for name in tables
            ],
            features=[
                FeatureConfig(name="item", table=tables[0], column=ColumnConfig(name="item")),
                FeatureConfig(name="history", table=tables[-1], column=ColumnConfig(name="history", multivalent=True)),
            ],
        ),
        vocabularies={"items": str(folder / "items.txt")},
        tasks=(POSITIVE,),
    )


@pytest.fixture
def file(tmp_path):
    path = str(tmp_path / "rows")
    with tf.io.TFRecordWriter(path) as writer:
        for history, item in ROWS:
            columns = {"history": [one.encode() for one in history], "item": [item.encode()]}
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)) for name, values in columns.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return path


@pytest.mark.parametrize("tables", [["items"], ["items", "items_of_histories"]])
def test_a_history_of_the_same_vocabulary_is_not_counted(tmp_path, file, tables):
    found = candidate_counts(inputs(tmp_path, tables), "item", [file], None, SUMMED)
    assert found.tolist() == [2, 0, 1]


def test_rows_that_are_held_back_are_not_counted(tmp_path, file):
    found = candidate_counts(
        inputs(tmp_path, ["items"]), "item", [file], lambda rows: tf.range(tf.size(rows)) < 2, SUMMED
    )
    assert found.tolist() == [1, 0, 1]


def test_a_vocabulary_of_one_feature_has_the_counts(tmp_path):
    given = inputs(tmp_path, ["items"])
    alone = EmbeddingConfig(tables=given.config.tables, features=given.config.features[:1])
    found = candidate_counts(
        Inputs(config=alone, vocabularies=given.vocabularies, tasks=given.tasks), "item", [], None, SUMMED
    )
    assert found is SUMMED["items"]
    assert candidate_counts(given, "item", [], None, {}) is None
