"""The validation part of the train split: separate rows, the same ones for every host and every run."""

import dataclasses
import itertools
import os
import signal

import numpy as np
import pytest

from embedding_core.engines import simulated_tpu
from embedding_core.errors import ConfigError, PreemptionError, TrainingError
from embedding_core.training import EarlyStopping, loop, train
from embedding_core.training.device_choice import Placement, choose_placement
from embedding_core.training.job import JobData
from tests.support.training_jobs import assert_same, job_in, numbered, row, rows_by_host, state_of

STOPPING = EarlyStopping(validation_fraction=0.2)


def job_of(folder, **training):
    """A job of 300 rows; `number` counts them from 1."""
    return job_in(folder, numbered(1, 300), **{"early_stopping": STOPPING, **training})


def data_of(job):
    return JobData(job, choose_placement(job.training))


def numbers(batches, steps=None):
    batches = list(batches) if steps is None else [batch for batch, _ in zip(batches, range(steps), strict=False)]
    return np.concatenate([batch["dense"]["number"].numpy().ravel() for batch in batches]).tolist()


def test_rows_of_the_validation_part_are_held_back_in_training(tmp_path):
    job = job_of(tmp_path)
    data = data_of(job)
    assert data.steps_per_epoch == -(-data.rows // 32)
    trained, validated = numbers(data.train(0), data.steps_per_epoch), numbers(data.validation())
    assert sorted(trained + validated) == list(range(1, 301))
    assert (len(trained), len(validated)) == (data.rows, data.validation_rows)
    assert 30 < data.validation_rows < 90
    again = data_of(job)
    assert numbers(again.validation()) == validated
    assert set(numbers(again.train(3), 2 * data.steps_per_epoch)) == set(trained)


def test_equal_rows_are_in_both_parts(tmp_path):
    """Else training would see one label of a token, and the validation part the other one."""
    given = [row(f"w{n % 2}", 0.0, n // 2 % 2) for n in range(400)]
    data = data_of(job_in(tmp_path, given, early_stopping=STOPPING))

    def kinds(batches):
        pairs = ((batch["ids"]["word"].flat_values.numpy(), batch["label"].numpy()[:, 0]) for batch in batches)
        return {pair for ids, labels in pairs for pair in zip(ids.tolist(), labels.tolist(), strict=True)}

    train_batches = itertools.islice(data.train(0), data.steps_per_epoch)
    assert len(kinds(train_batches)) == len(kinds(data.validation())) == 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job and its result; only the last row has the word w5."""
    folder = tmp_path_factory.mktemp("whole")
    rows = [row(f"w{n % 5 if n < 300 else 5}", n / 300, int(n % 7 < 3)) for n in range(1, 301)]
    job = job_in(folder, rows, early_stopping=STOPPING)
    return job, train(job, str(folder / "run"))


def test_chosen_state_is_trained_once_on_the_validation_part(whole, tmp_path):
    """Rows of tokens that the validation part lacks stay as they were at the chosen step."""
    job, trained = whole
    alone = job.training.replace(early_stopping=STOPPING.replace(train_on_validation=False))
    without = train(dataclasses.replace(job, training=alone), str(tmp_path / "without"))
    data = data_of(job)
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
    data = data_of(job_of(tmp_path, steps=3, epochs=None, batch_size=8))
    assert data.steps_per_epoch > 25
    assert [data.validation_steps(step) for step in (1, 3, 10**6)] == [1, 1, -(-data.validation_rows // 8)]


def test_sigterm_in_the_validation_steps_changes_nothing(whole, tmp_path, monkeypatch):
    """Not even if no checkpoint was due before it."""
    job, result = whole
    job, kept = dataclasses.replace(job, training=job.training.replace(checkpoint_every=1000)), str(tmp_path / "kept")
    first = JobData.train_on_validation

    def killed(data):
        os.kill(os.getpid(), signal.SIGTERM)
        return first(data)

    monkeypatch.setattr(JobData, "train_on_validation", killed)
    with pytest.raises(PreemptionError, match="start the same run again to finish it"):
        train(job, str(tmp_path / "a"), resume_folder=kept)
    monkeypatch.undo()
    resumed = train(job, str(tmp_path / "b"), resume_folder=kept)
    assert resumed.history.facts["resumed_at"] == result.history.facts["steps_done"]
    assert_same(state_of(result), state_of(resumed))
    assert result.history.final == resumed.history.final


def test_row_that_is_not_finite_after_the_pass_is_not_returned(tmp_path, monkeypatch):
    def ruin(self, steps, progress):
        self._trainable.tables.variables["words"].assign_add([[np.inf] * 4] * 8)

    monkeypatch.setattr(loop.Loop, "_train_on_validation", ruin)
    monkeypatch.setattr(loop.Loop, "run", lambda self, *_: self._trainable.step.assign(self.total))
    with pytest.raises(TrainingError, match="'words': 8 rows"):
        train(job_of(tmp_path), str(tmp_path / "run"))


def test_without_early_stopping_every_row_is_trained_on(tmp_path):
    data = data_of(job_of(tmp_path, early_stopping=None))
    assert (data.rows, data.validation_rows, data.validation()) == (300, 0, None)


def test_hosts_with_files_of_their_own_hold_back_the_same_rows(tmp_path):
    job = job_of(tmp_path)
    data, strategy = data_of(job), simulated_tpu(hosts=2, cores_per_host=1)
    job = dataclasses.replace(job, eval_files=job.train_files, shard_files=True)
    two = JobData(job, Placement("simulated_tpu", strategy))
    seen, _ = rows_by_host(two.train(0), strategy, two.steps_per_epoch)
    held_back, _ = rows_by_host(two.train_on_validation(), strategy, two.validation_steps(10**6))
    assert two.hosts_apart == 2
    assert (two.rows, two.validation_rows) == (data.rows, data.validation_rows)
    assert sorted(itertools.chain(*seen)) == sorted(numbers(data.train(0), data.steps_per_epoch))
    assert sorted(itertools.chain(*held_back)) == sorted(numbers(data.validation()))


def test_validation_part_of_one_class_stops_nothing_and_says_so(tmp_path, caplog):
    fraction = STOPPING.replace(validation_fraction=1e-6)
    result = train(job_of(tmp_path, early_stopping=fraction, epochs=2), str(tmp_path / "run"))
    assert "Early stopping had no effect" in result.history.facts["early_stopping"]
    assert "Early stopping had no effect" in caplog.text
    assert result.step == result.history.facts["steps_planned"]


@pytest.mark.parametrize("fraction", [0, 0.6])
def test_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ConfigError, match="validation_fraction"):
        EarlyStopping(validation_fraction=fraction)
