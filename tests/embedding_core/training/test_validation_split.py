"""The validation part of the train split: separate rows, the same ones for every host and every run."""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import pytest

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError
from embedding_core.training import EarlyStopping, train
from embedding_core.training.device_choice import Placement, choose_placement
from embedding_core.training.job import JobData

_spec = importlib.util.spec_from_file_location("training_cases", pathlib.Path(__file__).with_name("test_training.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)
STOPPING = EarlyStopping(validation_fraction=0.2)


def job_of(folder, **training):
    """A job of 300 rows; `number` counts them from 1."""
    numbered = [cases.example(f"w{number % 7}", float(number), number % 2) for number in range(1, 301)]
    return cases.job_in(folder, numbered, **{"early_stopping": STOPPING, **training})


def numbers(batches, steps=None):
    batches = list(batches) if steps is None else [batch for batch, _ in zip(batches, range(steps), strict=False)]
    return np.concatenate([batch["dense"]["number"].numpy().ravel() for batch in batches]).tolist()


def test_rows_of_the_validation_part_are_never_trained_on(tmp_path):
    job = job_of(tmp_path)
    data = JobData(job, choose_placement(job.training))
    assert data.steps_per_epoch == -(-data.rows // 32)
    trained, validated = numbers(data.train(0), data.steps_per_epoch), numbers(data.validation())
    assert sorted(trained + validated) == list(range(1, 301))
    assert (len(trained), len(validated)) == (data.rows, data.validation_rows)
    assert 30 < data.validation_rows < 90
    again = JobData(job, choose_placement(job.training))
    assert numbers(again.validation()) == validated
    assert set(numbers(again.train(3), 2 * data.steps_per_epoch)) == set(trained)


def test_without_early_stopping_every_row_is_trained_on(tmp_path):
    job = job_of(tmp_path, early_stopping=None)
    data = JobData(job, choose_placement(job.training))
    assert (data.rows, data.validation_rows, data.validation()) == (300, 0, None)


def test_hosts_with_files_of_their_own_hold_back_the_same_rows(tmp_path):
    job = job_of(tmp_path)
    job = dataclasses.replace(job, eval_files=job.train_files, shard_files=True)
    one = JobData(dataclasses.replace(job, shard_files=False), choose_placement(job.training))
    strategy = simulated_tpu(hosts=2, cores_per_host=1)
    with strategy.scope():
        two = JobData(job, Placement("simulated_tpu", strategy))
        seen = [
            (number, weight)
            for _, batch in zip(range(two.steps_per_epoch), two.train(0), strict=False)
            for numbers_of, weights in zip(
                *(strategy.experimental_local_results(part) for part in (batch["dense"]["number"], batch["weight"])),
                strict=True,
            )
            for number, weight in zip(numbers_of.numpy().ravel(), weights.numpy().ravel(), strict=True)
        ]
    assert two.hosts_apart == 2
    assert (two.rows, two.validation_rows) == (one.rows, one.validation_rows)
    trained = sorted(number for number, weight in seen if weight)
    assert trained == sorted(numbers(one.train(0), one.steps_per_epoch))


def test_validation_part_of_one_class_stops_nothing_and_says_so(tmp_path, caplog):
    fraction = STOPPING.replace(validation_fraction=1e-6)
    result = train(job_of(tmp_path, early_stopping=fraction, epochs=2), str(tmp_path / "run"))
    assert "Early stopping had no effect" in result.history.facts["early_stopping"]
    assert "Early stopping had no effect" in caplog.text
    assert result.step == result.history.facts["steps_planned"]


@pytest.mark.parametrize("fraction", [0, 0.6, -1, "a", True])
def test_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ConfigError, match="validation_fraction"):
        EarlyStopping(validation_fraction=fraction)
