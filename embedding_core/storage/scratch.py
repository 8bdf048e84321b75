"""Makes temporary folders that a killed process does not leave behind for good.

A scratch folder is locked as long as its process lives. Making the next one in the same place
removes those whose lock is free: their processes were killed before they could clean up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from embedding_core.storage.locks import locked_folder

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
