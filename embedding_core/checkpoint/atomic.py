"""A folder that is there whole or not at all.

Everything is written under a temporary name beside the destination, forced to the disk (files, then the
folders that list them) and renamed. A process that dies on the way leaves only the temporary folder, which
the next write to the same destination sweeps. On an object store, where there is neither fsync nor an
atomic rename of folders, what makes a folder whole is the manifest that describes every file in it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

import tensorflow as tf

from embedding_core.errors import CheckpointError

__all__ = ["publish_folder", "sweep"]


def _temporary_prefix(destination: str) -> tuple[str, str]:
    parent, name = os.path.split(destination.rstrip("/"))
    return parent or ".", f".{name}.tmp-"


def sweep(destination: str) -> list[str]:
    """Delete what writes to `destination` that died left behind; returns the paths."""
    parent, prefix = _temporary_prefix(destination)
    if not tf.io.gfile.isdir(parent):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(parent)]
    orphans = [os.path.join(parent, name) for name in names if name.startswith(prefix)]
    for orphan in orphans:
        tf.io.gfile.rmtree(orphan)
    return orphans


@contextlib.contextmanager
def publish_folder(destination: str | os.PathLike[str]) -> Iterator[str]:
    """Fill a temporary folder, which becomes `destination` when the block ends without an error.

    Only one process at a time may write to a destination.

    Yields:
      The path to write files under.

    Raises:
      CheckpointError: something other than an empty folder is at the destination.
    """
    destination = os.fspath(destination).rstrip("/")
    if tf.io.gfile.exists(destination) and not _is_empty_folder(destination):
        raise CheckpointError(f"{destination!r} already holds files: nothing is overwritten; write to a new folder.")
    sweep(destination)
    parent, prefix = _temporary_prefix(destination)
    temporary = os.path.join(parent, f"{prefix}{uuid.uuid4().hex}")
    tf.io.gfile.makedirs(temporary)
    try:
        yield temporary
        _sync_folder_tree(temporary)
        if tf.io.gfile.exists(destination):
            tf.io.gfile.rmtree(destination)
        tf.io.gfile.rename(temporary, destination)
        _sync(parent)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
        raise


def _is_empty_folder(path: str) -> bool:
    return tf.io.gfile.isdir(path) and not tf.io.gfile.listdir(path)


def _sync_folder_tree(folder: str) -> None:
    for path, _, files in tf.io.gfile.walk(folder):
        for name in files:
            _sync(os.path.join(path, name))
        _sync(path)


def _sync(path: str) -> None:
    if "://" in path:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
