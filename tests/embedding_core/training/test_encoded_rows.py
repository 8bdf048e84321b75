"""Encoded rows give the same batches as the examples, bit for bit and in the same order."""

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import DataError, PreemptionError
from embedding_core.training import EarlyStopping, Inputs, Negatives, train
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.encoded_rows import RowFormat, RowsFolder
from embedding_core.training.job import JobData
from embedding_core.training.training_inputs import RowParser, data_errors

_spec = importlib.util.spec_from_file_location("training_cases", pathlib.Path(__file__).with_name("test_training.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)

STOPPING = EarlyStopping(validation_fraction=0.2)
NEGATIVES = Negatives(feature="word", per_positive=2)


def _example(words, tags, ids, number, label):
    features = {
        "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[word.encode() for word in words])),
        "tags": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tag.encode() for tag in tags])),
        "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
        "number": tf.train.Feature(float_list=tf.train.FloatList(value=[number])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    if not words:
        del features["word"]
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def _rows(count, seed, *, positives=False):
    """Rows with missing and unknown words, up to 40 tags, and ids beyond 32 bits."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        words = [f"w{random.integers(12)}"] if random.random() < 0.8 else []
        tags = [f"w{tag}" for tag in random.integers(0, 10, random.choice([0, 1, 3, 40]))]
        ids = random.choice([-1, 0, 5, 2**40, -(2**50)], random.integers(0, 4)).tolist()
        yield _example(words, tags, ids, random.normal(), 1 if positives else int(random.integers(2)))


def _job(folder, sizes=(70, 0, 45), *, wide=True, positives=False, **training):
    job = cases.job_in(folder, **training)
    files = [
        cases.write(folder / f"part-{number}.gz", _rows(size, number, positives=positives))
        for number, size in enumerate(sizes)
    ]
    eval_files = [cases.write(folder / "some.gz", _rows(50, 99, positives=positives))]
    word = job.inputs.config.tables[0]
    dropping = TableConfig(name="dropping", vocabulary_size=7, dim=4, vocabulary="word", oov_rows=0)
    features = [
        FeatureConfig(name="word", table="words", column=ColumnConfig(name="word")),
        FeatureConfig(name="tags", table="dropping", column=ColumnConfig(name="tags", multivalent=True)),
    ]
    tables = [word, dropping]
    if wide:
        tables.append(TableConfig(name="plain", vocabulary_size=9, dim=4))
        column = ColumnConfig(name="ids", dtype="int64", multivalent=True)
        features.append(FeatureConfig(name="ids", table="plain", column=column, invalid_id="drop"))
    config = EmbeddingConfig(tables=tuple(tables), features=tuple(features))
    inputs = Inputs(
        config=config,
        vocabularies=job.inputs.vocabularies,
        dense=("number",),
        raw_spec=cases.SPEC,
        transform=cases.transform,
    )
    return dataclasses.replace(job, inputs=inputs, train_files=files, eval_files=eval_files)


def _assert_same(one, other):
    one, other = (tf.nest.flatten(batch, expand_composites=True) for batch in (one, other))
    assert [part.dtype for part in one] == [part.dtype for part in other]
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first.numpy(), second.numpy())


@pytest.mark.parametrize(
    ("wide", "settings"),
    [
        (False, {}),
        (True, {"early_stopping": STOPPING}),
        (False, {"negatives": NEGATIVES}),
        (True, {"batch_size": 7, "shuffle_buffer": 5}),
        pytest.param(True, {}, marks=pytest.mark.slow),
        pytest.param(False, {"early_stopping": STOPPING}, marks=pytest.mark.slow),
        pytest.param(True, {"negatives": NEGATIVES}, marks=pytest.mark.slow),
        pytest.param(False, {"batch_size": 7, "shuffle_buffer": 5}, marks=pytest.mark.slow),
    ],
)
def test_encoded_rows_give_the_batches_of_the_examples(tmp_path, wide, settings):
    job = _job(tmp_path, wide=wide, positives="negatives" in settings, **{"epochs": 2, **settings})
    folder = tmp_path / "encoded"
    folder.mkdir()
    placement = choose_placement(job.training)
    parsed, encoded = JobData(job, placement), JobData(job, placement, RowsFolder(str(folder), False))
    splits = {"train", "eval"} | ({"validation"} if "early_stopping" in settings else set())
    assert set(os.listdir(folder)) == splits
    for start in (0, 3):
        steps = 2 * parsed.steps_per_epoch + 1
        pairs = zip(range(steps), parsed.train(start), encoded.train(start), strict=False)
        assert len([_assert_same(one, other) for _, one, other in pairs]) == steps
    for one, other in ((parsed.eval(), encoded.eval()), (parsed.validation() or [], encoded.validation() or [])):
        for batches in zip(one, other, strict=True):
            _assert_same(*batches)


def test_rows_that_are_read_once_are_not_encoded(tmp_path):
    job = _job(tmp_path, epochs=1)
    folder = tmp_path / "encoded"
    folder.mkdir()
    data = JobData(job, choose_placement(job.training), RowsFolder(str(folder), False))
    assert os.listdir(folder) == ["eval"]
    assert data.rows == 115


def test_split_of_empty_rows_is_encoded(tmp_path):
    job = _job(tmp_path, epochs=2)
    bare = cases.write(tmp_path / "bare.gz", [_example([], [], [], 0.5, number % 2) for number in range(9)])
    job = dataclasses.replace(job, train_files=[bare])
    folder = tmp_path / "encoded"
    folder.mkdir()
    batch = next(iter(JobData(job, choose_placement(job.training), RowsFolder(str(folder), False)).train(0)))
    assert {name: rows.to_list() for name, rows in batch["ids"].items()} == {
        name: [[]] * 9 for name in ("word", "tags", "ids")
    }


def test_label_that_is_not_binary_is_named_before_the_first_step(tmp_path):
    job = _job(tmp_path, epochs=2)
    bad = cases.write(tmp_path / "bad.gz", [*_rows(5, 1), _example(["w1"], [], [], 0.5, 3)])
    with pytest.raises(DataError, match=r"label `label` must be 0 or 1 in every row"):
        train(dataclasses.replace(job, train_files=[bad]), str(tmp_path / "run"))


def test_sigterm_ends_the_encoding(tmp_path, monkeypatch):
    job = _job(tmp_path, epochs=2)
    encoded = []

    def encode(form, batch):
        encoded.append(batch)
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(())

    monkeypatch.setattr("embedding_core.training.encoded_rows.RowFormat.encode", encode)
    with pytest.raises(PreemptionError, match="before the first step of this process"):
        train(job, str(tmp_path / "run"))
    assert len(encoded) == 1


def test_rows_that_are_removed_while_training_are_one_error(tmp_path):
    job = _job(tmp_path, epochs=2)
    folder = tmp_path / "encoded"
    folder.mkdir()
    batches = JobData(job, choose_placement(job.training), RowsFolder(str(folder), False)).train(0)
    shutil.rmtree(folder)
    with (
        pytest.raises(DataError, match=r"a file of rows is gone .*: if it was a temporary file, set TMPDIR"),
        data_errors(),
    ):
        next(iter(batches))


def test_messages_have_no_internals_of_tensorflow(tmp_path):
    job = _job(tmp_path, epochs=2)
    bad = cases.write(tmp_path / "bad.gz", [*_rows(5, 1), _example(["w1", "w2"], [], [], 0.5, 1)])
    with pytest.raises(DataError, match=r"^column word has several values in a row: set `multivalent`") as caught:
        train(dataclasses.replace(job, train_files=[bad]), str(tmp_path / "run"))
    assert "{{" not in str(caught.value)
    assert "[Op:" not in str(caught.value)


def test_empty_batch_has_no_records(tmp_path):
    job = _job(tmp_path)
    form, parser = RowFormat(job.inputs), RowParser(job.inputs)
    assert list(form.encode(parser(tf.zeros([0], tf.string)))) == []
