"""Compares the vectors of an exported model's signatures with those of the restored run."""

import os
from types import SimpleNamespace

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import DataError
from embedding_core.evaluation.retrieval_figures import rank_queries
from embedding_core.evaluation.towers import ExportedTowers, RunTowers, all_vectors
from embedding_core.model_inputs import build_model
from embedding_core.quality_rules import RankingProtocol
from embedding_core.serving import export_model
from embedding_core.tasks import POSITIVE
from embedding_core.training import Inputs, Negatives, TrainingConfig
from embedding_core.training.finished_run import RestoredRun, RunDescription
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

TOKENS = {"user": [b"a", b"b"], "item": [b"3", b"-1", b"2"], "shop": [b"s", b"t"]}
COLUMNS = {"user": {}, "past items": {"dtype": "int64", "multivalent": True}, "item": {"dtype": "int64"}, "shop": {}}
CONFIG = EmbeddingConfig(
    tables=tuple(
        TableConfig(name=name, vocabulary=name, vocabulary_size=len(tokens) + 1, dim=4, oov_rows=1)
        for name, tokens in TOKENS.items()
    ),
    features=tuple(
        FeatureConfig(
            name=name.split()[0], table="item" if "items" in name else name, column=ColumnConfig(name=name, **more)
        )
        for name, more in COLUMNS.items()
    ),
)
DENSE = {"price": tf.io.FixedLenFeature([], tf.float32)}
ROWS = [
    {"user": b"a", "past items": [3, 2, 7], "item": 2, "shop": b"t", "price": 2.5},
    {"past items": [], "item": 3, "shop": b"s", "price": -1.0},
    {"user": b"new", "past items": [-1], "item": 9, "price": 0.0},
]


@pytest.fixture(scope="module", params=[["item"], ["item", "shop"]])
def both(request, tmp_path_factory):
    """The towers of a run and of its export, whose candidate tower reads one feature or two."""
    folder = tmp_path_factory.mktemp("towers")
    arguments = {"query_features": ["user", "past", "price"], "candidate_features": request.param, "width": 5}
    files = write_tokens(folder, TOKENS)
    inputs = Inputs(config=CONFIG, vocabularies=files, dense=("price",), raw_spec=DENSE, tasks=(POSITIVE,))
    module = "pipelines.models.two_tower"
    model = build_model(module, CONFIG, ("price",), arguments)
    for place, variable in enumerate(model.trainable_variables):
        variable.assign(tf.random.stateless_normal(variable.shape, [7, place]))
    engine = HostEngine(CONFIG, seed=3, with_slots=False)
    description = RunDescription(
        model=module, arguments=arguments, config=CONFIG, dense=("price",), tasks=(POSITIVE,), weight=None, step=1,
        training=TrainingConfig(steps=1, negatives=Negatives(feature="item")), checkpoint="", vocabularies={},
    )  # fmt: skip
    tables = {name: table.numpy() for name, table in engine.embedding_tables.items()}
    dense = DenseInputs(names=("price",), spec=DENSE)
    export_model(folder / "model", config=CONFIG, tables=tables, vocabularies=files, model=model, dense=dense)
    loaded = tf.saved_model.load(str(folder / "model"))
    exported = ExportedTowers(loaded, CONFIG, [*COLUMNS, "price"], TOKENS["item"], "item")
    return RunTowers(RestoredRun(description, engine, model), inputs), exported, loaded


def test_exported_towers_compute_what_the_run_does(both):
    run, exported, loaded = both
    rows = tf.constant([example(row) for row in ROWS])
    np.testing.assert_allclose(exported.queries(rows), run.queries(rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(exported.candidates(rows), run.candidates(rows), rtol=1e-5, atol=1e-6)
    assert (exported.feature, exported.alone, exported.query_features) == ("item", run.alone, run.query_features)
    if run.alone:
        np.testing.assert_allclose(all_vectors(exported, 3), all_vectors(run, 3), rtol=1e-5, atol=1e-6)
        assert len(all_vectors(exported, 3)) == 3
    with pytest.raises(DataError, match="the model reads 'price', which no column of the data is"):
        ExportedTowers(loaded, CONFIG, list(COLUMNS), TOKENS["item"], "item")


def test_several_features_of_candidates_need_a_name(both):
    run, _, loaded = both
    if run.alone:
        assert ExportedTowers(loaded, CONFIG, [*COLUMNS, "price"], TOKENS["item"], None).feature == "item"
    else:
        with pytest.raises(DataError, match=r"reads item, shop: name the one .* `training.negatives.feature`"):
            ExportedTowers(loaded, CONFIG, [*COLUMNS, "price"], TOKENS["item"], None)


def test_models_of_other_candidates_are_not_compared():
    models = [SimpleNamespace(feature="item"), SimpleNamespace(feature="shop")]
    with pytest.raises(DataError, match="'item' identifies those of the first, 'shop' those of another"):
        rank_queries(models, None, None, RankingProtocol(), train_files=(), eval_files=(), seed=0, counted=False)
