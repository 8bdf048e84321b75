"""Tests that a damaged metadata store is one error, and that an old store is upgraded after a complete backup."""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess

import ml_metadata
import pytest
from ml_metadata.metadata_store import metadata_store as mlmd_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.errors import StorageError
from pipelines.config.metadata_server import has_store
from pipelines.local.metadata_store import SCHEMA_VERSION, check_store, remove_dangling, upgrade
from tests.support.metadata import sqlite_connection, sqlite_store

pytestmark = pytest.mark.light


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with 200 types."""
    path = tmp_path_factory.mktemp("store") / "metadata.sqlite"
    store = sqlite_store(path)
    for number in range(200):
        store.put_artifact_type(mlmd.ArtifactType(name=f"Type{number}"))
    return path


@pytest.fixture
def path(whole, tmp_path):
    return str(shutil.copy(whole, tmp_path / "metadata.sqlite"))


def change(path, position, data):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def execute(path, *statements):
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


DAMAGES = {
    "half": lambda path: os.truncate(path, os.path.getsize(path) // 2),
    "text": lambda path: change(path, 0, b"not a database at all"),
    "zeros": lambda path: change(path, 4096, bytes(8192)),
    "another's database": lambda path: (os.remove(path), execute(path, "CREATE TABLE mine (a)")),
    "a table less": lambda path: execute(path, "DROP TABLE Event"),
    "no version": lambda path: execute(path, "DELETE FROM MLMDEnv"),
    "two versions": lambda path: execute(path, "INSERT INTO MLMDEnv (schema_version) VALUES (9)"),
    "newer version": lambda path: execute(path, f"UPDATE MLMDEnv SET schema_version = {SCHEMA_VERSION + 1}"),
    "folder": lambda path: (os.remove(path), os.mkdir(path)),
    "dangling link": lambda path: (os.remove(path), os.symlink("/nowhere/at/all", path)),
}


def test_whole_store_is_as_it_should_be(path):
    assert check_store(path) == SCHEMA_VERSION
    assert check_store(f"{path}.absent") is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_store_is_one_error(path, damage):
    DAMAGES[damage](path)
    with pytest.raises(StorageError, match=r"metadata '.*metadata\.sqlite'") as error:
        check_store(path)
    assert "\n" not in str(error.value)


def test_rows_that_name_nothing_are_removed_and_no_others(path):
    """If the disk is full, SQLite rolls back, but ML Metadata continues to write, and leaves rows like these."""
    execute(
        path,
        "INSERT INTO Artifact (id, type_id, uri, create_time_since_epoch, last_update_time_since_epoch)"
        " VALUES (1, 10, 'kept', 0, 0)",
        "INSERT INTO Execution (id, type_id, create_time_since_epoch, last_update_time_since_epoch)"
        " VALUES (1, 11, 0, 0)",
        "INSERT INTO Event (id, artifact_id, execution_id, type) VALUES (1, 1, 1, 4), (2, 7, 1, 4), (3, 1, 8, 4)",
        "INSERT INTO EventPath (event_id, is_index_step, step_key) VALUES (1, 0, 'kept'), (2, 0, 'dangling')",
        "INSERT INTO Attribution (context_id, artifact_id) VALUES (5, 7)",
    )
    assert remove_dangling(path) == 4
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT id FROM Event").fetchall() == [(1,)]
        assert database.execute("SELECT step_key FROM EventPath").fetchall() == [("kept",)]
        assert database.execute("SELECT count(*) FROM Attribution").fetchall() == [(0,)]
    assert remove_dangling(path) == 0


def test_empty_file_is_a_store_that_is_not_there_yet(path):
    os.truncate(path, 0)
    assert (check_store(path), has_store(path)) == (None, False)


def test_store_that_another_process_holds_is_one_error(path, monkeypatch):
    monkeypatch.setattr("pipelines.local.metadata_store._WAIT_SECONDS", 0.1)
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match=r"database is locked.*end other processes"):
            check_store(path)
        other.rollback()
    assert check_store(path) == SCHEMA_VERSION


def test_damage_in_a_leftover_rollback_journal_is_survived(path):
    for name in ("-journal", "-wal", "-shm"):
        with open(path + name, "wb") as file:
            file.write(random.Random(1).randbytes(8192))
    assert check_store(path) == SCHEMA_VERSION
    assert len(sqlite_store(path).get_artifact_types()) >= 200


def test_store_of_an_earlier_release_is_upgraded_after_a_backup(path):
    mlmd_store.downgrade_schema(sqlite_connection(path), 8)
    assert check_store(path) == 8
    backup = upgrade(path)
    assert (check_store(path), check_store(backup)) == (SCHEMA_VERSION, 8)
    assert len(sqlite_store(path).get_artifact_types()) >= 200


def test_store_that_cannot_be_upgraded_stays_as_it_was(path, monkeypatch):
    def interrupted(*_, **__):
        with open(f"{path}-journal", "wb") as file:
            file.write(b"of the upgrade")
        execute(path, "DROP TABLE Event")
        raise RuntimeError("no such column")

    os.chmod(path, 0o640)
    monkeypatch.setattr(ml_metadata, "MetadataStore", interrupted)
    with pytest.raises(StorageError, match=r"cannot be upgraded .no such column.: it was restored from"):
        upgrade(path)
    assert check_store(path) == SCHEMA_VERSION
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert not os.path.exists(f"{path}-journal")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("free", [0, 65536])
def test_backup_onto_a_full_disk_leaves_nothing(whole, small_disk, free):
    path = shutil.copy(whole, small_disk / "metadata.sqlite")
    mlmd_store.downgrade_schema(sqlite_connection(path), 8)
    (small_disk / "full").write_bytes(bytes((1 << 20) - path.stat().st_size - free))
    with pytest.raises(StorageError, match="make room"):
        upgrade(str(path))
    assert sorted(os.listdir(small_disk)) == ["full", "metadata.sqlite"]
    assert check_store(str(path)) == 8
