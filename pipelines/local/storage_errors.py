"""Checks that the addresses of a run can be reached, and turns errors of storage into what is safe and what to do."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

import ml_metadata

from embedding_core.errors import ConfigError, StorageError
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import is_server, without_password
from pipelines.console.expected_errors import chain, expected_message

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXT = re.compile(
    # SQLite ends a transaction on its own if the disk is full; ML Metadata notices at the COMMIT.
    r"no space left on device|database or disk is full|disk quota exceeded|file too large|no transaction is active",
    re.IGNORECASE,
)
_FAILS = (errno.EIO, errno.EROFS)
_FAILS_TEXT = re.compile(r"disk i/o error|read-only file system|input/output error", re.IGNORECASE)
_METADATA_TEXT = re.compile(
    r"database disk image is malformed|file is not a database|readonly database|unable to open database file"
    r"|cannot connect sqlite3 database|error when executing query|mlmd database version|mlmdenv|mysql_query failed"
    r"|mysql_real_connect failed",
    re.IGNORECASE,
)


@contextlib.contextmanager
def storage_errors_as_one(config: PipelineConfig) -> Iterator[None]:
    """Turn what libraries raise if a disk is full or fails, or if metadata is damaged, into a StorageError.

    Raises:
      StorageError: in place of such an error. An error that this project raised itself is left as it is.
    """
    try:
        yield
    except Exception as error:
        if expected_message(error) is not None:
            raise
        message = _message(error, config)
        if message is None:
            raise
        raise StorageError(message) from error


def _message(error: BaseException, config: PipelineConfig) -> str | None:
    text = _first(error, _FULL, _FULL_TEXT)
    if text is not None:
        return (
            f"a disk is full ({text}): what previous runs made, recorded and pushed is unchanged. Make room below "
            f"{config.work_dir!r} and in the temporary folder, and run the same command again: nodes that finished "
            "come from the cache."
        )
    text = _first(error, _FAILS, _FAILS_TEXT)
    if text is not None:
        return (
            f"a disk fails ({text}): check the disk of {config.work_dir!r}, see that it is mounted for writing, "
            "and run the same command again: nodes that finished come from the cache."
        )
    text = _first(error, (), _METADATA_TEXT) or _status(error)
    if text is not None and is_server(config.metadata_path):
        return (
            f"metadata {config.metadata_path!r} cannot be used ({without_password(text)}): artifacts and served "
            "versions are unchanged. See that the server runs, has room, and that its user may write to the database; "
            "then run the same command again."
        )
    if text is not None:
        return (
            f"metadata {config.metadata_path!r} cannot be used ({text}): artifacts and served versions are "
            "unchanged. Check it with `tfx-embeddings metadata check`, put a backup in its place, or move the file "
            "away: the next run then creates a new one."
        )
    return None


def _first(error: BaseException, numbers: tuple[int, ...], text: re.Pattern[str]) -> str | None:
    """Return the text of the first error of the chain that has one of the numbers or matches the pattern."""
    for cause in chain(error):
        if isinstance(cause, OSError) and cause.errno in numbers:
            return str(cause)
        match = text.search(str(cause))
        if match:
            line = next(line for line in str(cause).splitlines() if match.group().splitlines()[0] in line)
            return line.strip()[:200]
    return None


def _status(error: BaseException) -> str | None:
    """Return the text of an error of ML Metadata itself."""
    texts = (
        " ".join(str(cause).split())[:200]
        for cause in chain(error)
        if isinstance(cause, ml_metadata.errors.StatusError)
    )
    return next(texts, None)


# Checks that TensorFlow can reach the addresses of a run, before anything is read or written.


def check_file_systems(config: PipelineConfig) -> None:
    """Refuse an address whose kind of store TensorFlow has no file system for; without addresses, load no TensorFlow.

    Raises:
      ConfigError: there is such an address.
    """
    for key, address in config.addresses.items():
        if is_remote(address):
            check_address(f"`{key}`", address)


def check_address(name: str, address: str) -> None:
    """Refuse one address.

    Args:
      name: what has the address, as the error names it.
      address: the address.

    Raises:
      ConfigError: TensorFlow has no file system for it.
    """
    import tensorflow as tf

    known = set(tf.io.gfile.get_registered_schemes())
    scheme = address.partition("://")[0]
    if scheme not in known:
        raise ConfigError(
            f"{name} is {address!r}: TensorFlow here has no file system for {scheme}://, only for "
            f"{', '.join(f'{other}://' for other in sorted(known - {'', 'file'}))}; see docs/scale.md."
        )
