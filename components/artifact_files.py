"""Reads artifacts of tables; reads and writes records with their checksums."""

from __future__ import annotations

import functools
import itertools
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TypeVar

import google_crc32c
from isal import isal_zlib

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import bounds, masked, open_file, read_bounded

T = TypeVar("T")

EMBEDDING_CONFIG_FILE = "embedding_config.json"
RECORD_SUFFIX = ".lineage.json"
"""Suffix of the record beside an artifact, see `components.base_executor`."""


def read_embedding_config(folder: str) -> EmbeddingConfig:
    """Return the tables and features of a TableConfigs artifact, verified if sealed (earlier releases wrote no seal).

    Raises:
      ConfigError: the file is not what TableConfigGen wrote.
    """
    return read_tables_file(os.path.join(folder, EMBEDDING_CONFIG_FILE), EmbeddingConfig.from_json)


def read_tables_file(path: str, parse: Callable[[bytes], T]) -> T:
    """Read and parse a file of a TableConfigs artifact.

    Raises:
      ConfigError: the file is not what TableConfigGen wrote.
    """
    try:
        return parse(read_bounded(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path!r} is not what TableConfigGen wrote ({error}): restore it, or run TableConfigGen again."
        ) from error


# Reads the records of TFRecord files that others wrote, without TensorFlow, whose reader does not bound a record.
#
# It checks a record's size before it reads the record, and names the damaged record.


def read_records(path: str, stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the records of a decompressed TFRecord file, each checked against its checksums.

    Args:
      path: name of the file in errors.
      stream: its content.

    Raises:
      DataError: the file is damaged or cut off, or a record is larger than `bounds.RECORD_BYTES`; the error has the
        number of the record, from 1.
    """
    for number in itertools.count(1):
        head = stream.read(12)
        if not head:
            return
        size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
        if len(head) == 12 and _checksum(head[:8]) != head[8:]:
            what = "is damaged at" if number > 1 else "is not a TFRecord file, or is damaged at"
            raise DataError(f"{path} {what} record {number}: write it again.")
        if size > bounds.RECORD_BYTES:
            raise DataError(
                f"{path}, record {number}: it has {size:,} bytes, and {bounds.RECORD_BYTES:,} is the most that a "
                "record may have: write its content as several records."
            )
        data, check = stream.read(size), stream.read(4)
        if len(head) < 12 or len(check) < 4:
            raise DataError(f"{path} is cut off within record {number}: write it again.")
        if _checksum(data) != check:
            raise DataError(f"{path} is damaged at record {number} (its checksum differs): write it again.")
        yield data


def _checksum(data: bytes) -> bytes:
    """Compute TFRecord's masked CRC-32C, as the four bytes in the file."""
    return struct.pack("<I", masked(google_crc32c.value(data)))


# Writes TFRecord files in a quarter of the CPU time that TensorFlow's writer takes, most of which zlib spends.

_LEVEL = 2  # of ISA-L: on click logs, files are 6% larger than those of zlib's level 3
_AT_ONCE = 4096
_GZIP = 16 + zlib.MAX_WBITS


def write_records(path: str, records: Sequence[bytes]) -> None:
    """Write records to a gzipped TFRecord file."""
    compressor = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP)
    with open_file(path, "wb") as file:
        for start in range(0, len(records), _AT_ONCE):
            parts: list[bytes] = []
            for record in records[start : start + _AT_ONCE]:
                parts += (_head(len(record)), record, _checksum(record))
            file.write(compressor.compress(b"".join(parts)))
        file.write(compressor.flush())


@functools.lru_cache(maxsize=4096)
def _head(size: int) -> bytes:
    """Return the size of a record and its checksum, as they precede the record."""
    head = struct.pack("<Q", size)
    return head + _checksum(head)
