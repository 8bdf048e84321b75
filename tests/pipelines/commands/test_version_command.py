"""Tests the commands on published versions: verify, rollback, keep-last and parity."""

import sys

import pytest

from components.pusher.publish import publish
from components.pusher.served import served_versions
from pipelines.commands import cli
from tests.pipelines.commands.exit_code import exit_code


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cli, "silence", lambda: None)
    (tmp_path / "model").mkdir()
    for number, content in enumerate((b"first", b"second"), start=1):
        (tmp_path / "model" / "saved_model.pb").write_bytes(content)
        publish(tmp_path / "model", tmp_path / "served", check=lambda path: {}, clock=lambda second=number: second)
    return tmp_path / "served"


def test_verify_passes_a_published_version_and_names_damage(base, capsys):
    assert exit_code("verify", base / "1") == 0
    assert "1 files, 5 bytes, as published" in capsys.readouterr().out
    (base / "1" / "saved_model.pb").write_bytes(b"First")
    assert exit_code("verify", base / "1") == 1
    assert "'saved_model.pb' is not what its manifest says" in capsys.readouterr().err
    assert exit_code("verify", base) == 1


def test_rollback_makes_an_earlier_version_the_newest(base, capsys):
    assert exit_code("rollback", base) == 0
    newest = served_versions(base)[-1]
    assert newest > 2
    assert (base / str(newest) / "saved_model.pb").read_bytes() == b"first"
    assert str(newest) in capsys.readouterr().out
    assert exit_code("rollback", base, "--to", 9) == 1


@pytest.mark.parametrize("command", [("rollback",), ("keep-last", "1")])
def test_wrong_folder_is_answered_by_the_one_meant(tmp_path, capsys, command):
    for place, words in (("nothere", "is not a folder: name the folder of the served versions"), (".", "no version")):
        assert exit_code(command[0], tmp_path / place, *command[1:]) == 1
        assert words in capsys.readouterr().err
    (tmp_path / "serving" / "7").mkdir(parents=True)
    assert exit_code(command[0], tmp_path, *command[1:]) == 1
    assert f"has no version: did you mean {str(tmp_path / 'serving')!r}?" in capsys.readouterr().err


def test_rollback_without_ml_metadata_is_recorded_by_next_run(base, capsys, monkeypatch):
    monkeypatch.setattr("pipelines.commands.version_command.is_installed", lambda package: False)
    assert exit_code("rollback", base) == 0
    assert "the next run of its pipeline records it" in capsys.readouterr().out


def test_keep_last_removes_the_others(base, capsys):
    assert exit_code("keep-last", base, 1) == 0
    assert "removed 1: 1" in capsys.readouterr().out
    assert served_versions(base) == [2]
    assert exit_code("keep-last", base / "2" / "nowhere", 1) == 1


def test_parity_wants_a_version_that_says_what_it_is_made_of(base, capsys, monkeypatch):
    monkeypatch.setattr("pipelines.commands.version_command.load_tensorflow", lambda: None)
    assert exit_code("parity", base / "2") == 1
    assert "does not say what it was made of" in capsys.readouterr().err


def test_keep_last_touches_nothing_that_is_no_served_version(base, capsys):
    (base / "1.lineage.json").touch()
    assert exit_code("keep-last", base, 1) == 1
    assert "is an artifact of a pipeline" in capsys.readouterr().err
    assert exit_code("keep-last", base / "2", 1) == 1
    assert "has no version" in capsys.readouterr().err
    assert served_versions(base) == [1, 2]


@pytest.mark.parametrize("command", [("verify",), ("rollback",), ("keep-last", "1")])
def test_address_is_refused_as_it_was_given(base, capsys, command):
    assert exit_code(command[0], "gs://bucket/served", *command[1:]) == 1
    assert "'gs://bucket/served' is an address" in capsys.readouterr().err


def test_folder_that_cannot_be_written_or_read_is_one_error(base, capsys):
    (base / ".versions.lock").unlink()
    (base / ".versions.lock").mkdir()
    assert exit_code("keep-last", base, 1) == 1
    assert "cannot be removed" in capsys.readouterr().err
    assert exit_code("verify", base) == 1
    assert "name the folder of one published version" in capsys.readouterr().err


def test_a_table_with_two_types_of_rows_is_refused(tmp_path, capsys):
    options = ("--rows-dtype", "item=int8", "--rows-dtype", "item=float16")
    assert exit_code("export-embeddings", tmp_path / "checkpoint", tmp_path / "out", *options) == 1
    assert "--rows-dtype is given 2 times for table 'item': give it once." in capsys.readouterr().err
