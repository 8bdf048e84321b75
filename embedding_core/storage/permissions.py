"""Sets the umask of a block, so that what it copies or extracts is as private as its source."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

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
