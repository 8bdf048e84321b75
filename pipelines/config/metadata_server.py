"""Reads the address of a MySQL server that keeps ML Metadata, and asks the server whether it does.

    mysql://<user>@<host>:<port>/<database>

The password is in the environment variable METADATA_PASSWORD, and nowhere else: the address is shown, logged and
recorded. PyMySQL, which TFX's Beam brings, is imported only to ask the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

from embedding_core.errors import ConfigError, StorageError

PASSWORD = "METADATA_PASSWORD"  # noqa: S105
"""The environment variable of the password; an empty value is an empty password."""

_SCHEME = "mysql://"
_PORT = 3306
_SECONDS = 10
_YEAR = 31_536_000
_NO_DATABASE, _NO_TABLE = 1049, 1146


def is_server(metadata: str) -> bool:
    """Return whether `metadata` is the address of a server, and not a file."""
    return "://" in metadata


@dataclasses.dataclass(frozen=True)
class MetadataServer:
    """A database of a MySQL or MariaDB server."""

    host: str
    port: int
    database: str
    user: str

    @classmethod
    def of(cls, address: str) -> MetadataServer:
        """Parse an address.

        Raises:
          ConfigError: the address lacks a part, has another scheme, or holds a password (which is not shown).
        """
        try:
            parts = urllib.parse.urlsplit(address)
            port, password = parts.port or _PORT, parts.password
        except ValueError as error:
            raise ConfigError(f"`metadata` is not an address ({error}): {_RULE}") from error
        if password is not None:
            raise ConfigError(f"`metadata` holds a password: put it into the environment variable {PASSWORD}; {_RULE}")
        database = parts.path.removeprefix("/")
        is_whole = parts.username and parts.hostname and database and "/" not in database
        if not address.startswith(_SCHEME) or not is_whole or parts.query or parts.fragment:
            raise ConfigError(f"`metadata` is {address!r}: {_RULE}")
        return cls(str(parts.hostname), port, database, urllib.parse.unquote(str(parts.username)))

    @property
    def address(self) -> str:
        """The address, which holds no password."""
        return f"{_SCHEME}{urllib.parse.quote(self.user)}@{self.host}:{self.port}/{self.database}"

    @property
    def password(self) -> str:
        """The password.

        Raises:
          ConfigError: the environment does not have it.
        """
        if PASSWORD not in os.environ:
            raise ConfigError(
                f"`metadata` is {self.address!r}, and the environment variable {PASSWORD} is missing: set it to the "
                f"password of {self.user!r}."
            )
        return os.environ[PASSWORD]

    def schema_version(self) -> int | None:
        """Return the version of ML Metadata's schema; None if the database is missing or has none.

        Raises:
          ConfigError: the password is missing.
          StorageError: the server does not answer, or refuses the user.
        """
        import pymysql

        try:
            with self._connected() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT schema_version FROM MLMDEnv")
                found = cursor.fetchone()
        except pymysql.err.ProgrammingError as error:
            if error.args[0] != _NO_TABLE:
                raise
            return None
        return None if found is None else int(found[0])

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """Hold a lock of the server while the block runs; yield whether this process has it.

        The server releases the lock if this process dies or the connection breaks.
        """
        key = "tfx-embeddings " + hashlib.sha256(f"{self.database}/{name}".encode()).hexdigest()[:40]
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {_YEAR}")
            cursor.execute("SELECT GET_LOCK(%s, 0)", (key,))
            yield bool((cursor.fetchone() or [0])[0])

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        import pymysql

        given = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        try:
            connection = pymysql.connect(**given, database=self.database, connect_timeout=_SECONDS)
        except pymysql.err.OperationalError as error:
            if error.args[0] == _NO_DATABASE:
                remedy = f"make the database {self.database!r}, and grant all rights on it to {self.user!r}"
            else:
                remedy = f"start the server, or correct the address, the user or {PASSWORD}"
            raise StorageError(f"metadata {self.address!r} cannot be reached ({error.args[1]}): {remedy}.") from error
        with contextlib.closing(connection):
            yield connection


_RULE = f"it must be the path of a sqlite file, or {_SCHEME}<user>@<host>:<port>/<database>."


def has_store(metadata: str) -> bool:
    """Return whether there is a store: a file, or a database with ML Metadata's tables.

    Raises:
      ConfigError: the password of the server is missing.
      StorageError: the server does not answer, or refuses the user.
    """
    if is_server(metadata):
        return MetadataServer.of(metadata).schema_version() is not None
    return os.path.isfile(metadata)
