import dataclasses

import numpy as np
import pytest

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.tasks import POSITIVE
from embedding_core.training import TrainingConfig, TrainingJob
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.drawn_candidates import candidate_counts
from embedding_core.training.encoded_rows import rows_folder
from embedding_core.training.job import JobData
from embedding_core.training.training_inputs import Inputs
from tests.support.tf_examples import write_rows
from tests.support.vocabularies import write_tokens

ROWS = [(["a", "b"], "a"), (["a"], "c"), (["b", "b"], "a"), ([], "unknown"), (["c"], "")]
SUMMED = {"items": np.array([6, 3, 2])}  # counts of both features, in the rows of two splits


def inputs(folder, tables):
    """Return inputs with an item in the first and a history in the last of the named tables."""
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
        vocabularies=write_tokens(folder, {"items": [b"a", b"b", b"c"]}),
        tasks=(POSITIVE,),
    )


def write(path, rows):
    columns = ({"history": [token.encode() for token in history], "item": item.encode()} for history, item in rows)
    return write_rows(path, columns)


@pytest.mark.parametrize("tables", [["items"], ["items", "items_of_histories"]])
def test_a_history_of_the_same_vocabulary_is_not_counted(tmp_path, tables):
    file = write(tmp_path / "rows", ROWS)
    found = candidate_counts(inputs(tmp_path, tables), "item", [file], SUMMED)
    assert found.tolist() == [2, 0, 1]


def test_negatives_by_count_are_not_drawn_from_a_history(tmp_path):
    """No row has the item b, but every history has it. Rows are read twice, so they are encoded."""
    files = [write(tmp_path / name, [(["b"] * 9, item) for item in "aac" * 40]) for name in ("train", "eval")]
    job = TrainingJob(
        inputs=inputs(tmp_path, ["items"]),
        training=TrainingConfig(epochs=2, negatives={"feature": "item", "distribution": "count"}),
        model="pipelines.models.ranking",
        train_files=files[:1],
        eval_files=files[1:],
        counts={"items": np.array([80, 1080, 40])},
    )
    with rows_folder(None) as folder:
        data = JobData(job, choose_placement(job.training), folder)
        drawn = next(iter(data.train(0)))
    items = drawn["ids"]["item"].flat_values.numpy()[data.rows :]
    assert len(items) == data.rows
    assert set(items) == {0, 2}


def test_a_vocabulary_of_one_feature_has_the_counts(tmp_path):
    given = inputs(tmp_path, ["items"])
    alone = EmbeddingConfig(tables=given.config.tables, features=given.config.features[:1])
    found = candidate_counts(dataclasses.replace(given, config=alone), "item", [], SUMMED)
    assert found is SUMMED["items"]
    assert candidate_counts(given, "item", [], {}) is None
