"""Reads rows of TFRecord files of tf.Examples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from components.checked_records import read_records
from components.example_gen.opened_files import check_made, open_unpacked, reading
from components.example_gen.parquet_rows import typed_batch
from components.example_gen.rows import BadRows, Batch
from components.example_gen.settings import Settings
from embedding_core.errors import DataError

_BATCH = 8_192


def tfrecord_batches(path: str, settings: Settings, bad: BadRows) -> Iterator[Batch]:
    """Yield batches of a TFRecord file (also gzip) of serialized tf.Examples; a record of anything else is a bad row.

    Raises:
      DataError: the file is damaged or cut off, or a feature is of different kinds in different records.
    """
    decoder = ExamplesToRecordBatchDecoder()
    with reading(path), open_unpacked(path) as stream:
        records = enumerate(read_records(path, stream), start=1)
        while chunk := list(itertools.islice(records, _BATCH)):
            numbers, examples, columns = _decode(path, decoder, chunk, bad)
            yield _batch(path, columns, settings, numbers, examples)


def _decode(
    path: str, decoder: ExamplesToRecordBatchDecoder, chunk: Sequence[tuple[int, bytes]], bad: BadRows
) -> tuple[Sequence[int], Sequence[bytes], pa.RecordBatch]:
    numbers, examples = zip(*chunk, strict=True)
    try:
        return numbers, examples, decoder.DecodeBatch(list(examples))
    except RuntimeError as error:
        good = [(number, data) for number, data in chunk if _parses(path, decoder, number, data, bad)]
        if len(good) == len(chunk):
            raise DataError(
                f"{path}, records {numbers[0]} to {numbers[-1]}: {error}; a feature must be of one kind throughout."
            ) from error
    return _decode(path, decoder, good, bad) if good else ((), (), pa.record_batch([], names=[]))


def _parses(path: str, decoder: ExamplesToRecordBatchDecoder, number: int, data: bytes, bad: BadRows) -> bool:
    try:
        decoder.DecodeBatch([data])
    except RuntimeError:
        bad.add(f"{path}, record {number}", "is not a tf.Example")
        return False
    return True


def _batch(
    path: str, columns: pa.RecordBatch, settings: Settings, numbers: Sequence[int], examples: Sequence[bytes]
) -> Batch:
    if columns.num_columns == 0:  # without columns, Arrow does not know the number of rows
        columns = pa.record_batch([pa.nulls(len(examples))], names=[""])
    check_made(path, columns.schema.names, settings.made)
    batch = typed_batch(f"{path}, record", columns, settings, numbers[0] if numbers else 1)
    return dataclasses.replace(
        batch,
        index=np.arange(len(examples)),
        place=lambda row: f"{path}, record {numbers[row]}",
        record=lambda row: examples[row],
    )
