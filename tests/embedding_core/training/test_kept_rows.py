"""A training reads the rows that a previous training encoded, if they are undamaged and of the same data."""

import dataclasses
import pathlib

import pytest

from embedding_core.storage import locked_folder
from embedding_core.training import encoded_rows, train
from embedding_core.training.device_choice import choose_placement
from embedding_core.training.encoded_rows import rows_folder, rows_key
from embedding_core.training.job import JobData
from tests.support.training_jobs import assert_same, job_in, state_of


@pytest.fixture
def encoded(monkeypatch):
    """Records the folders that rows are encoded into."""
    folders, encode = [], encoded_rows.encode_files

    def record(files, folder, *others, **named):
        folders.append(pathlib.Path(folder))
        return encode(files, folder, *others, **named)

    monkeypatch.setattr("embedding_core.training.job.encode_files", record)
    return folders


def _read(job, rows):
    """Return the numbers of all rows of a training, which reads `rows` or encodes into it, and of its evaluation."""
    with rows_folder(str(rows)) as folder:
        data = JobData(job, choose_placement(job.training), folder)
        batches = [*data.all_batches(), *data.eval()]
        return [batch["dense"]["number"].numpy().ravel().tolist() for batch in batches]


def test_second_training_reads_what_the_first_encoded(tmp_path, encoded):
    job, rows = job_in(tmp_path, epochs=2), tmp_path / "rows" / "key"
    plain = state_of(train(job, str(tmp_path / "plain")))
    encoded.clear()
    for _ in range(2):
        assert_same(state_of(train(job, str(tmp_path / "run"), rows=str(rows))), plain)
    assert encoded == [rows / "train", rows / "eval"]


@pytest.mark.parametrize("damage", ["content", "file", "manifest"])
def test_damaged_rows_are_encoded_again(tmp_path, encoded, damage):
    job, rows = job_in(tmp_path, epochs=2), tmp_path / "rows" / "key"
    first = _read(job, rows)
    file = rows / "train" / ("manifest.json" if damage == "manifest" else "00001")
    if damage == "content":
        data = bytearray(file.read_bytes())
        data[40] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    encoded.clear()
    assert _read(job, rows) == first
    assert encoded == [rows / "train"]


def test_rows_in_use_are_neither_read_nor_removed(tmp_path, encoded):
    job, rows = job_in(tmp_path, epochs=2), tmp_path / "rows" / "key"
    first = _read(job, rows)
    encoded.clear()
    with locked_folder(str(rows), wait=False) as locked:
        assert locked
        assert _read(job, rows) == first
        with rows_folder(str(tmp_path / "rows" / "other")) as other:
            assert other.is_kept
        assert (rows / "train" / "00000").exists()
    assert [folder for folder in encoded if rows in folder.parents] == []
    assert len(encoded) == 2
    with rows_folder(str(tmp_path / "rows" / "other")):
        assert not rows.exists()


def test_key_is_of_what_rows_are_made_of(tmp_path):
    job = job_in(tmp_path, epochs=2)
    files = [*job.train_files, *job.eval_files]

    def key(**changes):
        tables = tuple(table.replace(**changes) for table in job.inputs.config.tables)
        return rows_key(dataclasses.replace(job.inputs, config=job.inputs.config.replace(tables=tables)), files, 0.1)

    assert key() == key(dim=16) == key(combiner="sum")
    assert key() != key(vocabulary_size=9, oov_rows=2)
    before = key()
    assert rows_key(job.inputs, files, 0.2) != before
    pathlib.Path(job.train_files[0]).write_bytes(b"")
    changed = key()
    assert changed != before
    pathlib.Path(job.inputs.vocabularies["word"]).write_text("a\n")
    assert key() != changed
