"""Reads the rows of Parquet files as batches of typed columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that a Parquet file holds (CVE-2023-47248)
from pyarrow import parquet

from components.example_gen.arrays import UnsupportedTypeError, normal, plain
from components.example_gen.encoding import examples
from components.example_gen.opened_files import check_columns, check_number_of_columns, open_file, reading
from components.example_gen.row_selection import SplitByHash
from components.example_gen.rows import BadRows, Batch, FirstRows
from components.example_gen.settings import Settings
from embedding_core.errors import DataError
from embedding_core.storage import bounds

_BATCH = 16_384


def parquet_batches(
    path: str, settings: Settings, bad: BadRows, first_rows: FirstRows | None = None
) -> Iterator[Batch]:
    """Yield batches of a Parquet file. `bad` is unused: damage cannot be limited to single rows.

    Raises:
      DataError: the file is empty or damaged, has too many columns, or a needed column is absent or of a type that no
        example can hold.
    """
    del bad
    with opened_parquet(path) as file:
        names = file.schema_arrow.names
        check_columns(path, names, settings)
        # A hash of the whole row needs all columns.
        whole = settings.passthrough or isinstance(settings.split, SplitByHash)
        size, first = _rows_at_once(file.metadata), 1
        if first_rows is not None:
            size = min(size, first_rows.rows)
        for records in file.iter_batches(size, columns=None if whole else list(settings.needed)):
            yield typed_batch(f"{path}, row", records, settings, first)
            first += len(records)
            if first_rows is not None and first > first_rows.rows:
                return
        if first_rows is not None:
            first_rows.ended = True


def _rows_at_once(metadata: parquet.FileMetaData) -> int:
    """Return the rows of a batch: fewer if, by the file's own account, so many would have more than a batch may."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(_BATCH, bounds.BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


@contextlib.contextmanager
def opened_parquet(path: str) -> Iterator[parquet.ParquetFile]:
    """Open a Parquet file; errors of reading it within the block become a DataError that names it.

    Raises:
      DataError: the file is empty or damaged, has too many columns, or holds pickled Python objects.
    """
    with reading(path), open_file(path) as stream:
        try:
            file = parquet.ParquetFile(stream)
            check_number_of_columns(path, file.metadata.num_columns)
            yield file
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"{path} is not a Parquet file, or is damaged ({error}): write it again.") from error
        except RuntimeError as error:
            if "arrow.py_extension_type" not in str(error):
                raise
            raise DataError(
                f"{path} has a column of pickled Python objects, and reading it would run code that the file holds: "
                "nothing was read; write the column as plain values."
            ) from None


def typed_batch(place: str, records: pa.RecordBatch, settings: Settings, first: int) -> Batch:
    """Make a batch of typed columns.

    Args:
      place: what precedes a row's number in errors: the file, and "row" (for TFRecord files "record").
      records: the columns that were read; needed columns that are absent become null in every row.
      settings: names the columns that are needed.
      first: number of the first row, counted from 1.

    Raises:
      DataError: a needed column, or with `passthrough` any column, is of a type that no example can hold.
    """
    columns: dict[str, pa.Array] = {name: pa.nulls(len(records), pa.large_binary()) for name in settings.needed}
    for name, column in zip(records.schema.names, records.columns, strict=True):
        try:
            columns[name] = normal(column)
        except UnsupportedTypeError as error:
            if name in settings.needed or settings.passthrough:
                raise DataError(
                    f"{place} {first}: column {settings.shown_name(name)!r} is of type {error}: an example holds text, "
                    "whole numbers, floats, times, and lists of these."
                ) from error
    return Batch(
        columns=columns,
        index=np.arange(len(records)),
        place=lambda row: f"{place} {first + row}",
        content=lambda index: _contents(columns, index),
    )


def _contents(columns: Mapping[str, pa.Array], index: npt.NDArray[np.int64]) -> list[bytes]:
    """Encode the rows, with all their columns, as tf.Examples."""
    chosen = pa.array(index)
    taken = {name: column.take(chosen) for name, column in columns.items()}
    return examples({name: plain(column) for name, column in taken.items()})
