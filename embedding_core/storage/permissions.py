"""Decides who may read what a block creates: what is copied or extracted is as private as its source."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_OTHERS = 0o077


@contextlib.contextmanager
def umask_of(mask: int) -> Iterator[None]:
    """Create the files and folders of the block without the permissions of `mask`; what exists keeps its own."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def readable_as(source: str | os.PathLike[str]) -> Iterator[None]:
    """Create the files and folders of the block for those who can read `source`, whatever the process' umask is.

    What exists keeps its permissions. A source that is an address, or is missing, leaves the umask as it is.

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
