"""Locks a local folder for one process; the system releases the lock when that process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

__all__ = ["locked_folder"]


@contextlib.contextmanager
def locked_folder(folder: str, *, wait: bool) -> Iterator[bool]:
    """Lock a folder while the block runs.

    Args:
      folder: the folder; a symbolic link is not followed.
      wait: whether to wait for another process that holds the lock.

    Yields:
      Whether this process holds the lock and the folder still exists under its name.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # missing, a file, or a link
            raise
        yield False
        return
    try:
        yield _has_lock(descriptor, wait) and os.path.isdir(folder)
    finally:
        os.close(descriptor)


def _has_lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
