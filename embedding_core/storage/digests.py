"""Computes digests of open files in blocks, so that memory does not grow with them."""

from __future__ import annotations

import hashlib
from typing import Protocol

__all__ = ["Readable", "digest_of"]

_BLOCK = 4 << 20


class Readable(Protocol):
    """A file that was opened to read bytes, on any file system."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size` of them; empty at the end."""


def digest_of(file: Readable) -> tuple[int, str]:
    """Read a file to its end; returns the number of its bytes, and their sha256 in hexadecimal digits."""
    digest, size = hashlib.sha256(), 0
    while block := file.read(_BLOCK):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()
