"""One job gives the same tables, dense part and figures under every strategy."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import InitializerConfig
from embedding_core.errors import ConfigError, TrainingError
from embedding_core.optimizers import SGD, Adagrad, AdagradMomentum
from embedding_core.training import EarlyStopping, TrainingConfig, loop, train
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.step import keras_optimizers
from tests.support.tables import config_of
from tests.support.training_jobs import WITHOUT_DROPOUT, assert_close, job_in, row, state_of

KEY = "embedding/words/.ATTRIBUTES/VARIABLE_VALUE"


def ones(variables):
    """Start the table from rows of ones."""
    assert variables.keys() <= {"words", "words/accumulators"}
    variables["words"].assign(tf.ones([8, 4]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains a job whose rates fall, with a pass over the validation part after it."""
    folder = tmp_path_factory.mktemp("data")

    @functools.cache
    def of(strategy, topology=None):
        stopping = EarlyStopping(metric="loss", validation_fraction=0.2)
        settings = {"epochs": 2, "batch_size": 36, "decay": "linear", "early_stopping": stopping}
        job = job_in(folder, strategy=strategy, topology=topology, **settings)
        job = dataclasses.replace(job, arguments=WITHOUT_DROPOUT, warm_start=ones)
        return train(job, str(tmp_path_factory.mktemp("run") / "run"))

    return of


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=pytest.mark.slow)])
def test_simulated_tpu_trains_what_a_cpu_trains(trained, topology):
    """36 rows in a batch, and a number of rows that is no multiple: the last batch of an epoch is short."""
    cpu, tpu = trained("cpu"), trained("simulated_tpu", topology)
    assert cpu.history.facts["train_rows"] % 36
    assert cpu.history.facts["validation_steps"] == tpu.history.facts["validation_steps"] > 0
    assert_close(cpu, tpu)
    assert isinstance(tpu.tables["words"], tf.Variable)
    assert not tf.distribute.has_strategy()


def test_cores_without_an_engine_train_by_keras_from_given_rows(trained):
    """Keras' Adagrad differs from the TPU's only by its epsilon."""
    cpu, tpu = trained("cpu"), trained("simulated_tpu", "v5e-4")
    np.testing.assert_allclose(cpu.tables["words"].numpy(), tpu.tables["words"].numpy(), rtol=1e-3, atol=1e-4)
    keys = state_of(tpu)
    assert KEY in keys
    assert not any(key.startswith("embedding/words.S") for key in keys)


@pytest.mark.parametrize(
    ("strategy", "topology", "rows"), [("cpu", None, 3), ("cpu", None, 5), ("simulated_tpu", "2x1", 5)]
)
def test_each_row_of_an_epoch_has_the_same_weight(tmp_path, strategy, topology, rows):
    """A batch has 4 rows, the last one 3 or 1; each row has a word of its own, and its logit starts at 0."""
    table = {"initializer": InitializerConfig(name="constant", scale=0.0), "optimizer": SGD(learning_rate=1e-3)}
    settings = {"epochs": 1, "batch_size": 4, "strategy": strategy, "topology": topology}
    data = [row(f"w{number}", 0.0, number % 2) for number in range(rows)]
    job = job_in(tmp_path, data, table=table, dense_optimizer={"name": "sgd", "learning_rate": 0.0}, **settings)
    arguments = {"hidden_units": [], "cross_layers": 0, "first_order": True}
    apart = strategy == "simulated_tpu"  # each host reads a file of its own
    job = dataclasses.replace(job, arguments=arguments, eval_files=job.train_files, shard_files=apart)
    tables = train(job, str(tmp_path / "run")).tables
    moved = tables["words"].numpy()[:rows, 0]
    # The gradient of a logit of 0 is half a label's distance to 0.5, and the logit is twice the first column.
    np.testing.assert_allclose(moved, [(-1, 1)[number % 2] * 1e-3 / min(rows, 4) for number in range(rows)], rtol=1e-4)


def test_cores_without_an_engine_do_not_save_a_nan(tmp_path):
    def plant(variables):
        variables["words"][3, 1].assign(np.nan)

    data = [row("w1", 0.5, label) for label in (0, 1)] * 30
    job = job_in(tmp_path, data, epochs=1, strategy="simulated_tpu", topology="v5e-4")
    with pytest.raises(TrainingError, match="'words': 1 rows"):
        train(dataclasses.replace(job, warm_start=plant), str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (AdagradMomentum(), "AdagradMomentum: a TPU without an embedding engine"),
        (Adagrad(clip_weight_max=1.0), "`clip_weight_max` of table 'words' is 1.0"),
    ],
)
def test_cores_without_an_engine_refuse_what_keras_cannot(optimizer, message):
    with pytest.raises(ConfigError, match=message):
        keras_optimizers(config_of(words={"optimizer": optimizer}), None)


def test_pass_after_a_decay_has_the_mean_rate_of_the_epoch(tmp_path, monkeypatch):
    """The pass is one step from the same state; the 3 steps before had 1, 2/3 and 1/3 of the rates, which are SGD's."""
    monkeypatch.setattr(loop.Loop, "run", lambda self, *_: self._trainable.step.assign(self.total))

    def after(decay, share):
        dense, table = {"name": "sgd", "learning_rate": 0.6 * share}, {"optimizer": SGD(learning_rate=0.3 * share)}
        stopping = EarlyStopping(validation_fraction=0.2)
        settings = {"steps": 3, "epochs": None, "decay": decay, "early_stopping": stopping, "dense_optimizer": dense}
        job = job_in(tmp_path, table=table, **settings)
        job = dataclasses.replace(job, arguments=WITHOUT_DROPOUT, warm_start=ones)
        result = train(job, str(tmp_path / decay))
        assert result.history.facts["validation_steps"] == 1
        return [result.tables["words"].numpy(), *(weight.numpy() for weight in result.model.trainable_weights)]

    constant, falling = after("none", 2 / 3), after("linear", 1)
    for expected, found in zip(constant, falling, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert (np.abs(falling[0] - 1) > 1e-4).any()


@pytest.mark.parametrize("strategy", ["gpu", "tpu"])
def test_missing_device_is_one_error(strategy):
    with pytest.raises(ConfigError, match=f"finds no {strategy.upper()} here"):
        choose_placement(TrainingConfig(steps=1, strategy=strategy))
