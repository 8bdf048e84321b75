"""One job gives the same tables, dense part and figures under every strategy."""

import dataclasses
import functools
import importlib.util
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import SGD, Adagrad, AdagradMomentum
from embedding_core.training import EarlyStopping, TrainingConfig, loop, train
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.step import keras_optimizers

_spec = importlib.util.spec_from_file_location("training_cases", pathlib.Path(__file__).with_name("test_training.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)


@pytest.fixture(scope="module")
def make_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")

    def make(arguments=None, **training):
        job = cases.job_in(folder, **{"epochs": 2, "batch_size": 36, **training})
        return dataclasses.replace(job, arguments={"hidden_units": [8], "dropout": 0.0, **(arguments or {})})

    return make


@pytest.fixture(scope="module")
def trained(make_job, tmp_path_factory):
    @functools.cache
    def of(strategy, topology=None, **training):
        job = make_job(strategy=strategy, topology=topology, **training)
        return train(job, str(tmp_path_factory.mktemp("run") / "run"))

    return of


def close(first, second):
    one, other = cases.state_of(first), cases.state_of(second)
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_allclose(value, other[key], rtol=2e-4, atol=2e-5, err_msg=key)
    np.testing.assert_allclose(
        [entry["loss"] for entry in first.history.train], [entry["loss"] for entry in second.history.train], rtol=1e-4
    )
    np.testing.assert_allclose(first.history.evals[-1]["auc"], second.history.evals[-1]["auc"], rtol=1e-4)


@pytest.mark.parametrize("topology", [pytest.param("1x1", marks=pytest.mark.slow), "2x2"])
def test_simulated_tpu_trains_what_a_cpu_trains(trained, topology):
    """36 rows in a batch, 300 in the data: the last batch of an epoch is short."""
    close(trained("cpu"), trained("simulated_tpu", topology))


@pytest.mark.parametrize(
    ("strategy", "topology", "apart", "rows"),
    [
        ("cpu", None, False, 3),
        ("cpu", None, False, 5),
        ("simulated_tpu", "2x2", False, 5),
        ("simulated_tpu", "2x2", True, 5),
    ],
)
def test_each_row_of_an_epoch_has_the_same_weight(tmp_path, strategy, topology, apart, rows):
    """A batch has 4 rows, the last one 3 or 1; each row has a word of its own, and its logit starts at 0."""
    table = {"initializer": InitializerConfig(name="constant", scale=0.0), "optimizer": SGD(learning_rate=1e-3)}
    settings = {"epochs": 1, "batch_size": 4, "strategy": strategy, "topology": topology}
    data = [cases.example(f"w{number}", 0.0, number % 2) for number in range(rows)]
    job = cases.job_in(tmp_path, data, table=table, dense_optimizer={"name": "sgd", "learning_rate": 0.0}, **settings)
    arguments = {"hidden_units": [], "cross_layers": 0, "first_order": True}
    job = dataclasses.replace(job, arguments=arguments, eval_files=job.train_files, shard_files=apart)
    tables = train(job, str(tmp_path / "run")).tables
    moved = tables["words"].numpy()[:rows, 0]
    # The gradient of a logit of 0 is half a label's distance to 0.5, and the logit is twice the first column.
    np.testing.assert_allclose(moved, [(-1, 1)[number % 2] * 1e-3 / min(rows, 4) for number in range(rows)], rtol=1e-4)


def test_result_of_a_simulated_tpu_is_on_this_process(trained):
    result = trained("simulated_tpu", "2x2")
    assert isinstance(result.tables["words"], tf.Variable)
    assert not tf.distribute.has_strategy()


def test_cores_without_an_engine_train_by_keras_from_given_rows(make_job, tmp_path):
    """Keras' Adagrad differs from the TPU's only by its epsilon."""
    begun = {}

    def ones(variables):
        begun.update(variables)
        variables["words"].assign(tf.ones([8, 4]))

    results = [
        train(
            dataclasses.replace(make_job(strategy=strategy, topology=topology, epochs=None, steps=6), warm_start=ones),
            str(tmp_path / strategy),
        )
        for strategy, topology in (("cpu", None), ("simulated_tpu", "v5e-4"))
    ]
    assert begun.keys() == {"words", "words/accumulators"}
    one, other = (result.tables["words"].numpy() for result in results)
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    keys = cases.state_of(results[1])
    assert "embedding/words/.ATTRIBUTES/VARIABLE_VALUE" in keys
    assert not any(key.startswith("embedding/words.S") for key in keys)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (AdagradMomentum(), "AdagradMomentum: a TPU without an embedding engine"),
        (Adagrad(clip_weight_max=1.0), "`clip_weight_max` of table 'words' is 1.0"),
    ],
)
def test_cores_without_an_engine_refuse_what_keras_cannot(optimizer, message):
    table = TableConfig(name="words", vocabulary_size=8, dim=4, optimizer=optimizer)
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="word", table="words"),))
    with pytest.raises(ConfigError, match=message):
        keras_optimizers(config, None)


@pytest.mark.parametrize(
    ("strategy", "topology"), [("cpu", None), ("simulated_tpu", "2x2"), ("simulated_tpu", "v5e-4")]
)
def test_pass_after_a_decay_has_the_mean_rate_of_the_epoch(tmp_path, monkeypatch, strategy, topology):
    """The pass is one step from the same state; the 3 steps before had 1, 2/3 and 1/3 of the rates, which are SGD's."""
    monkeypatch.setattr(loop.Loop, "run", lambda self, *_: self._trainable.step.assign(self.total))
    rate = {"dense_optimizer": {"name": "sgd", "learning_rate": 0.5}}

    def trained(decay, on_validation=True):
        stopping = EarlyStopping(validation_fraction=0.2, train_on_validation=on_validation)
        settings = {"steps": 3, "epochs": None, "decay": decay, "early_stopping": stopping, **rate}
        job = cases.job_in(tmp_path, table={"optimizer": SGD()}, strategy=strategy, topology=topology, **settings)
        job = dataclasses.replace(job, arguments={"hidden_units": [8], "dropout": 0.0})
        result = train(job, str(tmp_path / f"{decay}-{on_validation}"))
        assert result.history.facts.get("validation_steps", 0) == on_validation
        return [result.tables["words"].numpy(), *(weight.numpy() for weight in result.model.trainable_weights)]

    begun, constant, falling = trained("none", False), trained("none"), trained("linear")
    for before, full, part in zip(begun, constant, falling, strict=True):
        np.testing.assert_allclose(part - before, (full - before) * 2 / 3, rtol=1e-3, atol=1e-7)
    assert (constant[0] != begun[0]).any()


@pytest.mark.parametrize("strategy", ["gpu", "tpu"])
def test_missing_device_is_one_error(strategy):
    with pytest.raises(ConfigError, match=f"finds no {strategy.upper()} here"):
        choose_placement(TrainingConfig(steps=1, strategy=strategy))
