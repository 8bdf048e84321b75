"""Checks and upgrades ML Metadata's sqlite file without TFX; only `upgrade` loads ML Metadata.

Of a MySQL server, only the version of the schema is checked: it keeps its data whole.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator

from embedding_core.errors import StorageError
from embedding_core.storage import free_name, readable_as, whole_file
from pipelines.config.metadata_server import MetadataServer, is_server

SCHEMA_VERSION = 10
"""Schema version of ML Metadata 1.16 and 1.21."""

_TABLES = frozenset(
    [
        "Type",
        "TypeProperty",
        "Artifact",
        "ArtifactProperty",
        "Execution",
        "ExecutionProperty",
        "Event",
        "EventPath",
        "Context",
        "ContextProperty",
        "Association",
        "Attribution",
        "MLMDEnv",
    ]
)
_REFERENCES = (
    ("Event", "artifact_id", "Artifact"),
    ("Event", "execution_id", "Execution"),
    ("EventPath", "event_id", "Event"),
    ("Attribution", "context_id", "Context"),
    ("Attribution", "artifact_id", "Artifact"),
    ("Association", "context_id", "Context"),
    ("Association", "execution_id", "Execution"),
    ("ArtifactProperty", "artifact_id", "Artifact"),
    ("ExecutionProperty", "execution_id", "Execution"),
    ("ContextProperty", "context_id", "Context"),
)
"""Tables with rows that refer to another table: table, column, referenced table. Events precede their paths."""
_BESIDE = ("-journal", "-wal", "-shm")  # what sqlite writes beside a database
_WAIT_SECONDS = 30.0


def check_store(path: str, *, for_writing: bool = True) -> int | None:
    """Check the file from its first to its last page.

    Args:
      path: path of the store.
      for_writing: whether it must be possible to write to it.

    Returns:
      The version of its schema; None before the first run, or for an empty file.

    Raises:
      StorageError: it is not a store of ML Metadata, is damaged, is of a newer schema, or cannot be written to.
    """
    if is_server(path):
        return _checked_version(path, MetadataServer.of(path).schema_version())
    if not os.path.lexists(path):
        return None
    if not os.path.isfile(path):
        raise StorageError(f"metadata {path!r} is not a file: move it away, or name another one with `metadata`.")
    with _opened(path, "rw" if for_writing else "ro") as database:
        if for_writing:
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
        return _version_of(path, database)


def _version_of(path: str, database: sqlite3.Connection) -> int | None:
    problems = [str(row[0]) for row in database.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
    if problems:
        raise StorageError(_damaged(path, " ".join(problems[0].split())))
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    if not tables >= _TABLES:
        missing = ", ".join(sorted(_TABLES - tables)[:3])
        raise StorageError(_damaged(path, f"it is not a store of ML Metadata, it has no table {missing}"))
    versions = [row[0] for row in database.execute("SELECT schema_version FROM MLMDEnv")]
    if len(versions) != 1 or not isinstance(versions[0], int) or versions[0] < 1:
        raise StorageError(_damaged(path, f"its schema version is {versions!r}"))
    if versions[0] > SCHEMA_VERSION:
        raise StorageError(
            f"metadata {path!r} has schema version {versions[0]}, this release reads {SCHEMA_VERSION}: it was written "
            "by a newer release; install it, or put an earlier backup in its place."
        )
    return versions[0]


def _checked_version(address: str, version: int | None) -> int | None:
    """Return the version of a server's schema, which this release must be able to read."""
    if version not in (None, SCHEMA_VERSION):
        raise StorageError(
            f"metadata {address!r} has schema version {version}, this release reads {SCHEMA_VERSION}: name another "
            "database, or back this one up and convert it with a release of ML Metadata that reads both versions."
        )
    return version


def remove_dangling(path: str) -> int:
    """Remove the rows that a transaction of ML Metadata left behind when the disk was full.

    SQLite then rolls back the transaction by itself. ML Metadata does not notice, and continues to write outside of the
    transaction. The rows that it then writes refer to an artifact that does not exist. Since ids are reused, these rows
    would later refer to an unrelated artifact.

    Args:
      path: path of a store that `check_store` accepts; a store without such rows stays as it is.

    Returns:
      How many rows were removed.

    Raises:
      StorageError: the store cannot be written to.
    """
    with _opened(path, "rw") as database:
        database.execute("BEGIN IMMEDIATE")
        removed = sum(
            database.execute(f"DELETE FROM {table} WHERE {column} NOT IN (SELECT id FROM {other})").rowcount  # noqa: S608
            for table, column, other in _REFERENCES
        )
        database.commit()
    return removed


def _damaged(path: str, what: str) -> str:
    return (
        f"metadata {path!r} is damaged ({what[:200]}): artifacts and served versions are unchanged. Move "
        "the file away, and put a backup in its place if there is one: without one, the next run creates a new store, "
        "moves previous outputs aside, and runs every node again."
    )


@contextlib.contextmanager
def _opened(path: str, mode: str) -> Iterator[sqlite3.Connection]:
    """Open the database; an error of sqlite becomes a StorageError."""
    try:
        address = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode={mode}"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS)) as database:
            yield database
    except sqlite3.OperationalError as error:
        raise StorageError(
            f"metadata {path!r} cannot be used ({error}): it is unchanged; make room on its disk, give this process "
            "the right to write to the file and its folder, and end other processes that hold it."
        ) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise StorageError(_damaged(path, str(error))) from error


def _copy(source: str, target: str) -> None:
    """Copy a database to a file that appears only when it is complete."""
    try:
        with whole_file(target) as half:
            try:
                with _opened(source, "ro") as database, contextlib.closing(sqlite3.connect(half)) as copy:
                    database.backup(copy)
                check_store(half, for_writing=False)
            finally:
                _remove_beside(half)
    except (OSError, StorageError) as error:
        raise StorageError(
            f"{source!r} could not be copied to {target!r} ({error}): nothing is left of the copy; make room."
        ) from error


def _remove_beside(path: str) -> None:
    """Remove the journals of a database."""
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path + end)


def upgrade(path: str) -> str:
    """Upgrade a store of an earlier schema, after a backup; nobody may use it meanwhile.

    Returns:
      The path of the backup.

    Raises:
      StorageError: the backup cannot be written, or ML Metadata cannot upgrade the store, which is then as it was.
    """
    import ml_metadata
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    now = datetime.datetime.now(datetime.timezone.utc)
    backup = free_name(f"{path}.backup-{now:%Y%m%dT%H%M%S.%fZ}")
    with readable_as(path):
        _copy(path, backup)
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = path
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE
    try:
        ml_metadata.MetadataStore(connection, enable_upgrade_migration=True)
    except (RuntimeError, ml_metadata.errors.StatusError) as error:
        _remove_beside(path)
        with readable_as(backup):
            _copy(backup, path)
        raise StorageError(
            f"metadata {path!r} cannot be upgraded ({' '.join(str(error).split())[:200]}): it was restored from "
            f"{backup!r}; run the pipeline with the release that wrote it."
        ) from error
    return backup
