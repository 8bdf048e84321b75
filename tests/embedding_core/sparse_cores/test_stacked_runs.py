"""The result of a training on real SparseCores, whose checkpoint has the tables stacked, is restored and retrieved."""

import os

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import Adagrad
from embedding_core.checkpoint import load_checkpoint_into, retrieve
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError
from embedding_core.model_inputs import build_model
from embedding_core.sparse_cores import Slice
from embedding_core.sparse_cores.stored_tables import stacked_copies, stacks_of_names
from embedding_core.tasks import POSITIVE
from embedding_core.training.finished_run import RunDescription, restore_run, restore_weights, slice_of_run
from embedding_core.training_config import TrainingConfig
from tests.support.tables import config_of

SLICE = Slice(2, 4)
MODEL = "pipelines.models.ranking"
ADAGRAD = {"optimizer": Adagrad(learning_rate=0.1)}
CONFIG = config_of(item={"vocabulary_size": 64, **ADAGRAD}, shop={"vocabulary_size": 30, **ADAGRAD})


@pytest.fixture(params=[["item_shop"], ["item", "shop"]])
def trained(request, tmp_path):
    """A run's folder as TensorFlow 2.16 writes it on SparseCores, and the tables and slots."""
    host = HostEngine(CONFIG, seed=1)
    model = build_model(MODEL, CONFIG, (), {}, (POSITIVE,))
    holder = stacked_copies(host.table_variables, stacks_of_names(request.param, CONFIG, SLICE), SLICE.shards)
    folder = tmp_path / "run"
    checkpoint = tf.train.Checkpoint(embedding=holder, model=model, step=tf.Variable(7, dtype=tf.int64))
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=1)
    prefix = manager.save(checkpoint_number=7)
    return folder, prefix, {key: variable.numpy() for key, variable in host.table_variables.items()}


def describe(folder, prefix, stacked_on):
    RunDescription(
        model=MODEL, arguments={}, config=CONFIG, training=TrainingConfig(steps=7), dense=(), tasks=(POSITIVE,),
        weight=None, step=7, checkpoint=os.path.basename(prefix), vocabularies={}, stacked_on=stacked_on,
    ).save(str(folder))  # fmt: skip


def test_tables_are_restored_from_their_stacks(trained):
    _, prefix, expected = trained
    engine, _ = restore_weights(prefix, MODEL, CONFIG, (), {}, (POSITIVE,), stacked_on=SLICE)
    for table in CONFIG.tables:
        np.testing.assert_array_equal(engine.table_variables[table.name].numpy(), expected[table.name])


def test_description_of_the_run_says_how_tables_are_stacked(trained, tmp_path):
    folder, prefix, expected = trained
    assert slice_of_run(str(folder)) is None
    describe(folder, prefix, SLICE)
    assert slice_of_run(str(folder)) == SLICE
    destination = tmp_path / "tables"
    retrieve(prefix, CONFIG, destination, vocabularies={}, slice_=slice_of_run(str(folder)))
    found = {key: tf.Variable(np.zeros_like(rows)) for key, rows in expected.items()}
    load_checkpoint_into(str(destination), found, CONFIG, vocabulary_digests={})
    for key, rows in expected.items():
        np.testing.assert_array_equal(found[key].numpy(), rows)


def test_stacks_without_a_slice_are_refused(trained):
    folder, prefix, _ = trained
    with pytest.raises(CheckpointError, match=r"item_shop|incompatible tensor with shape"):
        restore_weights(prefix, MODEL, CONFIG, (), {}, (POSITIVE,))
    describe(folder, prefix, None)
    with pytest.raises(CheckpointError):
        restore_run(str(folder))
