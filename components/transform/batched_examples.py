"""Reads tf.Examples for Transform in batches, because TFX's reader passes every record through Beam's Python code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apache_beam as beam
import pyarrow as pa
import tensorflow as tf
from tfx.dsl.io import fileio
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder
from tfx_bsl.tfxio.tf_example_record import TFExampleRecord

from embedding_core.errors import DataError
from embedding_core.storage import record_compression
from embedding_core.tracing import without_internals

_BATCH = 4096


class BatchedExamples(TFExampleRecord):
    """TFX's reader of TFRecord files of tf.Examples, changed to read the files with tf.data, in batches."""

    def BeamSource(self, batch_size: int | None = None) -> beam.PTransform:  # noqa: N802
        """Return a Beam source of record batches with the columns of the schema.

        Args:
          batch_size: rows of each batch (the last one of a file may have fewer); None means 4096.
        """
        return _Read(self._file_pattern, self._schema.SerializeToString(), batch_size or _BATCH)

    def _ProjectImpl(self, tensor_names: Sequence[str]) -> BatchedExamples:  # noqa: N802
        projected = super()._ProjectImpl(tensor_names)
        return BatchedExamples(
            projected._file_pattern,
            schema=projected._schema,
            raw_record_column_name=projected.raw_record_column_name,
            telemetry_descriptors=projected.telemetry_descriptors,
        )


class _Read(beam.PTransform):
    def __init__(self, patterns: Sequence[str], schema: bytes, batch_size: int) -> None:
        super().__init__()
        self._patterns = patterns
        self._decode = _Decode(schema, batch_size)

    def expand(self, start: beam.pvalue.PBegin) -> beam.PCollection:
        files = sorted(path for pattern in self._patterns for path in fileio.glob(pattern))
        if not files:
            raise DataError(f"no files match {', '.join(map(repr, self._patterns))}: run ExampleGen again.")
        decode = beam.ParDo(self._decode).with_output_types(pa.RecordBatch)
        return start | "Files" >> beam.Create(files) | beam.Reshuffle() | "Decode" >> decode


class _Decode(beam.DoFn):
    def __init__(self, schema: bytes, batch_size: int) -> None:
        super().__init__()
        self._schema = schema
        self._batch_size = batch_size

    def process(self, element: str) -> Iterator[pa.RecordBatch]:
        decoder = ExamplesToRecordBatchDecoder(self._schema)
        records = tf.data.TFRecordDataset(element, record_compression([element]), 1 << 20)
        try:
            for batch in records.batch(self._batch_size).prefetch(1).as_numpy_iterator():
                yield decoder.DecodeBatch(batch)
        except (tf.errors.OpError, RuntimeError) as error:  # RuntimeError: the decoder's
            reason = without_internals(getattr(error, "message", str(error)))
            raise DataError(f"{element!r} is damaged ({reason}): delete it, and run ExampleGen again.") from error
