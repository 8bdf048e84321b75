"""Reads the address of a MySQL server that keeps ML Metadata, and asks the server whether it does.

    mysql://<user>@<host>:<port>/<database>[?ssl-ca=<file>]

The password is in the environment variable METADATA_PASSWORD, and nowhere else: the address is shown, logged and
recorded. Every client, PyMySQL here and ML Metadata's own, talks to the server through `metadata_relay`, which checks
the server. PyMySQL, which TFX's Beam brings, is imported only to ask the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from typing import Any

from embedding_core.display import printable
from embedding_core.errors import ConfigError, StorageError
from pipelines.config import metadata_relay

PASSWORD = "METADATA_PASSWORD"  # noqa: S105
"""The environment variable of the password; an empty value is an empty password."""

_SCHEME = "mysql://"
_CA = "ssl-ca"
_PORT = 3306
_YEAR = 31_536_000
_UNTIL_NOTICED = 5
"""Seconds in which a server notices that the process which held a lock was killed."""
_NO_DATABASE, _NO_TABLE = 1049, 1146
_LONG = 80  # bytes; the path of a Unix socket may have 107
_relays: dict[tuple[str, int, str], tuple[subprocess.Popen[bytes], str]] = {}  # with the paths of their sockets


def is_server(metadata: str) -> bool:
    """Return whether `metadata` is the address of a server, and not a file."""
    return "://" in metadata


@dataclasses.dataclass(frozen=True)
class MetadataServer:
    """A database of a MySQL or MariaDB server.

    Attributes:
      host: name or address of its machine.
      port: its port.
      database: name of the database.
      user: who connects.
      ca: path of a file of certificates (PEM), one of which signed the server's; empty is a connection without TLS.
    """

    host: str
    port: int
    database: str
    user: str
    ca: str = ""

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
        given = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
        ca = dict(given).get(_CA, "")
        is_known = not parts.query or (len(given) == 1 and os.path.isabs(ca))
        if not address.startswith(_SCHEME) or not is_whole or not is_known or parts.fragment:
            raise ConfigError(f"`metadata` is {address!r}: {_RULE}")
        return cls(str(parts.hostname), port, database, urllib.parse.unquote(str(parts.username)), ca)

    @property
    def address(self) -> str:
        """The address, which holds no password."""
        query = f"?{_CA}={urllib.parse.quote(self.ca)}" if self.ca else ""
        return f"{_SCHEME}{urllib.parse.quote(self.user)}@{self.host}:{self.port}/{self.database}{query}"

    @property
    def socket(self) -> str:
        """Path of a Unix socket of this process that leads to the server; the server is checked at each connection."""
        return _relay(self.host, self.port, self.ca)

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

        with self._connected() as connection, self._refusals(), connection.cursor() as cursor:
            try:
                cursor.execute("SELECT schema_version FROM MLMDEnv")
            except pymysql.err.ProgrammingError as error:
                if error.args[0] != _NO_TABLE:
                    raise
                return None
            row = cursor.fetchone()
            return None if row is None else int(row[0])

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """Hold a lock of the server while the block runs; yield whether this process has it.

        The server releases the lock if this process dies or the connection breaks.

        Raises:
          StorageError: the server does not answer, refuses the user, or released the lock before the block ended.
        """
        key = "tfx-embeddings " + hashlib.sha256(f"{self.database}/{name}".encode()).hexdigest()[:40]
        with self._connected() as connection:
            with self._refusals(), connection.cursor() as cursor:
                cursor.execute(f"SET SESSION wait_timeout = {_YEAR}")
                cursor.execute("SELECT GET_LOCK(%s, %s)", (key, _UNTIL_NOTICED))
                locked = bool((cursor.fetchone() or [0])[0])
            yield locked
            with self._refusals(), connection.cursor() as cursor:
                cursor.execute("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", key)
                if locked and not (cursor.fetchone() or [0])[0]:
                    raise StorageError(
                        f"metadata {self.address!r} released the lock of {name!r} while it was used: another run may "
                        "have used that name; see that none runs, and run the same command again."
                    )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        import pymysql

        seconds = 2 * metadata_relay.SECONDS  # the relay says why it gave up
        with self._refusals():
            connection = pymysql.connect(
                user=self.user,
                password=self.password,
                database=self.database,
                unix_socket=self.socket,
                connect_timeout=seconds,
                read_timeout=seconds,
                write_timeout=seconds,
            )
        with contextlib.closing(connection):
            yield connection

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what PyMySQL raises, which is anything at all if the server breaks the protocol, into a StorageError."""
        try:
            yield
        except (ConfigError, StorageError):
            raise
        except Exception as error:
            number, text = error.args if len(error.args) == 2 else (None, str(error))  # as PyMySQL's errors have
            if number == _NO_DATABASE:
                remedy = f"make the database {self.database!r}, and grant all rights on it to {self.user!r}"
            else:
                remedy = f"start the server, or correct the address, the user or {PASSWORD}"
            text = printable(without_password(str(text)))
            raise StorageError(f"metadata {self.address!r} cannot be reached ({text}): {remedy}.") from None


_RULE = (
    f"it must be the path of a sqlite file, or {_SCHEME}<user>@<host>:<port>/<database>, to which "
    f"?{_CA}=<absolute path> may be added: the server's certificate must then be signed by one of that file."
)


def without_password(text: str) -> str:
    """Return a text with `***` in place of the password, which a server may repeat in its errors."""
    password = os.environ.get(PASSWORD)
    return text.replace(password, "***") if password else text


def _relay(host: str, port: int, ca: str) -> str:
    """Start `metadata_relay`, unless it runs; it ends with this process. Return the path of its socket."""
    process, path = _relays.get((host, port, ca), (None, ""))
    if process is not None and process.poll() is None and os.path.exists(path):
        return path
    base = tempfile.gettempdir()
    base = base if len(base) < _LONG else "/tmp"  # noqa: S108
    path = os.path.join(tempfile.mkdtemp(prefix="tfx-metadata-", dir=base), "socket")
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", str(metadata_relay.__file__), path, host, str(port), ca],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != PASSWORD},
        start_new_session=True,  # Ctrl-C ends the run, which writes its metadata before it ends
    )
    if process.stdout is None or not process.stdout.readline():
        raise StorageError(f"the relay to {host}:{port} did not start in {base!r}: its error is above.")
    _relays[host, port, ca] = process, path
    return path


def has_store(metadata: str) -> bool:
    """Return whether there is a store: a file that is not empty, or a database with ML Metadata's tables.

    Raises:
      ConfigError: the password of the server is missing.
      StorageError: the server does not answer, or refuses the user.
    """
    if is_server(metadata):
        return MetadataServer.of(metadata).schema_version() is not None
    return os.path.isfile(metadata) and os.path.getsize(metadata) > 0
