"""Locks files and folders for one process, and makes temporary folders that a killed process does not leave behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
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


# Makes temporary folders that a killed process does not leave behind for good.
#
# A scratch folder is locked as long as its process lives. Making the next one in the same place removes those whose
# lock is free: their processes were killed before they could clean up.

_PREFIX = "tfx-embeddings-"


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Iterator[str]:
    """Make a temporary folder that only its owner can read, and remove it when the block ends.

    Args:
      purpose: a word for its name, such as "score".

    Yields:
      The path, below `tempfile.gettempdir()`.
    """
    _remove_abandoned(tempfile.gettempdir())
    while True:
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-")
        with locked_folder(folder, wait=True) as locked:
            if not locked:  # another process removed it between its creation and its lock
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


@contextlib.contextmanager
def scratch_tempdir(purpose: str) -> Iterator[str]:
    """Put all temporary files of this process, and of those it starts, into a scratch folder.

    Libraries that leave temporary files behind then leave them in a folder that is removed.
    """
    chosen = tempfile.tempdir
    with scratch_folder(purpose) as folder, environment_variable("TMPDIR", folder):
        tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = chosen


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment, which the processes started in the block inherit; then restore it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _remove_abandoned(parent: str) -> None:
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX) or not _is_own_folder(entry):
            continue
        with locked_folder(entry.path, wait=False) as abandoned:
            if abandoned:
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    return False
