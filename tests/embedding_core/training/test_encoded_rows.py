"""Encoded rows give the same batches as the examples, bit for bit and in the same order."""

import dataclasses
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.errors import DataError, PreemptionError
from embedding_core.training import EarlyStopping, Negatives, train
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.encoded_rows import RowFormat, RowsFolder
from embedding_core.training.job import JobData
from embedding_core.training.training_inputs import RowParser, data_errors
from tests.support.tf_examples import example, write_rows
from tests.support.training_jobs import job_of_lists, rows_of_lists

STOPPING = EarlyStopping(validation_fraction=0.2)
NEGATIVES = Negatives(feature="word", per_positive=2)


def _encoded(job, folder):
    folder.mkdir()
    return JobData(job, choose_placement(job.training), RowsFolder(str(folder), False))


def _assert_same(mine, other):
    mine, other = (tf.nest.flatten(batch, expand_composites=True) for batch in (mine, other))
    assert [part.dtype for part in mine] == [part.dtype for part in other]
    for first, second in zip(mine, other, strict=True):
        np.testing.assert_array_equal(first.numpy(), second.numpy())


@pytest.mark.parametrize(
    ("wide", "settings"),
    [
        (True, {"early_stopping": STOPPING, "batch_size": 7, "shuffle_buffer": 5}),
        (False, {"negatives": NEGATIVES}),
        pytest.param(True, {}, marks=pytest.mark.slow),
        pytest.param(False, {"early_stopping": STOPPING}, marks=pytest.mark.slow),
        pytest.param(True, {"negatives": NEGATIVES}, marks=pytest.mark.slow),
    ],
)
def test_encoded_rows_give_the_batches_of_the_examples(tmp_path, wide, settings):
    job = job_of_lists(tmp_path, wide=wide, positives="negatives" in settings, **{"epochs": 2, **settings})
    parsed, encoded = JobData(job, choose_placement(job.training)), _encoded(job, tmp_path / "encoded")
    splits = {"train", "eval"} | ({"validation"} if "early_stopping" in settings else set())
    assert set(os.listdir(tmp_path / "encoded")) == splits
    for start in (0, 3):
        steps = 2 * parsed.steps_per_epoch + 1
        pairs = zip(range(steps), parsed.train(start), encoded.train(start), strict=False)
        assert len([_assert_same(first, other) for _, first, other in pairs]) == steps
    for first, other in ((parsed.eval(), encoded.eval()), (parsed.validation() or [], encoded.validation() or [])):
        for batches in zip(first, other, strict=True):
            _assert_same(*batches)


def test_rows_that_are_read_once_are_not_encoded(tmp_path):
    data = _encoded(job_of_lists(tmp_path, epochs=1), tmp_path / "encoded")
    assert os.listdir(tmp_path / "encoded") == ["eval"]
    assert data.rows == 115


def test_progress_of_the_encoding_counts_the_rows_of_each_split(tmp_path):
    job = job_of_lists(tmp_path, epochs=2, early_stopping=STOPPING)
    (tmp_path / "encoded").mkdir()
    said, folder = [], RowsFolder(str(tmp_path / "encoded"), False)
    data = JobData(job, choose_placement(job.training), folder, lambda *state: said.append(state))
    sizes = {"train": data.rows, "eval": data.eval_rows, "validation": data.validation_rows}
    assert said[0] == ("train", data.rows, 0)
    assert {split: (rows, done) for split, rows, done in said} == {split: (rows, rows) for split, rows in sizes.items()}


def test_one_encoded_file_is_open_at_a_time(tmp_path):
    job = job_of_lists(tmp_path, epochs=2)
    names = [shutil.copy(job.train_files[0], tmp_path / f"copy-{number}.gz") for number in range(9)]
    (tmp_path / "encoded").mkdir()
    folder, opened = RowsFolder(str(tmp_path / "encoded"), False), []

    def encoding(*_):
        links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
        opened.append(sum(os.path.realpath(link).startswith(folder.path) for link in links))

    job = dataclasses.replace(job, train_files=list(map(str, names)))
    JobData(job, choose_placement(job.training), folder, encoding)
    assert max(opened) == 1


def test_split_of_empty_rows_is_encoded(tmp_path):
    bare = write_rows(tmp_path / "bare.gz", [{"number": 0.5, "label": number % 2} for number in range(9)], "GZIP")
    job = dataclasses.replace(job_of_lists(tmp_path, epochs=2), train_files=[bare])
    batch = next(iter(_encoded(job, tmp_path / "encoded").train(0)))
    assert {name: rows.to_list() for name, rows in batch["ids"].items()} == {
        name: [[]] * 9 for name in ("word", "tags", "ids")
    }


def test_sigterm_ends_the_encoding(tmp_path, monkeypatch):
    encoded, said = [], []

    def encode(form, batch):
        encoded.append(batch)
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(())

    monkeypatch.setattr("embedding_core.training.encoded_rows.RowFormat.encode", encode)
    with pytest.raises(PreemptionError, match="before the first step of this process"):
        train(job_of_lists(tmp_path, epochs=2), str(tmp_path / "run"), encoding=lambda *state: said.append(state))
    assert len(encoded) == 1
    assert said == [("train", 115, 0)]


def test_rows_that_are_removed_while_training_are_one_error(tmp_path):
    batches = _encoded(job_of_lists(tmp_path, epochs=2), tmp_path / "encoded").train(0)
    shutil.rmtree(tmp_path / "encoded")
    with (
        pytest.raises(DataError, match=r"a file of rows is gone .*: if it was a temporary file, set TMPDIR"),
        data_errors(),
    ):
        next(iter(batches))


def test_messages_have_no_internals_of_tensorflow(tmp_path):
    two = example({"word": [b"w1", b"w2"], "number": 0.5, "label": 1})
    bad = write_rows(tmp_path / "bad.gz", [*rows_of_lists(5, 1), two], "GZIP")
    job = dataclasses.replace(job_of_lists(tmp_path, epochs=2), train_files=[bad])
    with pytest.raises(DataError, match=r"^column word has several values in a row: set `multivalent: true`") as caught:
        train(job, str(tmp_path / "run"))
    assert "{{" not in str(caught.value)
    assert "[Op:" not in str(caught.value)


def test_empty_batch_has_no_records(tmp_path):
    inputs = job_of_lists(tmp_path).inputs
    assert list(RowFormat(inputs).encode(RowParser(inputs)(tf.zeros([0], tf.string)))) == []
