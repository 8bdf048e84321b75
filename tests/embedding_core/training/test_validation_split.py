"""The validation part of the train split: separate rows, the same ones for every host and every run."""

import dataclasses
import importlib.util
import os
import pathlib
import signal

import numpy as np
import pytest

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, PreemptionError, TrainingError
from embedding_core.training import EarlyStopping, loop, train
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


def _of_all_replicas(batches, steps, strategy):
    """Return `number` of all rows of weight above 0, sorted."""
    found = []
    for _, batch in zip(range(steps), batches, strict=False):
        columns = (batch["dense"]["number"], batch["weight"])
        for number, weight in zip(*map(strategy.experimental_local_results, columns), strict=True):
            found += number.numpy()[weight.numpy() > 0].tolist()
    return sorted(found)


def test_rows_of_the_validation_part_are_held_back_in_training(tmp_path):
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


def test_chosen_state_is_trained_once_on_the_validation_part(tmp_path):
    """Rows of tokens that the validation part lacks stay as they were at the chosen step."""
    rows = [cases.example(f"w{n % 5 if n < 300 else 5}", n / 300, int(n % 7 < 3)) for n in range(1, 301)]
    job = cases.job_in(tmp_path, rows, early_stopping=STOPPING)
    alone = job.training.replace(early_stopping=STOPPING.replace(train_on_validation=False))
    without = train(dataclasses.replace(job, training=alone), str(tmp_path / "without"))
    trained = train(job, str(tmp_path / "trained"))
    data = JobData(job, choose_placement(job.training))
    steps = trained.history.facts["validation_steps"]
    passed = [batch for batch, _ in zip(data.train_on_validation(), range(steps), strict=False)]
    assert sorted(numbers(passed)) == sorted(numbers(data.validation()))
    assert sum(float(batch["share"]) for batch in passed) == pytest.approx(data.validation_rows / 32)
    used = {int(row) for batch in passed for row in batch["ids"]["word"].flat_values.numpy()}
    moved = (without.tables["words"].numpy() != trained.tables["words"].numpy()).any(axis=1)
    assert 0 < len(used) < len(moved)
    assert set(np.flatnonzero(moved)) == used
    assert (trained.step, trained.history.evals) == (without.step, without.history.evals)
    at_step = next(entry for entry in without.history.evals if entry["step"] == without.step)
    assert without.history.final == at_step
    assert trained.history.final["step"] == trained.step
    assert trained.history.final["loss"] != at_step["loss"]
    assert "validation_steps" not in without.history.facts


def test_part_of_an_epoch_is_followed_by_that_part_of_validation(tmp_path):
    job = job_of(tmp_path, steps=3, epochs=None, batch_size=8)
    data = JobData(job, choose_placement(job.training))
    assert data.steps_per_epoch > 25
    assert [data.validation_steps(step) for step in (1, 3, 10**6)] == [1, 1, -(-data.validation_rows // 8)]


def test_sigterm_in_the_validation_steps_changes_nothing(tmp_path, monkeypatch):
    """Not even if no checkpoint was due before it."""
    job, kept = job_of(tmp_path, checkpoint_every=1000, epochs=2), str(tmp_path / "kept")
    whole = train(job, str(tmp_path / "whole"))
    first = JobData.train_on_validation

    def killed(data):
        os.kill(os.getpid(), signal.SIGTERM)
        return first(data)

    monkeypatch.setattr(JobData, "train_on_validation", killed)
    with pytest.raises(PreemptionError, match="start the same run again to finish it"):
        train(job, str(tmp_path / "a"), resume_folder=kept)
    monkeypatch.undo()
    resumed = train(job, str(tmp_path / "b"), resume_folder=kept)
    assert resumed.history.facts["resumed_at"] == whole.history.facts["steps_done"]
    cases.assert_same(cases.state_of(whole), cases.state_of(resumed))
    assert whole.history.final == resumed.history.final


def test_row_that_is_not_finite_after_the_pass_is_not_returned(tmp_path, monkeypatch):
    monkeypatch.setattr(
        loop.Loop,
        "_train_on_validation",
        lambda self, steps, progress: self._trainable.tables.variables["words"].assign_add([[np.inf] * 4] * 8),
    )
    with pytest.raises(TrainingError, match="'words': 8 rows"):
        train(job_of(tmp_path), str(tmp_path / "run"))


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
        seen = _of_all_replicas(two.train(0), two.steps_per_epoch, strategy)
        held_back = _of_all_replicas(two.train_on_validation(), two.validation_steps(10**6), strategy)
    assert two.hosts_apart == 2
    assert (two.rows, two.validation_rows) == (one.rows, one.validation_rows)
    assert seen == sorted(numbers(one.train(0), one.steps_per_epoch))
    assert held_back == sorted(numbers(one.validation()))


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
