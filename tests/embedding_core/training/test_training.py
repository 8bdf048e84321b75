import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import CheckpointError, DataError, PreemptionError, TrainingError
from embedding_core.optimizers import DEFAULT_OPTIMIZER, SGD
from embedding_core.training import EarlyStopping, Inputs, TrainingConfig, TrainingJob, loop, train
from embedding_core.training.eval_metrics import evaluate

WORDS = [f"w{number}" for number in range(8)]


def example(word, number, label):
    features = {
        "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[word.encode()])),
        "number": tf.train.Feature(float_list=tf.train.FloatList(value=[number])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    # The validation part is chosen by a hash of the bytes.
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def write(path, rows):
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        for row in rows:
            writer.write(row)
    return str(path)


def rows(count, seed, labels=(0, 1)):
    """Rows whose label is the parity of their word's number, except for about one in ten."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        word = random.integers(len(WORDS))
        label = word % 2 if random.random() < 0.9 else 1 - word % 2
        yield example(WORDS[word], random.normal(), labels[label])


SPEC = {
    "number": tf.io.VarLenFeature(tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def transform(raw):
    number = tf.sparse.to_dense(raw["number"], default_value=0.0)[:, :1]
    return {"number": number, "label": raw["label"]}


def job_in(folder, train_rows=None, *, table=None, **training):
    """A small job; its files are written only if their rows are given or the files are missing."""
    (folder / "word.txt").write_text("".join(word + "\n" for word in WORDS[:-1]))
    files = [folder / "train-0.gz", folder / "train-1.gz", folder / "eval.gz"]
    if train_rows is not None or not files[-1].exists():
        train_rows = list(rows(300, 1)) if train_rows is None else train_rows
        half = len(train_rows) // 2
        for path, part in zip(files, [train_rows[:half], train_rows[half:], rows(200, 2)], strict=True):
            write(path, part)
    table = {"optimizer": DEFAULT_OPTIMIZER.replace(learning_rate=0.2), **(table or {})}
    words = TableConfig(name="words", vocabulary_size=8, dim=4, vocabulary="word", oov_rows=1, **table)
    feature = FeatureConfig(name="word", table="words", column=ColumnConfig(name="word"))
    inputs = Inputs(
        config=EmbeddingConfig(tables=(words,), features=(feature,)),
        vocabularies={"word": str(folder / "word.txt")},
        dense=("number",),
        raw_spec=SPEC,
        transform=transform,
    )
    rate = {"dense_optimizer": {"learning_rate": 0.01}}
    settings = {"epochs": 4, "batch_size": 32, "early_stopping": None, **rate, **training}
    return TrainingJob(
        inputs=inputs,
        training=TrainingConfig(**settings),
        model="pipelines.models.ranking",
        arguments={"hidden_units": [8], "dropout": 0.2},
        train_files=[str(path) for path in files[:2]],
        eval_files=[str(files[2])],
    )


@pytest.fixture
def make_job(tmp_path):
    return functools.partial(job_in, tmp_path)


def state_of(result):
    return state_at(result.checkpoint)


def state_at(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint)
    keys = [key for key in reader.get_variable_to_shape_map() if key != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {key: reader.get_tensor(key) for key in keys if "save_counter" not in key}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)


def test_training_learns_and_writes_its_curves(make_job, tmp_path):
    said = []
    result = train(make_job(), str(tmp_path / "run"), progress=lambda *state: said.append(state))
    assert max(entry["auc"] for entry in result.history.evals) > 0.8
    assert result.history.train[-1]["loss"] < result.history.train[0]["loss"]
    assert said[-1][:2] == (40, 40)
    assert (tmp_path / "run/history.json").exists()
    assert list((tmp_path / "run/logs/train").iterdir())
    assert not (tmp_path / "run/resume").exists()


def test_checkpoint_has_the_keys_of_the_contract(make_job, tmp_path):
    result = train(make_job(epochs=1), str(tmp_path / "run"))
    keys = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").replace(".S", "/") for key in state_of(result)}
    assert {"embedding/words", "embedding/words/accumulators", "step"} <= keys
    assert {key.split("/")[0] for key in keys} == {"embedding", "model", "optimizer", "step"}


def test_same_seed_gives_the_same_tables_and_another_seed_others(make_job, tmp_path):
    states = [state_of(train(make_job(seed=seed), str(tmp_path / str(i)))) for i, seed in enumerate([3, 3, 4])]
    assert_same(states[0], states[1])
    key = "embedding/words/.ATTRIBUTES/VARIABLE_VALUE"
    assert not np.array_equal(states[0][key], states[2][key])


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return a function that trains a job, given `checkpoint_every`; decay and early stopping add state to save."""

    @functools.cache
    def of(checkpoint_every):
        folder = tmp_path_factory.mktemp("uninterrupted")
        stopping = EarlyStopping(patience=9)
        job = job_in(folder, checkpoint_every=checkpoint_every, eval_every=5, decay="linear", early_stopping=stopping)
        return job, train(job, str(folder / "whole"))

    return of


@pytest.mark.parametrize("at", [9, 31])
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(uninterrupted, tmp_path, at):
    job, whole = uninterrupted(checkpoint_every=7)

    def kill(step, total, detail):
        if step >= at:
            raise KilledError

    with pytest.raises(KilledError):
        train(job, str(tmp_path / "a"), resume_folder=str(tmp_path / "kept"), progress=kill)
    said = []
    resumed = train(
        job, str(tmp_path / "b"), resume_folder=str(tmp_path / "kept"), progress=lambda step, *_: said.append(step)
    )
    assert resumed.history.facts["resumed_at"] in {7, 35}
    assert said[0] == resumed.history.facts["resumed_at"], "progress starts with the steps of before"
    assert_same(state_of(whole), state_of(resumed))
    assert [(e["step"], e["loss"]) for e in whole.history.evals] == [
        (e["step"], e["loss"]) for e in resumed.history.evals
    ]


KILLED_RUN = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("job", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
folder = pathlib.Path(sys.argv[2])
job = module.job_in(folder, epochs=60, checkpoint_every=3)
module.train(job, str(folder / "out"), resume_folder=str(folder / "kept"))
"""


def newest_step(folder):
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)


@pytest.mark.slow
def test_run_killed_at_random_moments_ends_in_the_same_tables(make_job, tmp_path):
    whole = train(make_job(epochs=60, checkpoint_every=3), str(tmp_path / "whole"))
    command = [sys.executable, "-c", KILLED_RUN, __file__, str(tmp_path)]
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


@pytest.mark.parametrize("where", ["after step 9", "in the evaluation of step 10"])
def test_sigterm_saves_the_step_and_a_restart_ends_the_same(uninterrupted, tmp_path, monkeypatch, where):
    """SIGTERM comes after the evaluation of step 5, which saves no checkpoint, or within the evaluation of step 10."""
    job, whole = uninterrupted(checkpoint_every=100)
    evaluations = []

    def progress(step, total, detail):
        if where == "after step 9" and step >= 5:
            os.kill(os.getpid(), signal.SIGTERM)

    def evaluate_and_die(*arguments):
        evaluations.append(arguments)
        if where != "after step 9" and len(evaluations) == 4:  # of the eval split, after that of the validation part
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    monkeypatch.setattr(loop, "evaluate", evaluate_and_die)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(PreemptionError, match=r"the state after step \d+ of \d+ is saved"):
        train(job, str(tmp_path / "a"), resume_folder=str(tmp_path / "kept"), progress=progress)
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.undo()
    resumed = train(job, str(tmp_path / "b"), resume_folder=str(tmp_path / "kept"))
    assert resumed.history.facts["resumed_at"] == (5 if where == "after step 9" else 10)
    assert_same(state_of(whole), state_of(resumed))
    assert [entry["auc"] for entry in whole.history.evals] == [entry["auc"] for entry in resumed.history.evals]


def test_damaged_checkpoint_is_passed_over_if_a_good_one_exists(make_job, tmp_path, caplog):
    job = make_job(checkpoint_every=7)
    whole = train(job, str(tmp_path / "whole"), resume_folder=str(tmp_path / "kept"))
    os.remove(tmp_path / "kept/step-40/manifest.json")
    resumed = train(job, str(tmp_path / "b"), resume_folder=str(tmp_path / "kept"))
    assert resumed.history.facts["resumed_at"] == 35
    assert "the checkpoint of step 40 is passed over" in caplog.text
    assert_same(state_of(whole), state_of(resumed))
    for path in tmp_path.glob("kept/step-*/manifest.json"):
        path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be restored"):
        train(job, str(tmp_path / "c"), resume_folder=str(tmp_path / "kept"))


def test_row_that_is_not_finite_is_not_saved_or_counted(make_job, tmp_path, caplog):
    def plant(variables):
        variables["words"][3, 1].assign(np.nan)

    job = dataclasses.replace(make_job([example("w1", 0.5, label) for label in (0, 1)] * 30), warm_start=plant)
    with pytest.raises(TrainingError, match="'words': 1 rows"):
        train(job, str(tmp_path / "run"))
    keeping = dataclasses.replace(job, training=job.training.replace(nonfinite_rows="keep"))
    result = train(keeping, str(tmp_path / "kept"))
    assert "'words': 1 rows): kept" in caplog.text
    assert np.isnan(result.tables["words"][3, 1].numpy())


def test_early_stopping_goes_back_to_the_best_state(make_job, tmp_path):
    result = train(
        make_job(
            epochs=60,
            eval_every=10,
            dense_optimizer={"learning_rate": 0.05},
            early_stopping=EarlyStopping(metric="auc"),
        ),
        str(tmp_path / "run"),
    )
    best = max(result.history.validations, key=lambda entry: entry["auc"])
    assert result.step == best["step"] < result.history.facts["steps_done"] < 600
    assert [entry["step"] for entry in result.history.validations] == [entry["step"] for entry in result.history.evals]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((1, 1), "needs both classes"),
        ((0, 0), "no positives|needs both"),
        ((0, 2), "label `label` must be 0 or 1 in every row: .*row filter; found:.*2"),
    ],
)
def test_label_that_cannot_be_learned_is_one_error(make_job, tmp_path, labels, message):
    with pytest.raises(DataError, match=message):
        train(make_job(list(rows(60, 1, labels))), str(tmp_path / "run"))


def test_empty_split_is_an_error(make_job, tmp_path):
    with pytest.raises(DataError, match="train split is empty"):
        train(make_job([]), str(tmp_path / "run"))


def test_dense_value_that_is_not_a_number_is_named(make_job, tmp_path):
    bad = [*rows(60, 1), example("w1", float("inf"), 1)]
    with pytest.raises(DataError, match="'number' is NaN or infinite"):
        train(make_job(bad), str(tmp_path / "run"))


def test_diverging_loss_names_the_step(make_job, tmp_path):
    job = make_job(table={"optimizer": SGD(learning_rate=1e30)})
    with pytest.raises(TrainingError, match=r"the loss of step \d+ is"):
        train(job, str(tmp_path / "run"))


def test_row_that_does_not_parse_is_a_data_error(make_job, tmp_path):
    with pytest.raises(DataError, match="parse"):
        train(make_job([*rows(60, 1), b"\xff\xff no example"]), str(tmp_path / "run"))
