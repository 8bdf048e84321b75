"""The bytes of a vocabulary's files, in chunks: tokens and counts may take gigabytes, and are never held twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "DigestedFile",
    "npy_chunks",
    "npy_header",
    "plain_chunks",
    "read_tokens",
    "sha256_of",
]

_TOKENS_AT_ONCE = 1 << 18
_BYTES_AT_ONCE = 1 << 22
_LINE_FEED = ord("\n")
_format: Any = np.lib.format  # numpy's own types leave these functions out


def sha256_of(chunks: Iterable[bytes]) -> str:
    """Of all chunks together, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


class DigestedFile:
    """A new file that knows the digest of what was written to it."""

    def __init__(self, path: str, open_file: Callable[..., Any]) -> None:
        """Open it by `open_file`, as `open` would."""
        self._file = open_file(path, "wb")
        self._sha256 = hashlib.sha256()

    def __enter__(self) -> DigestedFile:
        """The file; it is there even if nothing is written to it."""
        self._file.__enter__()
        self._file.write(b"")  # some file systems make a file only when it is written to
        return self

    def __exit__(self, *error: Any) -> None:
        """Close it."""
        self._file.__exit__(*error)

    def write(self, chunk: bytes) -> None:
        """Append to it."""
        self._sha256.update(chunk)
        self._file.write(chunk)

    @property
    def digest(self) -> str:
        """Sha256 of what was written so far, in hexadecimal."""
        return self._sha256.hexdigest()


def plain_chunks(tokens: pa.Array) -> Iterator[bytes]:
    """The bytes of `<name>.txt`: each token followed by a line feed."""
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        part = tokens.slice(start, _TOKENS_AT_ONCE)
        row = pa.LargeListArray.from_arrays(pa.array([0, len(part)], pa.int64()), part)
        joined: bytes = pc.binary_join(row, pa.scalar(b"\n", pa.large_binary()))[0].as_py()
        yield joined + b"\n"


def npy_chunks(array: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """The bytes that `numpy.save` writes of an array."""
    yield from npy_header(array.shape)
    flat = np.ascontiguousarray(array).reshape(-1)
    count = _BYTES_AT_ONCE // flat.itemsize
    for start in range(0, len(flat), count):
        yield flat[start : start + count].tobytes()


def npy_header(shape: tuple[int, ...]) -> Iterator[bytes]:
    """The bytes that stand before those of an int64 array of that shape."""
    header = _Chunks()
    one = np.broadcast_to(np.zeros((), np.int64), shape)
    _format.write_array_header_1_0(header, {**_format.header_data_from_array_1_0(one), "fortran_order": False})
    yield from header


class _Chunks(list[bytes]):
    """A file to numpy, which only writes."""

    def write(self, chunk: bytes) -> None:
        self.append(chunk)


def read_tokens(file: BinaryIO) -> tuple[pa.Array, str]:
    """The lines of a plain token file as a large_binary array, and the sha256 of its bytes."""
    digest, size = hashlib.sha256(), 0
    parts: list[bytes] = []
    ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
    while chunk := file.read(_BYTES_AT_ONCE):
        digest.update(chunk)
        breaks = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _LINE_FEED)
        ends.append(size + breaks - np.arange(len(breaks)))
        parts.append(chunk.replace(b"\n", b""))
        size += len(parts[-1])
    offsets = np.concatenate(ends)
    ends.clear()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers), digest.hexdigest()
