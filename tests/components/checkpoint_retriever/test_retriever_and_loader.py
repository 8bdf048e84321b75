"""CheckpointRetriever and CheckpointLoader on hand-made artifacts: a run, then a run with another vocabulary."""

import os

import numpy as np
import pytest
import tensorflow as tf
from tfx.types import standard_artifacts

from components.artifacts import EmbeddingCheckpoint
from components.checkpoint_loader.executor import Executor as LoaderExecutor
from components.checkpoint_retriever.executor import Executor as RetrieverExecutor
from embedding_core.checkpoint import load_checkpoint_into, table_shapes, verify
from embedding_core.config import TableSettings
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.planning.planner import plan_tables
from pipelines.config import config_from_mapping
from pipelines.pipeline.component_inputs import remap_policy
from tests.support.artifacts import artifact, fact, inputs_of
from tests.support.vocabularies import vocabulary_of

pytestmark = pytest.mark.tfx


def inputs(folder, *tokens, **table):
    """Return the input artifacts of a run over these tokens, and the configuration of its table."""
    overrides = {"item": TableSettings(**table)}
    config = plan_tables([{"name": "item", "vocabulary": "item"}], {"item": len(tokens)}, overrides=overrides)
    made = inputs_of(folder, config, [vocabulary_of(tokens, "item", total_count=99)])
    return {key: [value] for key, value in made.items()}, config


def model_run(folder, config, spoilt_row=None):
    """Write the checkpoint of a training; return its artifact, and the tables."""
    random = np.random.default_rng(0)
    shapes = table_shapes(config)
    tables = {key: tf.Variable(random.normal(size=shape).astype(np.float32)) for key, shape in shapes.items()}
    if spoilt_row is not None:
        tables["item"][spoilt_row, 0].assign(np.nan)
    holder = tf.__internal__.tracking.AutoTrackable()
    for key, variable in tables.items():
        setattr(holder, key, variable)
    run = artifact(standard_artifacts.ModelRun, folder / "model_run")
    checkpoint = tf.train.Checkpoint(embedding=holder, step=tf.Variable(30, dtype=tf.int64))
    manager = tf.train.CheckpointManager(checkpoint, os.path.join(run.uri, "checkpoints"), max_to_keep=1)
    manager.save(checkpoint_number=30)
    return run, tables


@pytest.fixture
def retrieved(tmp_path):
    """A retrieved checkpoint of tokens a, b, c, and the tables that were trained."""
    made, config = inputs(tmp_path, b"a", b"b", b"c")
    run, tables = model_run(tmp_path, config)
    output = artifact(EmbeddingCheckpoint, tmp_path / "out" / "7", made=False)
    RetrieverExecutor().Do({**made, "model_run": [run]}, {"embedding_checkpoint": [output]}, {"nonfinite": "error"})
    return output, tables, config


def test_retriever_writes_what_was_trained(retrieved):
    output, tables, config = retrieved
    digests = {"item": vocabulary_of([b"a", b"b", b"c"], "item", total_count=99).digest}
    fresh = {key: tf.Variable(tf.zeros_like(variable)) for key, variable in tables.items()}
    load_checkpoint_into(output.uri, fresh, config, vocabulary_digests=digests)
    for key, variable in tables.items():
        np.testing.assert_array_equal(fresh[key].numpy(), variable.numpy())
    assert (fact(output, "step"), fact(output, "tables")) == (30, 1)


def test_retriever_without_a_checkpoint_names_the_folder(tmp_path):
    made, _ = inputs(tmp_path, b"a")
    run = artifact(standard_artifacts.ModelRun, tmp_path / "empty")
    output = artifact(EmbeddingCheckpoint, tmp_path / "out")
    with pytest.raises(CheckpointError, match="checkpoints' has no checkpoint"):
        RetrieverExecutor().Do({**made, "model_run": [run]}, {"embedding_checkpoint": [output]}, {})


def test_loader_moves_rows_with_their_tokens(retrieved, tmp_path):
    earlier, tables, _ = retrieved
    made, _ = inputs(tmp_path / "next", b"c", b"new", b"a")
    output = artifact(EmbeddingCheckpoint, tmp_path / "next" / "out")
    LoaderExecutor().Do({**made, "earlier_checkpoint": [earlier]}, {"embedding_checkpoint": [output]}, {"policy": "{}"})
    verify(output.uri)
    table = tf.train.load_checkpoint(os.path.join(output.uri, "tables")).get_tensor("item/accumulators")
    old = tables["item/accumulators"].numpy()
    np.testing.assert_array_equal(table[[0, 2, 3]], old[[2, 0, 3]])
    np.testing.assert_array_equal(
        table[1], np.full(old.shape[1], DEFAULT_OPTIMIZER.initial_accumulator_value, np.float32)
    )
    assert fact(output, "remap")["item"] == {"kept": 2, "new": 1, "dropped": 1, "kept_traffic": 4 / 99}


def test_loader_follows_the_warm_start_of_the_configuration(retrieved, tmp_path):
    earlier, tables, _ = retrieved
    dim = tables["item"].shape[1] - 1
    made, _ = inputs(tmp_path / "next", b"new", b"a", dim=dim, optimizer="sgd")
    warm_start = {"checkpoint": "x", "new_rows": "oov", "changed_dim": "resize", "changed_optimizer": "reset"}
    rows = {"path": "rows.csv", "format": "csv"}
    (tmp_path / "rows.csv").write_text("item,label\n")
    said = {"data": rows, "label": "label", "features": {"categorical": ["item"]}, "warm_start": warm_start}
    given, output = {**made, "earlier_checkpoint": [earlier]}, artifact(EmbeddingCheckpoint, tmp_path / "next" / "out")
    with pytest.raises(CheckpointError, match=r"`dim` of 'item' is .*slots of 'item' are of Adagrad"):
        LoaderExecutor().Do(given, {"embedding_checkpoint": [output]}, {"policy": "{}"})
    policy = remap_policy(config_from_mapping(said, tmp_path)).to_json()
    LoaderExecutor().Do(given, {"embedding_checkpoint": [output]}, {"policy": policy})
    reader = tf.train.load_checkpoint(os.path.join(output.uri, "tables"))
    np.testing.assert_array_equal(reader.get_tensor("item"), tables["item"].numpy()[[3, 0, 3], :dim])
    assert not reader.has_tensor("item/accumulators")


def test_retriever_refuses_or_counts_rows_that_are_not_finite(tmp_path):
    made, config = inputs(tmp_path, b"a", b"b", b"c")
    run, _ = model_run(tmp_path, config, spoilt_row=1)
    output = artifact(EmbeddingCheckpoint, tmp_path / "out", made=False)
    given = {**made, "model_run": [run]}
    with pytest.raises(CheckpointError, match="'item': 1 rows"):
        RetrieverExecutor().Do(given, {"embedding_checkpoint": [output]}, {"nonfinite": "error"})
    RetrieverExecutor().Do(given, {"embedding_checkpoint": [output]}, {"nonfinite": "keep"})
    assert fact(output, "nonfinite_rows") == {"item": 1}
    assert verify(output.uri).nonfinite_rows == {"item": 1}
