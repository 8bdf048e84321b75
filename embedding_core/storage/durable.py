"""Brings files and folders to the disk, and finds names that are free."""

from __future__ import annotations

import os

__all__ = ["free_name", "sync", "sync_tree"]


def sync(path: str | os.PathLike[str]) -> None:
    """Bring one local file, or the list of names of one folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Bring every file and folder of a local tree to the disk, the innermost first."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(os.path.join(parent, name))
        sync(parent)


def free_name(path: str) -> str:
    """The path, with a number at its end if something (a broken link too) already has that name."""
    place, number = path, 1
    while os.path.lexists(place):
        place, number = f"{path}.{number}", number + 1
    return place
