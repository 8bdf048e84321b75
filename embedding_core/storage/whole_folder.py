"""Writes files and folders whole or not at all, as private as their source; locks them; makes temporary folders.

Everything is written under a temporary name beside the destination, synced to the disk (files, then the folders that
list them) and renamed. A process that dies before the rename leaves what is temporary: the next write of a folder
beside it removes a folder, and a file `<path>.<process>.new` stays. A folder whose lock is held belongs to a living
writer; the system releases the lock when a process dies. On an object store, which has no locks, no fsync and no atomic
rename of folders, a folder is whole if every file that its manifest lists is there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator

from embedding_core.errors import CheckpointError
from embedding_core.storage.file_access import (
    StrPath,
    exists,
    is_folder,
    is_remote,
    make_folders,
    move,
    names_in,
    remove_file,
    remove_tree,
    tensorflow_errors_as_os_errors,
)

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
        yield _locked(descriptor, path, wait)
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
        yield _locked(descriptor, path, wait)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, path: str, wait: bool) -> bool:
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


# Syncs files and folders to the disk, writes a file whole or not at all, and finds free names.


def sync(path: StrPath) -> None:
    """Sync a local file, or the entries of a local folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: StrPath) -> None:
    """Sync every file and folder of a local tree to the disk, the innermost first."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(os.path.join(parent, name))
        sync(parent)


@contextlib.contextmanager
def whole_file(path: StrPath) -> Iterator[str]:
    """Make or replace a file when the block ends without an error; no reader sees it half written.

    Yields:
      The temporary path to write to, beside the file.
    """
    path = os.fspath(path)
    half = f"{path}.{os.getpid()}.new"
    try:
        yield half
        if is_remote(path):
            move(half, path, replace=True)
        else:
            sync(half)
            os.replace(half, path)
            sync(os.path.dirname(os.path.abspath(path)))
    finally:
        remove_file(half)


def free_name(path: str) -> str:
    """Return the path, with a number at its end if a file, a folder or a broken link already has that name."""
    free, number = path, 1
    while os.path.lexists(free):
        free, number = f"{path}.{number}", number + 1
    return free


# Writes a folder whole or not at all.

_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{32}\Z")


def _temporary_name(destination: str) -> str:
    parent, name = os.path.split(destination)
    return os.path.join(parent or ".", f".{name}.tmp-{uuid.uuid4().hex}")


def remove_leftovers(parent: StrPath) -> list[str]:
    """Delete what dead writers left in a folder, but nothing of living ones; return the deleted paths."""
    removed = []
    for path in (os.path.join(parent, name) for name in names_in(parent) if _TEMPORARY.match(name)):
        with _lock(path, wait=False) as is_dead:
            if is_dead:
                remove_tree(path)
                removed.append(path)
    return removed


@contextlib.contextmanager
def _lock(folder: str, *, wait: bool) -> Iterator[bool]:
    """Yield whether this process has the lock of the folder.

    An object store has no locks. There it yields `wait`: a writer (true) goes on, a cleanup (false) deletes nothing.
    """
    if is_remote(folder):
        yield wait
        return
    with locked_folder(folder, wait=wait) as locked:
        yield locked


@contextlib.contextmanager
def hidden_folder(destination: str) -> Iterator[str]:
    """Make an empty folder beside the destination under a hidden name; no process removes it while this one lives.

    When the block ends, the folder is deleted if it was not renamed.
    """
    while True:
        temporary = _temporary_name(destination)
        make_folders(temporary)
        with _lock(temporary, wait=True) as locked:
            if not locked:  # another process removed it before it was locked
                continue
            try:
                yield temporary
            finally:
                remove_tree(temporary)
            return


def put_in_place(folder: str, destination: str) -> None:
    """Rename a folder, and sync the rename to the disk; the files in the folder must be synced already."""
    move(folder, destination)
    if not is_remote(destination):
        sync(os.path.dirname(destination) or ".")


@contextlib.contextmanager
def whole_folder(destination: StrPath, *, replace: bool = False) -> Iterator[str]:
    """Fill a temporary folder, which becomes `destination` when the block ends without an error.

    Only one process at a time may write to a destination.

    Args:
      destination: the folder to make.
      replace: whether to replace an existing folder, which is then missing between two renames.

    Yields:
      The path to write files under.

    Raises:
      CheckpointError: the destination is not an empty folder, and is not to be replaced; or writing fails, for example
        because the disk is full.
    """
    destination = os.fspath(destination).rstrip("/")
    if not replace and exists(destination) and not (is_folder(destination) and not names_in(destination)):
        raise CheckpointError(f"{destination!r} already holds files: nothing is overwritten; write to a new folder.")
    parent = os.path.dirname(destination) or "."
    try:
        with tensorflow_errors_as_os_errors():
            make_folders(parent)
            remove_leftovers(parent)
            with hidden_folder(destination) as temporary:
                yield temporary
                if not is_remote(temporary):
                    sync_tree(temporary)
                _replace(temporary, destination)
    except OSError as error:
        raise CheckpointError(
            f"{destination!r} cannot be written ({error}): nothing is left of it, and what was there before is "
            "untouched; make room, or write elsewhere."
        ) from error


def _replace(temporary: str, destination: str) -> None:
    """Put a folder in the place of another one, if there is one; if that fails, put the other one back."""
    previous = _temporary_name(destination) if exists(destination) else None
    if previous is not None:
        move(destination, previous)
    try:
        put_in_place(temporary, destination)
    except BaseException:
        if previous is not None:
            move(previous, destination)
        raise
    if previous is not None:
        remove_tree(previous)


def remove_folder(path: str) -> None:
    """Delete a folder, if it is there, so that nobody sees a half deleted one under its name."""
    if exists(path):
        trash = _temporary_name(path)
        move(path, trash)
        remove_tree(trash)


# Sets the umask of a block, so that what it copies or extracts is as private as its source.

_OTHERS = 0o077


@contextlib.contextmanager
def umask_of(mask: int) -> Iterator[None]:
    """Create the files and folders of the block without the permissions of `mask`; existing ones keep theirs."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def readable_as(source: str | os.PathLike[str]) -> Iterator[None]:
    """Create the files and folders of the block for those who can read `source`, whatever the process' umask is.

    Existing files keep their permissions. If the source is an address or is missing, the umask stays as it is.

    Args:
      source: the file or folder that the block copies or extracts.
    """
    try:
        mode = os.stat(source).st_mode
    except OSError:
        yield
        return
    with umask_of(~mode & _OTHERS):
        yield
