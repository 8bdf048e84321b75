"""A folder that is there whole or not at all.

Everything is written under a temporary name beside the destination, forced to the disk (files, then the
folders that list them) and renamed. A process that dies on the way leaves only the temporary folder, which
the next write beside it sweeps; a lock, which the system releases when its holder dies, tells it from the
folder of a writer that is still alive. On an object store, where there is no lock, no fsync and no atomic rename
of folders, what makes a folder whole is the manifest that describes every file in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator

import tensorflow as tf

from embedding_core.errors import CheckpointError
from embedding_core.storage import locked_folder, sync, sync_tree

__all__ = ["publish_folder", "remove_folder", "sweep"]

_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{32}\Z")


def _temporary_name(destination: str) -> str:
    parent, name = os.path.split(destination)
    return os.path.join(parent or ".", f".{name}.tmp-{uuid.uuid4().hex}")


def sweep(parent: str | os.PathLike[str]) -> list[str]:
    """Delete what writers that died left in a folder; returns the paths. A writer that lives is left alone."""
    parent = os.fspath(parent)
    if not tf.io.gfile.isdir(parent):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(parent)]
    removed = []
    for path in (os.path.join(parent, name) for name in names if _TEMPORARY.match(name)):
        with _locked(path, wait=False) as held:
            if held:
                tf.io.gfile.rmtree(path)
                removed.append(path)
    return removed


@contextlib.contextmanager
def _locked(folder: str, *, wait: bool) -> Iterator[bool]:
    """Whether this process now holds the lock of the folder, and the folder is still there."""
    if "://" in folder:
        yield wait  # there are no locks: only the writer itself may touch it
        return
    with locked_folder(folder, wait=wait) as held:
        yield held


@contextlib.contextmanager
def _temporary_folder(destination: str) -> Iterator[str]:
    """A new folder, locked; another process' sweep may take it before it is locked, then it is made again."""
    while True:
        temporary = _temporary_name(destination)
        tf.io.gfile.makedirs(temporary)
        with _locked(temporary, wait=True) as held:
            if held:
                yield temporary
                return


@contextlib.contextmanager
def _writing(destination: str) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise CheckpointError(
            f"{destination!r} cannot be written ({_words(error)}): nothing is left of it, and what was there before is "
            "untouched; make room, or write elsewhere."
        ) from error


@contextlib.contextmanager
def publish_folder(destination: str | os.PathLike[str], *, replace: bool = False) -> Iterator[str]:
    """Fill a temporary folder, which becomes `destination` when the block ends without an error.

    Only one process at a time may write to a destination.

    Args:
      destination: the folder to make.
      replace: whether a folder that is there gives way. It is gone for the moment between two renames.

    Yields:
      The path to write files under.

    Raises:
      CheckpointError: something other than an empty folder is at the destination, and is not to be replaced; or
        writing fails, as where the disk is full.
    """
    destination = os.fspath(destination).rstrip("/")
    if not replace and tf.io.gfile.exists(destination) and not _is_empty_folder(destination):
        raise CheckpointError(f"{destination!r} already holds files: nothing is overwritten; write to a new folder.")
    parent = os.path.dirname(destination) or "."
    with _writing(destination):
        tf.io.gfile.makedirs(parent)
        sweep(parent)
    with _writing(destination), _temporary_folder(destination) as temporary:
        try:
            yield temporary
            if "://" not in temporary:
                sync_tree(temporary)
            remove_folder(destination)
            tf.io.gfile.rename(temporary, destination)
            if "://" not in parent:
                sync(parent)
        except BaseException:
            if tf.io.gfile.exists(temporary):
                tf.io.gfile.rmtree(temporary)
            raise


def remove_folder(path: str) -> None:
    """Delete a folder, if it is there, so that a half deleted one is never seen under its name."""
    if not tf.io.gfile.exists(path):
        return
    trash = _temporary_name(path)
    tf.io.gfile.rename(path, trash)
    with contextlib.suppress(tf.errors.NotFoundError):  # a sweep of another process may have been faster
        tf.io.gfile.rmtree(trash)


def _words(error: OSError | tf.errors.OpError) -> str:
    return str(error) if isinstance(error, OSError) else str(error.message)


def _is_empty_folder(path: str) -> bool:
    return tf.io.gfile.isdir(path) and not tf.io.gfile.listdir(path)
