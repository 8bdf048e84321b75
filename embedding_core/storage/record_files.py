"""Derives the compression of TFRecord files from their names."""

from __future__ import annotations

from collections.abc import Iterable

from embedding_core.errors import DataError


def record_compression(files: Iterable[str]) -> str:
    """Return TensorFlow's name of the compression of TFRecord files: "GZIP" if their names end in .gz, else "".

    Raises:
      DataError: some files are gzipped and some are not.
    """
    names = list(files)
    kinds = {"GZIP" if name.endswith(".gz") else "" for name in names}
    if len(kinds) > 1:
        raise DataError(f"some of {len(names)} record files are gzipped and some are not: give files of one kind.")
    return "".join(kinds)
