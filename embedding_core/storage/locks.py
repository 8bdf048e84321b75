"""Locks a local file or folder for one process; the system releases the lock when that process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def open_lock_file(path: str) -> int:
    """Open a lock file, and make it if it is missing; a symbolic link is not followed.

    Returns:
      The descriptor, which the caller closes.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def locked_file(path: str, *, wait: bool) -> Iterator[bool]:
    """Lock a file, which is made if it is missing, while the block runs.

    Args:
      path: path of the file; a symbolic link is not followed.
      wait: whether to wait for another process that has the lock.

    Yields:
      Whether this process has the lock, and the path still names the locked file.
    """
    descriptor = open_lock_file(path)
    try:
        yield _lock(descriptor, path, wait)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_folder(path: str, *, wait: bool) -> Iterator[bool]:
    """Lock a folder while the block runs.

    Args:
      path: path of the folder; a symbolic link is not followed.
      wait: whether to wait for another process that has the lock.

    Yields:
      Whether the folder exists, this process has the lock, and the path still names the locked folder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        yield False
        return
    try:
        yield _lock(descriptor, path, wait)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: str, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(FileNotFoundError):  # another process may have removed it before it was locked
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    return False
