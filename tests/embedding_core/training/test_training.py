import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.errors import CheckpointError, DataError, PreemptionError, TrainingError
from embedding_core.optimizers import SGD
from embedding_core.training import EarlyStopping, loop, train
from embedding_core.training.eval_metrics import Evaluation, TaskFigures, evaluate
from tests.support.training_jobs import assert_same, job_in, row, rows, state_at, state_of


@pytest.fixture
def make_job(tmp_path):
    return functools.partial(job_in, tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job, its folder, its result and its progress; decay and early stopping add state to save."""
    folder, said = tmp_path_factory.mktemp("whole"), []
    stopping = EarlyStopping(patience=9)
    job = job_in(folder, checkpoint_every=7, eval_every=5, decay="linear", early_stopping=stopping)
    kept = str(folder / "kept")
    result = train(job, str(folder / "run"), resume_folder=kept, progress=lambda *state: said.append(state))
    return job, folder, result, said


def test_training_learns_and_writes_its_curves(whole):
    _, folder, result, said = whole
    assert max(entry["auc"] for entry in result.history.evals) > 0.8
    assert result.history.train[-1]["loss"] < result.history.train[0]["loss"]
    planned = result.history.facts["steps_planned"]
    assert [state[:2] for state in said if state[2].startswith("loss")][-1] == (planned, planned)
    assert (folder / "run/history.json").exists()
    assert list((folder / "run/logs/train").iterdir())


def test_checkpoint_has_the_keys_of_the_contract(whole):
    keys = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").replace(".S", "/") for key in state_of(whole[2])}
    assert {"embedding/words", "embedding/words/accumulators", "step"} <= keys
    assert {key.split("/")[0] for key in keys} == {"embedding", "model", "optimizer", "step"}


def test_another_seed_gives_other_tables(whole, tmp_path):
    job, _, result, _ = whole
    other = train(dataclasses.replace(job, training=job.training.replace(seed=2**40 + 4)), str(tmp_path / "run"))
    assert not np.array_equal(result.tables["words"].numpy(), other.tables["words"].numpy())
    assert not (tmp_path / "run/resume").exists()


class KilledError(Exception):
    pass


def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(whole, tmp_path):
    job, _, result, _ = whole

    def kill(step, total, detail):
        if step >= 9:
            raise KilledError

    with pytest.raises(KilledError):
        train(job, str(tmp_path / "a"), resume_folder=str(tmp_path / "kept"), progress=kill)
    said = []
    resumed = train(
        job, str(tmp_path / "b"), resume_folder=str(tmp_path / "kept"), progress=lambda step, *_: said.append(step)
    )
    assert resumed.history.facts["resumed_at"] == 7
    assert said[0] == 7, "progress starts with the steps of before"
    assert_same(state_of(result), state_of(resumed))
    before, after = ([(entry["step"], entry["loss"]) for entry in run.history.evals] for run in (result, resumed))
    assert before == after


KILLED_RUN = """
import pathlib, sys
from embedding_core.training import train
from tests.support.training_jobs import job_in
folder = pathlib.Path(sys.argv[1])
job = job_in(folder, epochs=60, checkpoint_every=3)
train(job, str(folder / "out"), resume_folder=str(folder / "kept"))
"""


def newest_step(folder):
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)


@pytest.mark.slow
def test_run_killed_at_random_moments_ends_in_the_same_tables(make_job, tmp_path):
    whole = train(make_job(epochs=60, checkpoint_every=3), str(tmp_path / "whole"))
    command = [sys.executable, "-c", KILLED_RUN, str(tmp_path)]
    random, kills = np.random.default_rng(0), 0
    while True:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        before = newest_step(tmp_path / "kept")
        while process.poll() is None and kills < 3:
            if newest_step(tmp_path / "kept") > before:
                time.sleep(random.uniform(0, 0.5))
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert kills
    final = tf.train.latest_checkpoint(str(tmp_path / "out/checkpoints"))
    assert_same(state_at(whole.checkpoint), state_at(final))


def test_sigterm_saves_the_step_and_restarts_end_the_same(whole, tmp_path, monkeypatch):
    """SIGTERM comes after the evaluation of step 5, which saves no checkpoint, and in the evaluation of step 10."""
    job, _, result, _ = whole
    job = dataclasses.replace(job, training=job.training.replace(checkpoint_every=100))
    evaluations = []

    def terminate_at_step_5(step, total, detail):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    def evaluate_and_terminate(*arguments):
        evaluations.append(arguments)
        if len(evaluations) == 2:  # of the eval split, after that of the validation part
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    before = signal.getsignal(signal.SIGTERM)
    kept = str(tmp_path / "kept")
    with pytest.raises(PreemptionError, match=r"the state after step 5 of \d+ is saved"):
        train(job, str(tmp_path / "a"), resume_folder=kept, progress=terminate_at_step_5)
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.setattr(loop, "evaluate", evaluate_and_terminate)
    with pytest.raises(PreemptionError, match=r"the state after step 10 of \d+ is saved"):
        train(job, str(tmp_path / "b"), resume_folder=kept)
    monkeypatch.undo()
    resumed = train(job, str(tmp_path / "c"), resume_folder=kept)
    assert resumed.history.facts["resumed_at"] == 10
    assert_same(state_of(result), state_of(resumed))
    assert [entry["auc"] for entry in result.history.evals] == [entry["auc"] for entry in resumed.history.evals]


def test_damaged_checkpoint_is_passed_over_if_a_good_one_exists(whole, tmp_path, caplog):
    job, folder, result, _ = whole
    kept = shutil.copytree(folder / "kept", tmp_path / "kept")
    last = newest_step(kept)
    os.remove(kept / f"step-{last}/manifest.json")
    resumed = train(job, str(tmp_path / "b"), resume_folder=str(kept))
    assert resumed.history.facts["resumed_at"] == 35 < last
    assert f"the checkpoint of step {last} is passed over" in caplog.text
    assert_same(state_of(result), state_of(resumed))
    for path in kept.glob("step-*/manifest.json"):
        path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be restored"):
        train(job, str(tmp_path / "c"), resume_folder=str(kept))


def test_row_that_is_not_finite_is_not_saved_or_counted(make_job, tmp_path, caplog):
    def plant(variables):
        variables["words"][3, 1].assign(np.nan)

    job = make_job([row("w1", 0.5, label) for label in (0, 1)] * 30, epochs=1)
    job = dataclasses.replace(job, warm_start=plant)
    with pytest.raises(TrainingError, match="'words': 1 rows"):
        train(job, str(tmp_path / "run"))
    keeping = dataclasses.replace(job, training=job.training.replace(nonfinite_rows="keep"))
    result = train(keeping, str(tmp_path / "kept"))
    assert "'words': 1 rows): kept" in caplog.text
    assert np.isnan(result.tables["words"][3, 1].numpy())


def test_early_stopping_goes_back_to_the_best_state(make_job, tmp_path):
    stopping, rate = EarlyStopping(metric="auc"), {"learning_rate": 0.05}
    job = make_job(epochs=60, eval_every=10, dense_optimizer=rate, early_stopping=stopping)
    result = train(job, str(tmp_path / "run"))
    lowest = min(entry["loss"] for entry in result.history.validations)
    near = [entry for entry in result.history.validations if entry["loss"] <= 1.01 * lowest]
    best = max(near, key=lambda entry: entry["auc"])
    assert result.step == best["step"] < result.history.facts["steps_done"] < 600
    assert [entry["step"] for entry in result.history.validations] == [entry["step"] for entry in result.history.evals]


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        pytest.param([(0.80, 0.50), (0.81, 0.49), (0.83, 0.50), (0.82, 0.494)], 40, id="too far above the lowest"),
        pytest.param([(0.80, 0.50), (0.79, 0.40), (0.81, 0.41), (0.78, 0.40)], 20, id="lowest fell below the best"),
        pytest.param([(0.80, 0.401), (0.79, 0.40), (0.78, 0.402), (0.7, 0.5)], 10, id="a lower loss does not choose"),
        pytest.param([(1.0, 0.5), (1.0, 0.3), (1.0, 0.302), (0.9, 0.299)], 20, id="of equal ones the lower loss"),
    ],
)
def test_state_of_the_best_auc_has_a_loss_near_the_lowest(make_job, tmp_path, monkeypatch, figures, best):
    assert trained_with(figures, 9, make_job, tmp_path, monkeypatch).step == best


@pytest.mark.parametrize(
    ("losses", "done"),
    [
        pytest.param([0.50, 0.49, 0.48, 0.47, 0.46, 0.47], 60, id="the loss falls"),
        pytest.param([0.50, 0.51, 0.52, 0.53, 0.54, 0.55], 30, id="the loss rises"),
    ],
)
def test_training_goes_on_while_the_loss_falls(make_job, tmp_path, monkeypatch, losses, done):
    figures = [(0.8 if at == 0 else 0.7, loss) for at, loss in enumerate(losses)]
    result = trained_with(figures, 2, make_job, tmp_path, monkeypatch)
    assert result.history.facts["steps_done"] == done


def trained_with(figures, patience, make_job, tmp_path, monkeypatch):
    """Train ten steps for each pair of AUC and loss, which stands for the evaluation after them."""
    evaluations = iter([figure for figure in figures for _ in ("validation", "eval")])

    def scripted(trainable, batches):
        area, loss = next(evaluations)
        return Evaluation(loss, area, {"label": TaskFigures(loss, area)})

    monkeypatch.setattr(loop, "evaluate", scripted)
    stopping = EarlyStopping(patience=patience, train_on_validation=False)
    job = make_job(epochs=None, steps=10 * len(figures), eval_every=10, early_stopping=stopping)
    return train(job, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(rows(60, 1, (1, 1)), "needs both classes", id="one class"),
        pytest.param(
            rows(60, 1, (0, 2)), "label `label` must be 0 or 1 in every row: .*row filter; found:.*2", id="labels"
        ),
        pytest.param([], "train split is empty", id="no rows"),
        pytest.param([*rows(60, 1), row("w1", float("inf"), 1)], "'number' is NaN or infinite", id="infinite"),
        pytest.param([*rows(60, 1), b"\xff\xff no example"], "parse", id="not an example"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_one_error(make_job, tmp_path, given, message):
    with pytest.raises(DataError, match=message):
        train(make_job(list(given)), str(tmp_path / "run"))


def test_diverging_loss_names_the_step(make_job, tmp_path):
    job = make_job(table={"optimizer": SGD(learning_rate=1e30)})
    with pytest.raises(TrainingError, match=r"the loss of step \d+ is"):
        train(job, str(tmp_path / "run"))
