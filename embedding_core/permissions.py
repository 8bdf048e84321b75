"""Keeps what is copied or extracted as private as what it came from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["readable_as"]

_OTHERS = 0o077


@contextlib.contextmanager
def readable_as(source: str | os.PathLike[str]) -> Iterator[None]:
    """Create the files and folders of the block for those who can read `source`, whatever the process' umask is.

    What exists keeps its permissions. A source that is an address, or not there, leaves the umask as it is.

    Args:
      source: the file or folder that the block copies or extracts.
    """
    try:
        mode = os.stat(source).st_mode
    except OSError:
        yield
        return
    before = os.umask(~mode & _OTHERS)
    try:
        yield
    finally:
        os.umask(before)
