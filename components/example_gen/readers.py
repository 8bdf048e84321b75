"""Reads the rows of one file of any known format as batches.

Local files are read without TensorFlow, TFX or Beam, so that a check of the configuration can look at rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from components.example_gen.csv_rows import csv_batches
from components.example_gen.formats import DataFormat
from components.example_gen.parquet_rows import parquet_batches
from components.example_gen.rows import BadRows, Batch, FirstRows
from components.example_gen.settings import Settings
from components.installed import require_package

DATA_FORMATS: tuple[str, ...] = get_args(DataFormat)


def read_batches(
    path: str, data_format: str, settings: Settings, bad: BadRows, first: FirstRows | None = None
) -> Iterator[Batch]:
    """Yield the file's rows in batches, in order.

    Args:
      path: the file.
      data_format: one of `DATA_FORMATS`.
      settings: which columns are read, and how CSV is written.
      bad: collects the rows that cannot be read.
      first: the rows to read; None reads all.

    Raises:
      DataError: the file is empty, damaged, beyond a bound, or without a needed column.
    """
    if data_format == "csv":
        yield from csv_batches(path, settings, bad, first)
    elif data_format == "parquet":
        yield from parquet_batches(path, settings, bad, first)
    else:
        require_package("tfx_bsl", f"{path!r} is a TFRecord file: give CSV or Parquet, or for TFRecord files")
        from components.example_gen.tfrecord_rows import tfrecord_batches  # loads TFX's decoder

        yield from tfrecord_batches(path, settings, bad, first)
