"""Names the formats and compressions of data files, and recognizes them, without TFX or TensorFlow."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
from collections.abc import Mapping
from typing import BinaryIO, Literal, TypeAlias, cast

DataFormat: TypeAlias = Literal["csv", "tfrecord", "parquet"]
Compression: TypeAlias = Literal["none", "gz", "bz2", "zst", "xz"]

EXTENSIONS = ".csv (or .csv.gz, .csv.bz2, .csv.zst, .csv.xz), .tfrecord, .tfrecord.gz or .parquet"
_FORMATS: Mapping[DataFormat, re.Pattern[str]] = {
    "csv": re.compile(r"\.csv(\.(gz|bz2|zst|xz))?$"),
    "tfrecord": re.compile(r"tfrecords?(\.gz)?(-\d+-of-\d+)?(\.gz)?$"),
    "parquet": re.compile(r"\.parquet$"),
}
# bzip2 is recognized by all ten bytes, because the header of a text file may start with "BZh".
_FIRST_BYTES: Mapping[Compression, re.Pattern[bytes]] = {
    "gz": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)"),
    "zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}


def format_of(file: str) -> DataFormat | None:
    """Recognize the format by a file's name; None if its extension is unknown."""
    name = os.path.basename(file).lower()
    return next((format_ for format_, pattern in _FORMATS.items() if pattern.search(name)), None)


def compression_of(start: bytes) -> Compression:
    """Recognize the compression by a file's first bytes (at least 10, if the file has as many)."""
    return next((one for one, pattern in _FIRST_BYTES.items() if pattern.match(start)), "none")


def unpacked(stream: BinaryIO, compression: Compression) -> io.RawIOBase:
    """Return a stream of the uncompressed bytes."""
    if compression == "gz":
        return cast(io.RawIOBase, gzip.GzipFile(fileobj=stream))
    if compression == "bz2":
        return cast(io.RawIOBase, bz2.BZ2File(stream))
    if compression == "xz":
        return cast(io.RawIOBase, lzma.LZMAFile(stream))
    if compression == "zst":
        import pyarrow as pa  # slow to import, and rarely needed here

        return cast(io.RawIOBase, pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"))
    return cast(io.RawIOBase, stream)
