"""Reads TFRecord files of tf.Examples in batches, and counts their rows and columns of Transform on one worker.

If TensorFlow cannot parse a batch, its rows are read one by one. The columns of Transform's output are computed here
for features that are counted `after_transform`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow as tf
import tensorflow_transform as tft
from google.protobuf.message import DecodeError

from components import progress
from components.vocabulary_gen.assembling import base_tables
from components.vocabulary_gen.counting import BatchCounts, CountBatch, SourceCounts, batch_counts, counting_function
from components.vocabulary_gen.counting_plan import CountedFeature, CountingPlan
from embedding_core.columns import Values
from embedding_core.config import TokenDtype
from embedding_core.errors import DataError, EmbeddingError
from embedding_core.record_files import open_records
from embedding_core.schema import Json

_DTYPES: dict[str, TokenDtype] = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
_READ_ERRORS = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError)

PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)
"""Errors of a batch that does not parse: TensorFlow's message quotes the row, which may not be valid UTF-8."""


def record_batches(path: str, batch_size: int) -> Iterator[tf.Tensor]:
    """Yield the records of a file as string [B] tensors, in order.

    Args:
      path: a TFRecord file, plain or gzip: recognized by the ending `.gz` or else by the first bytes.
      batch_size: records in each tensor but the last.

    Raises:
      DataError: the file is missing or damaged.
    """
    try:
        yield from _dataset(path).batch(batch_size).prefetch(1)
    except _READ_ERRORS as error:
        raise DataError(
            f"file {path!r} is damaged or no TFRecord file: only its first {_readable_rows(path)} rows can be read "
            f"({error_reason(error)}); write it again."
        ) from error


def _dataset(path: str) -> tf.data.Dataset:
    return open_records(path, _compression(path))


def _readable_rows(path: str) -> int:
    """Count the rows before the damage."""
    rows = 0
    try:
        for _ in _dataset(path):
            rows += 1
    except _READ_ERRORS:
        pass
    return rows


def _compression(path: str) -> str:
    if path.endswith(".gz"):
        return "GZIP"
    with tf.io.gfile.GFile(path, "rb") as file:
        return "GZIP" if file.read(3) == b"\x1f\x8b\x08" else ""


def error_reason(error: Exception) -> str:
    """Return one line of TensorFlow's message, without the row's bytes, which it may quote."""
    if not isinstance(error, tf.errors.OpError) or not error.message:
        return "TensorFlow cannot parse it"
    line = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", error.message.strip().splitlines()[0])
    return line.split(", value:")[0].strip()


def _kind(message: tf.train.Example, column: str) -> TokenDtype | None:
    """Return the dtype of a row's value, or None without a value; an empty list is not a value."""
    if column not in message.features.feature:
        return None
    feature = message.features.feature[column]
    kind = feature.WhichOneof("kind")
    return _DTYPES[kind] if kind and getattr(feature, kind).value else None


def find_dtypes(path: str, columns: Iterable[str]) -> dict[str, tuple[TokenDtype, int]]:
    """Find the dtype of each column with the protobuf parser, which does not need a dtype to read a value.

    Args:
      path: a TFRecord file of tf.Examples.
      columns: names of the columns.

    Returns:
      Column -> (dtype, the first row that has a value); columns without any value are left out. Rows
      are read until each column has had a value; usually one row is enough.
    """
    dtypes: dict[str, tuple[TokenDtype, int]] = {}
    wanted, row = set(columns), 0
    for batch in record_batches(path, 256):
        for record in batch.numpy():
            message = _parsed(record)
            for column in wanted - set(dtypes) if message is not None else ():
                if kind := _kind(message, column):
                    dtypes[column] = (kind, row)
            row += 1
            if len(dtypes) == len(wanted):
                return dtypes
    return dtypes


def _parsed(record: bytes) -> tf.train.Example | None:
    try:
        return tf.train.Example.FromString(record)
    except DecodeError:
        return None


def vet_rows(
    path: str, first_row: int, records: Sequence[bytes], features: Sequence[CountedFeature]
) -> tuple[list[tuple[int, bytes]], dict[int, str]]:
    """Read rows one by one with the protobuf parser.

    Args:
      path: file of the rows, for messages.
      first_row: number of the first row, from 0.
      records: the rows.
      features: what is counted, with the dtype that each column has elsewhere in the file.

    Returns:
      The rows that parse, made fit for `tf.io.parse_example`, with their numbers; and the reason for each other row, by
      its number.

    Raises:
      DataError: a column has another dtype than elsewhere, or is a list of floats.
    """
    good: list[tuple[int, bytes]] = []
    bad: dict[int, str] = {}
    raw = [feature for feature in features if not feature.column.after_transform]
    for row, record in enumerate(records, first_row):
        message = _parsed(record)
        if message is None:
            bad[row] = "its bytes are not a tf.Example"
            continue
        for feature in raw:
            _check_value(message, feature, f"file {path!r}, row {row}")
        good.append((row, message.SerializeToString()))
    return good, bad


def _check_value(message: tf.train.Example, feature: CountedFeature, place: str) -> None:
    """Refuse values of another dtype; drop empty lists, which `tf.io.parse_example` takes for values."""
    name, dtype = feature.column.name, feature.column.dtype
    kind = _kind(message, name)
    if kind is None:
        message.features.feature.pop(name, None)
    elif kind != dtype:
        raise DataError(
            f"feature {feature.name!r}: column {name!r} is of mixed type: {kind} in {place}, but {dtype} before: "
            "write it with one type in all rows."
        )
    elif kind == "float32" and len(message.features.feature[name].float_list.value) > 1:
        raise DataError(
            f"feature {feature.name!r}: column {name!r} holds a list of floats in {place}: a categorical float column "
            "has at most one value per row; write the values as strings or integers."
        )


def first_wide_row(records: Iterable[bytes], column: str) -> int:
    """Return the index of the first record whose column holds more than one value; -1 if no record does."""
    for index, record in enumerate(records):
        feature = tf.train.Example.FromString(record).features.feature[column]
        if len(getattr(feature, feature.WhichOneof("kind") or "bytes_list").value) > 1:
            return index
    return -1


_TOKEN_DTYPES: dict[tf.DType, TokenDtype] = {tf.string: "string", tf.int64: "int64", tf.float32: "float32"}


class SavedTransform:
    """The saved transform. Make it outside of any graph function, or the graph would become part of that function.

    Attributes:
      spec: how to read each raw column, as for `tf.io.parse_example`.
      needs_vetting: whether rows must pass the protobuf parser first: Transform's inputs hold a float
        column of variable length, and a malformed list of such a column can end the process inside
        TensorFlow's parser.
    """

    def __init__(self, transform_graph: str) -> None:
        output = tft.TFTransformOutput(transform_graph)
        self._layer = output.transform_features_layer()
        self.spec: Json = output.raw_feature_spec()
        self.needs_vetting = any(
            isinstance(feature, (tf.io.VarLenFeature, tf.io.RaggedFeature, tf.io.SparseFeature))
            and feature.dtype == tf.float32
            for feature in self.spec.values()
        )

    def of_examples(self, records: tf.Tensor) -> Mapping[str, Values]:
        """Compute Transform's output for serialized tf.Examples [B]; a graph function."""
        transformed: Mapping[str, Values] = self._layer(tf.io.parse_example(records, dict(self.spec)))
        return transformed


def plan_after_transform(plan: CountingPlan) -> CountingPlan:
    """Give the columns `after_transform` the dtypes that Transform's output has.

    Raises:
      DataError: Transform's output has no such column.
      ConfigError: a column of numbers has a separator.
    """
    if plan.transform_graph is None or not any(feature.column.after_transform for feature in plan.features):
        return dataclasses.replace(plan, transform_graph=None)
    spec = tft.TFTransformOutput(plan.transform_graph).transformed_feature_spec()
    dtypes = {name: _TOKEN_DTYPES[feature.dtype] for name, feature in spec.items()}
    features = tuple(
        _with_dtype(feature, dtypes) if feature.column.after_transform else feature for feature in plan.features
    )
    return dataclasses.replace(plan, features=features)


def _with_dtype(feature: CountedFeature, dtypes: Mapping[str, TokenDtype]) -> CountedFeature:
    column = feature.column
    if column.name not in dtypes:
        raise DataError(
            f"feature {feature.name!r}: Transform's output has no column {column.name!r}: it has "
            f"{', '.join(sorted(dtypes))}; return it from `preprocessing_fn`, or name another."
        )
    return dataclasses.replace(feature, column=column.replace(dtype=dtypes[column.name]))


# Counts the rows of a file on one worker.

_BATCH_SIZE = 16384
"""Rows counted at a time: a larger batch is not faster."""

Features = tuple[CountedFeature, ...]


def _with_dtypes(plan: CountingPlan, dtypes: Mapping[str, TokenDtype]) -> Features:
    """Return the features with the dtypes found for their raw columns; string if a column has no value at all."""
    return tuple(
        feature
        if feature.column.after_transform
        else dataclasses.replace(
            feature, column=feature.column.replace(dtype=dtypes.get(feature.column.name, "string"))
        )
        for feature in plan.features
    )


class ExamplesCounter:
    """Counts tf.Examples; graph functions are traced once for all files and batches with the same dtypes."""

    def __init__(self, plan: CountingPlan) -> None:
        self._plan = plan
        self._raw = {feature.column.name for feature in plan.features if not feature.column.after_transform}
        self._counters: dict[Features, CountBatch] = {}
        self._base = base_tables(plan)
        self._transform = SavedTransform(plan.transform_graph) if plan.transform_graph else None

    def count(self, path: str) -> SourceCounts:
        """Count one file; an error of the whole file is recorded as a problem, not raised."""
        gathered = SourceCounts(self._plan, path)
        try:
            self._count(path, gathered)
        except EmbeddingError as error:
            gathered.set_problem(str(error))
        return gathered

    def _count(self, path: str, gathered: SourceCounts) -> None:
        first_values = find_dtypes(path, self._raw) if self._raw else {}
        features = _with_dtypes(self._plan, {column: dtype for column, (dtype, _) in first_values.items()})
        places = {column: f"file {path!r}, row {row}" for column, (_, row) in first_values.items()}
        _add_dtypes(features, places, gathered)
        counting = _Counting(path, features, self._counter(features), gathered)
        first_row = 0
        for batch in record_batches(path, _BATCH_SIZE):
            counting.add(batch, first_row, vet=self._transform is not None and self._transform.needs_vetting)
            first_row += int(batch.shape[0])
            progress.advance("VocabularyGen", int(batch.shape[0]))

    def _counter(self, features: Features) -> CountBatch:
        if features not in self._counters:
            transform = self._transform.of_examples if self._transform is not None else None
            self._counters[features] = counting_function(features, transform, self._base)
        return self._counters[features]


def _add_dtypes(features: Features, places: Mapping[str, str], gathered: SourceCounts) -> None:
    """Record the dtype of each column that has a value, given the place of the first one, and of Transform's output."""
    for feature in features:
        column = feature.column
        place = "Transform's output" if column.after_transform else places.get(column.name)
        if place is not None:
            gathered.add_dtype(feature.name, column.dtype, place)


def _refusal(features: Features, error: Exception) -> str:
    """Say why TensorFlow does not parse a row; its reason may quote a value, and is left out if a column is private."""
    private = any(feature.column.private for feature in features)
    return "TensorFlow refuses it" if private else f"TensorFlow refuses it: {error_reason(error)}"


class _Counting:
    """The counting of one file."""

    def __init__(self, path: str, features: Features, count: CountBatch, gathered: SourceCounts) -> None:
        self._path = path
        self._features = features
        self._count = count
        self._gathered = gathered

    def add(self, records: tf.Tensor, first_row: int, *, vet: bool) -> None:
        """Count a batch; a batch that does not parse is read again row by row."""
        if not vet:
            try:
                self._add(records, range(first_row, first_row + int(records.shape[0])))
                return
            except PARSE_ERRORS:
                pass
        good, bad = vet_rows(self._path, first_row, records.numpy(), self._features)
        self._gathered.add_bad(bad)
        self._add_or_split(good)

    def _add(self, records: tf.Tensor, numbers: Sequence[int]) -> None:
        counts = list(batch_counts(self._features, self._count(records)))
        for feature, batch in counts:
            check_width(feature, batch, self._path, records, numbers)
        self._gathered.add_batch(len(numbers), counts)

    def _add_or_split(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Count rows that the protobuf parser accepts, and set aside those that TensorFlow still refuses."""
        if not rows:
            return
        try:
            self._add(tf.constant([record for _, record in rows]), [number for number, _ in rows])
        except PARSE_ERRORS as error:
            if len(rows) == 1:
                self._gathered.add_bad({rows[0][0]: _refusal(self._features, error)})
                return
            self._add_or_split(rows[: len(rows) // 2])
            self._add_or_split(rows[len(rows) // 2 :])


def check_width(
    feature: CountedFeature, counts: BatchCounts, path: str, records: tf.Tensor, numbers: Sequence[int]
) -> None:
    """Refuse lists in a column that is configured to hold one value.

    Args:
      feature: what is counted.
      counts: its counts of the batch.
      path: file of the rows, for messages.
      records: the rows.
      numbers: number of each row in the file.

    Raises:
      DataError: the column holds a list.
    """
    if feature.multivalent is not False or counts.widest <= 1:
        return
    place = repr(path)
    if not feature.column.after_transform:
        place += f", row {numbers[first_wide_row(records.numpy(), feature.column.name)]}"
    raise DataError(
        f"feature {feature.name!r}: column {feature.column.name!r} holds up to {counts.widest} values in {place}, but "
        "`multivalent` is false: set it to true, or write one value per row."
    )
