"""A training reads the rows that a previous training encoded, if they are undamaged and of the same data."""

import dataclasses
import importlib.util
import pathlib

import pytest

from embedding_core.storage import locked_folder
from embedding_core.training import encoded_rows, train
from embedding_core.training.encoded_rows import rows_folder, rows_key

_spec = importlib.util.spec_from_file_location("training_cases", pathlib.Path(__file__).with_name("test_training.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)


@pytest.fixture
def encoded(monkeypatch):
    """Records the folders that rows are encoded into."""
    folders, encode = [], encoded_rows.encode_files

    def record(files, folder, *others, **named):
        folders.append(pathlib.Path(folder))
        return encode(files, folder, *others, **named)

    monkeypatch.setattr("embedding_core.training.job.encode_files", record)
    return folders


def _train(job, tmp_path, rows):
    return cases.state_of(train(job, str(tmp_path / "run"), rows=str(rows)))


def test_second_training_reads_what_the_first_encoded(tmp_path, encoded):
    job, rows = cases.job_in(tmp_path, epochs=2), tmp_path / "rows" / "key"
    plain = cases.state_of(train(job, str(tmp_path / "plain")))
    encoded.clear()
    for _ in range(2):
        cases.assert_same(_train(job, tmp_path, rows), plain)
    assert encoded == [rows / "train", rows / "eval"]


@pytest.mark.parametrize("damage", ["content", "file", "manifest"])
def test_damaged_rows_are_encoded_again(tmp_path, encoded, damage):
    job, rows = cases.job_in(tmp_path, epochs=2), tmp_path / "rows" / "key"
    first = _train(job, tmp_path, rows)
    file = rows / "train" / ("manifest.json" if damage == "manifest" else "00001")
    if damage == "content":
        data = bytearray(file.read_bytes())
        data[40] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    encoded.clear()
    cases.assert_same(_train(job, tmp_path, rows), first)
    assert encoded == [rows / "train"]


def test_rows_in_use_are_neither_read_nor_removed(tmp_path, encoded):
    job, rows = cases.job_in(tmp_path, epochs=2), tmp_path / "rows" / "key"
    first = _train(job, tmp_path, rows)
    encoded.clear()
    with locked_folder(str(rows), wait=False) as locked:
        assert locked
        cases.assert_same(_train(job, tmp_path, rows), first)
        with rows_folder(str(tmp_path / "rows" / "other")) as other:
            assert other.is_kept
        assert (rows / "train" / "00000").exists()
    assert [folder for folder in encoded if rows in folder.parents] == []
    assert len(encoded) == 2
    with rows_folder(str(tmp_path / "rows" / "other")):
        assert not rows.exists()


def test_key_is_of_what_rows_are_made_of(tmp_path):
    job = cases.job_in(tmp_path, epochs=2)
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
