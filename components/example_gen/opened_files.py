"""Opens and decompresses files, local or on TFX's file systems, with errors that name the file.

TensorFlow and TFX are loaded only for remote files; Python opens local files itself.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from components.example_gen.formats import Compression, compression_of, unpacked
from components.example_gen.settings import Settings
from embedding_core.errors import DataError, nearest
from embedding_core.storage import bounds, check_regular, is_remote

_BUFFER = 1 << 20
_START = 10


class _Remote(io.RawIOBase):
    """Adapts a file of TFX's file systems to `io.RawIOBase`, which `io.BufferedReader` requires."""

    def __init__(self, path: str) -> None:
        from tfx.dsl.io import fileio

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


class _Unpacked(io.BufferedReader):
    """A decompressed stream that also closes the compressed one, which decompressors leave open."""

    def __init__(self, packed: io.BufferedReader, compression: Compression) -> None:
        super().__init__(unpacked(packed, compression), buffer_size=_BUFFER)
        self._packed = packed

    def close(self) -> None:
        super().close()
        self._packed.close()


def open_file(path: str) -> io.BufferedReader:
    """Return the file as a seekable binary stream.

    Raises:
      OSError: it is missing, cannot be read, or is not a regular file.
    """
    if is_remote(path):
        return io.BufferedReader(_Remote(path), buffer_size=_BUFFER)
    check_regular(path)
    return io.BufferedReader(io.FileIO(path), buffer_size=_BUFFER)


def open_unpacked(path: str, compression: Compression | None = None) -> io.BufferedReader:
    """Return the file as a decompressed binary stream.

    Args:
      path: the file.
      compression: the configured one; None recognizes it by the file's first bytes, not by its name.

    Raises:
      DataError: the file is not compressed as configured.
    """
    stream = open_file(path)
    present = compression_of(stream.peek(_START))
    if compression is not None and compression not in (present, "none"):
        what = "not compressed" if present == "none" else f"compressed as {present}"
        raise DataError(
            f"{path}: `data.compression` is {compression!r}, and by its first bytes the file is {what}: correct the "
            "key, or leave it out to have every file recognized by its first bytes."
        )
    packing = present if compression is None else compression
    return stream if packing == "none" else _Unpacked(stream, packing)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert the errors of reading a file to a DataError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}): write it again.") from error
    except OSError as error:
        if error.errno is None:  # raised by a decompressor, not by the system
            raise DataError(f"{path} is truncated or damaged ({error}): write it again.") from error
        raise DataError(f"{path} cannot be read: {error}") from error
    except Exception as error:
        # TensorFlow's file systems raise OpError, which is available only if TensorFlow is loaded.
        if "tensorflow" in sys.modules and isinstance(error, sys.modules["tensorflow"].errors.OpError):
            raise DataError(f"{path} cannot be read: {error}") from error
        raise


def check_columns(path: str, present: Sequence[str], settings: Settings) -> None:
    """Check the names of a file's columns.

    Args:
      path: the file.
      present: names of its columns.
      settings: which columns are needed, which are made of them, and which names may be shown.

    Raises:
      DataError: there are too many columns, a name occurs twice, a needed column is absent, or a column has the name
        of a new one.
    """
    check_number_of_columns(path, len(present))
    counts = Counter(present)
    twice = next((name for name in present if counts[name] > 1), None)
    if twice is not None:
        places = [at for at, name in enumerate(present, start=1) if name == twice]
        raise DataError(
            f"{path}: column {settings.shown_name(twice)!r} occurs {len(places)} times in the header, first as columns "
            f"{places[0]} and {places[1]}: names must be unique."
        )
    for name in settings.needed:
        if name not in counts:
            known = map(settings.shown_name, present)
            raise DataError(f"{path}: column {name!r} is missing: {nearest(name, known)}")
    check_made(path, present, settings.made)


def check_number_of_columns(path: str, count: int) -> None:
    """Check that a file has at most `bounds.COLUMNS` columns.

    Raises:
      DataError: it has more.
    """
    if count > bounds.COLUMNS:
        raise DataError(
            f"{path} has {count:,} columns, and {bounds.COLUMNS:,} is the most that is read: correct the delimiter and "
            "the line breaks, or write only the columns that you need, and many similar ones as one column of lists."
        )


def check_made(path: str, present: Sequence[str], made: Sequence[str]) -> None:
    """Check that no column of the file has the name of a new column.

    Raises:
      DataError: a column has such a name.
    """
    for name in (name for name in made if name in present):
        raise DataError(
            f"{path}: there is a column {name!r}, and `data.histories.columns` makes one of this name: give the new "
            "one another name."
        )
