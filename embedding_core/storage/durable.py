"""Syncs files and folders to the disk, writes a file whole or not at all, and finds free names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from embedding_core.storage.file_access import StrPath, is_remote, move, remove_file


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
