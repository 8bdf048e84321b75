"""Files opened and unpacked, wherever TFX's file systems reach; damage is reported with the file's name."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tensorflow as tf
from tfx.dsl.io import fileio

from embedding_core.errors import DataError, nearest

__all__ = ["check_columns", "open_file", "open_unpacked", "reading"]

_GZIP = b"\x1f\x8b"
_BUFFER = 1 << 20


class _Raw(io.RawIOBase):
    """A file of TFX's file systems as a binary stream of Python's; `io` needs more than their `read`."""

    def __init__(self, path: str) -> None:
        self._file: Any = fileio.open(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_file(path: str) -> io.BufferedReader:
    """The file as a seekable binary stream."""
    return io.BufferedReader(_Raw(path), buffer_size=_BUFFER)


def open_unpacked(path: str) -> io.BufferedReader:
    """The file as a binary stream, unpacked where it is gzip (told by its first bytes, not by its name)."""
    stream = open_file(path)
    if stream.peek(2)[:2] != _GZIP:
        return stream
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)), buffer_size=_BUFFER)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what reading a file may raise into a DataError that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or damaged ({error}): write it again.") from error
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def check_columns(path: str, found: Sequence[str], needed: Sequence[str]) -> None:
    """Check the names of a file's columns.

    Raises:
      DataError: a name stands twice, or a needed one is absent.
    """
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise DataError(
            f"{path}: column {twice[0]!r} stands {found.count(twice[0])} times in the header: names must be unique."
        )
    for name in needed:
        if name not in found:
            raise DataError(f"{path}: there is no column {name!r}: {nearest(name, found)}")
