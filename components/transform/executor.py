"""Defines the executor of Transform, which analyses the train split with TensorFlow Transform, and writes its graph."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform import beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io
from tfx.components.util import tfxio_utils, udf_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import io_utils
from tfx_bsl.tfxio.tf_example_record import TFExampleRecord

from components import component_spec as keys
from components import progress
from components.base_executor import ComponentExecutor, Execution
from components.column_summary import COLUMNS_FACT, summaries_from_json
from components.piece_names import describe_fact
from components.transform_graph import read_ranges, recorded_range
from embedding_core.checkpoint.dense import DENSE, read_dense
from embedding_core.errors import DataError
from embedding_core.record_files import open_records
from embedding_core.schema import Json
from embedding_core.storage import json_digest
from embedding_core.tracing import without_internals

# Reads the analysed columns of tf.Examples for Transform, in batches.
#
# TFX's reader passes each record through Beam's Python code, and its decoder walks through every column of a row. If a
# third of the columns is analysed, this takes five times as long as TensorFlow's parser.

_BATCH = 4096


class BatchedExamples(TFExampleRecord):
    """TFX's reader of tf.Examples in TFRecord files, changed to read and parse with TensorFlow.

    Use it only for files of our ExampleGen, which checks each record: TensorFlow's parser can crash the process if a
    list of floats is malformed.
    """

    def BeamSource(self, batch_size: int | None = None) -> beam.PTransform:  # noqa: N802
        """Return a Beam source of record batches with the columns of the schema.

        Args:
          batch_size: rows of each batch (the last one of a file may have fewer); None means 4096.
        """
        return _Read(self._file_pattern, self.ArrowSchema(), batch_size or _BATCH)

    def _ProjectImpl(self, tensor_names: Sequence[str]) -> BatchedExamples:  # noqa: N802
        projected = super()._ProjectImpl(tensor_names)
        return BatchedExamples(
            projected._file_pattern,
            schema=projected._schema,
            raw_record_column_name=projected.raw_record_column_name,
            telemetry_descriptors=projected.telemetry_descriptors,
        )


class _Read(beam.PTransform):
    def __init__(self, patterns: Sequence[str], columns: pa.Schema, batch_size: int) -> None:
        super().__init__()
        self._patterns = patterns
        self._decode = _Decode(columns, batch_size)

    def expand(self, start: beam.pvalue.PBegin) -> beam.PCollection:
        files = sorted(path for pattern in self._patterns for path in fileio.glob(pattern))
        if not files:
            raise DataError(f"no files match {', '.join(map(repr, self._patterns))}: run ExampleGen again.")
        decode = beam.ParDo(self._decode).with_output_types(pa.RecordBatch)
        return start | "Files" >> beam.Create(files) | beam.Reshuffle() | "Decode" >> decode


class _Decode(beam.DoFn):
    def __init__(self, columns: pa.Schema, batch_size: int) -> None:
        super().__init__()
        self._columns = columns
        self._batch_size = batch_size

    def process(self, element: str) -> Iterator[pa.RecordBatch]:
        columns = self._columns
        spec = {column.name: tf.io.RaggedFeature(_dtype(column), row_splits_dtype=tf.int64) for column in columns}
        records = open_records([element]).batch(self._batch_size)

        def parse(serialized: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
            parsed = tf.io.parse_example(serialized, spec)
            return [(parsed[column.name].values, parsed[column.name].row_splits) for column in columns]

        try:
            for batch in records.map(parse).prefetch(1).as_numpy_iterator():
                parts = zip(batch, columns, strict=True)
                lists = [_lists(values, splits, column) for (values, splits), column in parts]
                progress.advance("Transform", len(lists[0]))
                yield pa.record_batch(lists, columns)
        except tf.errors.OpError as error:
            reason = without_internals(error.message)
            raise DataError(f"{element!r} is damaged ({reason}): delete it, and run ExampleGen again.") from error


def _dtype(column: pa.Field) -> tf.DType:
    kind = column.type.value_type
    return tf.string if pa.types.is_large_binary(kind) else tf.as_dtype(kind.to_pandas_dtype())


def _lists(values: npt.NDArray[Any], splits: npt.NDArray[np.int64], column: pa.Field) -> pa.Array:
    """Return the values of each row; a row without values is null, as in TFX's decoder."""
    starts = pa.array(splits, mask=np.append(splits[1:] == splits[:-1], False))
    return pa.LargeListArray.from_arrays(starts, pa.array(values, column.type.value_type))


_SPLIT = "train"
_NAME = ["Transform"]
_DENSE = "dense"
"""The key of `custom_config` that lists the dense features."""

_RANGES = "ranges"
"""The key of `custom_config` under which `preprocessing_fn` finds the ranges, by dense feature."""

_MADE_WITH = "made_with"
"""The custom property of a TransformGraph with a digest of all that determines it, beside the rows."""

_log = logging.getLogger(__name__)

Preprocessing: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Executor(ComponentExecutor, base_beam_executor.BaseBeamExecutor):
    """Runs the analyzers of `preprocessing_fn`, and reads only the columns that they need."""

    COMPONENT = "Transform"

    def execute(self, execution: Execution) -> None:
        """Analyse the train split and write the transform graph, or copy that of the previous run.

        Raises:
          CheckpointError: the dense part of the base checkpoint is damaged.
          DataError: a file of the examples is damaged, or the column of a dense feature is empty and its range unknown.
        """
        graph = execution.output(keys.TRANSFORM_GRAPH)
        schema = _schema(execution)
        made_with = _made_with(execution, schema)
        graph.set_string_custom_property(_MADE_WITH, made_with)
        for base in execution.inputs.get(keys.BASE_TRANSFORM_GRAPH, ()):
            if base.get_string_custom_property(_MADE_WITH) == made_with:
                io_utils.copy_dir(base.uri, graph.uri)
                return
            _log.warning("the preprocessing or the columns changed since %s: the data is analysed again", base.uri)
        self._analyse(execution, schema, graph.uri)

    def _analyse(self, execution: Execution, schema: schema_pb2.Schema, folder: str) -> None:
        preprocessing_fn = _bound(udf_utils.get_fn(execution.properties, keys.PREPROCESSING_FN), _config(execution))
        reader = _reader(execution, schema)
        columns = tft.get_analyze_input_columns(preprocessing_fn, reader.TensorAdapter().OriginalTypeSpecs())
        projected = reader.Project(columns)
        scratch = os.path.join(folder, ".temp_path")
        execution.begin_rows(self.COMPONENT, _SPLIT)
        try:
            # Without TFT's copies of the reader for a second phase of analyzers: TFT 1.16 cannot make them under Beam
            # 2.63 and later (TFT 1.17 can), and a runner that replaces transforms cannot run them.
            with self._make_beam_pipeline() as pipeline, tft_beam.Context(temp_dir=scratch):
                rows = pipeline | "Read" >> (projected.BeamSource() if columns else _no_rows())
                graph = (rows, projected.TensorAdapterConfig()) | "Analyse" >> tft_beam.AnalyzeDataset(preprocessing_fn)
                _ = graph | "Write" >> tft_beam.WriteTransformFn(folder)
        finally:
            if fileio.exists(scratch):
                fileio.rmtree(scratch)
        metadata = dataset_metadata.DatasetMetadata(schema)
        metadata_io.write_metadata(metadata, os.path.join(folder, tft.TFTransformOutput.RAW_METADATA_DIR))
        _check_ranges(execution, folder)


def _no_rows() -> beam.PTransform:
    return beam.Create([]).with_output_types(pa.RecordBatch)


def _config(execution: Execution) -> Json:
    """Return `custom_config`, with the ranges of the base checkpoint if there is one."""
    config: Json = execution.json(keys.CUSTOM_CONFIG) or {}
    for base in execution.given_uris(keys.BASE_CHECKPOINT).values():
        dense = read_dense(os.path.join(base, DENSE))
        config[_RANGES] = {} if dense is None else dict(dense.ranges)
    return config


def _check_ranges(execution: Execution, folder: str) -> None:
    """Check that each range was measured on some value, here or by the previous model.

    A feature without a range would be 0 in each row, also in those of the next runs, which keep the range.

    Raises:
      DataError: the column of a feature is empty, and the range of the previous model is not kept.
    """
    (examples,) = execution.inputs[keys.EXAMPLES]
    if not examples.has_custom_property(COLUMNS_FACT):
        return
    _, summaries = summaries_from_json(examples.get_string_custom_property(COLUMNS_FACT))
    empty = {name for name, summary in summaries[_SPLIT].items() if not summary.rows}
    config = _config(execution)
    features = {
        feature["name"]: feature["column"]
        for feature in config.get(_DENSE, ())
        if feature["column"] in empty and recorded_range(feature, config.get(_RANGES, {})) is None
    }
    for name in read_ranges(folder, features) if features else ():
        data = describe_fact(json.loads(examples.get_string_custom_property(keys.DATA_FACT))["pieces"])
        raise DataError(
            f"{data}: column {features[name]!r} is empty in all rows of the train split, and no range of a previous "
            f"model is known that dense feature {name!r} can be scaled by: `data.empty_columns: allow` needs "
            "`warm_start` with `ranges: keep`, and values of the column in the first run."
        )


def _bound(function: Callable[..., Any], config: Json) -> Preprocessing:
    """Bind the argument `custom_config`, if the function has it."""
    taken = keys.CUSTOM_CONFIG in inspect.signature(function).parameters
    return functools.partial(function, custom_config=config) if taken else function


def _made_with(execution: Execution, schema: schema_pb2.Schema) -> str:
    """Compute a digest of the function, its configuration (with a digest of the code) and the types of the columns."""
    parameters = [execution.properties.get(key) for key in (keys.PREPROCESSING_FN, keys.CUSTOM_CONFIG)]
    columns = sorted((feature.name, feature.type) for feature in schema.feature)
    return json_digest({"parameters": parameters, "columns": columns})


def _schema(execution: Execution) -> schema_pb2.Schema:
    folder = artifact_utils.get_single_uri(execution.inputs[keys.SCHEMA])
    return io_utils.parse_pbtxt_file(io_utils.get_only_uri_in_dir(folder), schema_pb2.Schema())


def _reader(execution: Execution, schema: schema_pb2.Schema) -> Any:
    """Return a reader of the split: `BatchedExamples` if our ExampleGen wrote the examples, else TFX's own."""
    reader = tfxio_utils.get_split_tfxio(execution.inputs[keys.EXAMPLES], _SPLIT, _NAME, schema)
    ours = all(examples.has_custom_property(keys.DATA_FACT) for examples in execution.inputs[keys.EXAMPLES])
    if not ours or type(reader) is not TFExampleRecord:
        return reader
    patterns, _ = tfxio_utils.get_file_format_and_patterns(execution.inputs[keys.EXAMPLES], _SPLIT)
    return BatchedExamples(patterns, schema=schema, telemetry_descriptors=_NAME)
