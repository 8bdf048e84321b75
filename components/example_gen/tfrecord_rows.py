"""Reads rows of TFRecord files of tf.Examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from components.artifact_files import read_records
from components.example_gen.data_files import check_made, check_number_of_columns, open_unpacked, reading
from components.example_gen.readers import typed_batch
from components.example_gen.rows import BadRows, Batch, FirstRows
from components.example_gen.settings import Settings
from embedding_core.errors import DataError
from embedding_core.storage import bounds

_BATCH = 8_192


def tfrecord_batches(path: str, settings: Settings, bad: BadRows, first: FirstRows | None = None) -> Iterator[Batch]:
    """Yield batches of a TFRecord file (also gzip) of serialized tf.Examples; a record of anything else is a bad row.

    Raises:
      DataError: the file is damaged or cut off, a record is too large, the records of a batch have too many features,
        or a feature is of different kinds in different records.
    """
    decoder = ExamplesToRecordBatchDecoder()
    with reading(path), open_unpacked(path) as stream:
        rows = 0
        for chunk in _chunks(read_records(path, stream), first):
            numbers, examples, columns = _decode(path, decoder, chunk, bad)
            check_number_of_columns(path, columns.num_columns)
            yield _batch(path, columns, settings, numbers, examples)
            rows += len(examples)
            if first is not None and rows >= first.rows:
                return


def _chunks(records: Iterable[bytes], first: FirstRows | None) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the records with their numbers, as many at a time as a batch has; note in `first` whether they ended."""
    chunk: list[tuple[int, bytes]] = []
    held = total = 0
    for number, record in enumerate(records, start=1):
        chunk.append((number, record))
        held, total = held + len(record), total + len(record)
        if len(chunk) == (_BATCH if first is None else min(_BATCH, first.rows)) or held > bounds.BATCH_BYTES:
            yield chunk
            chunk, held = [], 0
        if first is not None and (number == first.most or total > bounds.SAMPLE_BYTES):
            break
    else:
        if first is not None:
            first.ended = True
    if chunk:
        yield chunk


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
                f"{path}, records {numbers[0]} to {numbers[-1]}: a feature is of different kinds in these records "
                f"({error}): write it as one kind."
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
        place=lambda row: f"{path}, record {numbers[row]}",
        record=lambda row: examples[row],
    )
