"""Opens TFRecord files, and derives their compression from their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from embedding_core.errors import DataError

_BUFFER = 8 << 20


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


def open_records(files: Any, compression: str | None = None) -> tf.data.Dataset:
    """Make a dataset of the records of TFRecord files, one file after the other.

    Args:
      files: their names: a list, or a string tensor.
      compression: as `record_compression` returns it; None derives it from the names.
    """
    return tf.data.TFRecordDataset(files, record_compression(files) if compression is None else compression, _BUFFER)
