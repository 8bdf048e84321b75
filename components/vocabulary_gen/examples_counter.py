"""Counts the rows of one source on one worker: a TFRecord file of tf.Examples, or record batches of any payload."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

from components.vocabulary_gen.assembling import base_tables
from components.vocabulary_gen.counting import BatchCounts, CountBatch, batch_counts, counting_function
from components.vocabulary_gen.counting_plan import CountedFeature, CountingPlan
from components.vocabulary_gen.example_records import (
    PARSE_ERRORS,
    error_reason,
    find_dtypes,
    first_wide_row,
    record_batches,
    vet_rows,
)
from components.vocabulary_gen.saved_transform import SavedTransform
from components.vocabulary_gen.source_counts import SourceCounts
from embedding_core.config import TokenDtype
from embedding_core.errors import DataError, EmbeddingError

# Encodes Arrow record batches, which TFXIO reads from any payload, as tf.Examples: these are counted in one way.


def arrow_examples(batch: pa.RecordBatch, names: Iterable[str]) -> tuple[list[bytes], dict[str, TokenDtype]]:
    """Encode some columns of a batch as serialized tf.Examples; nulls and empty lists have no feature.

    Args:
      batch: columns of lists or of plain values.
      names: names of the columns; the batch need not have them.

    Returns:
      The examples, one a row; and the dtype of each column that has a value.

    Raises:
      DataError: a column has values that cannot be tokens, such as structures or timestamps.
    """
    columns: dict[str, pa.Array] = {}
    dtypes: dict[str, TokenDtype] = {}
    for name in sorted({*names} & {*batch.schema.names}):
        array = batch.column(batch.schema.get_field_index(name))
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            row, values = pc.list_parent_indices(array), pc.list_flatten(array)
        else:
            row, values = pa.array(np.arange(len(array))), array
        lengths = np.bincount(row.filter(values.is_valid()).to_numpy(), minlength=len(array))
        values = values.drop_null()
        if len(values):
            dtypes[name], kind = _dtype_of(name, values.type)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            starts = pa.array(offsets, pa.int64(), mask=np.append(lengths == 0, False))
            columns[name] = pa.LargeListArray.from_arrays(starts, values.cast(kind))
    if not columns:
        return [b""] * batch.num_rows, {}
    encoder = RecordBatchToExamplesEncoder()
    return encoder.encode(pa.record_batch(list(columns.values()), list(columns))), dtypes


def _dtype_of(column: str, kind: pa.DataType) -> tuple[TokenDtype, pa.DataType]:
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind):
        return "string", pa.large_binary()
    if types.is_integer(kind) or types.is_boolean(kind):
        return "int64", pa.int64()
    if types.is_floating(kind):
        return "float32", pa.float32()
    raise DataError(f"column {column!r} holds {kind}: tokens are strings, integers or floats; convert the column.")


# Counts the rows of one source on one worker.

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

    def count_batch(self, batch: pa.RecordBatch, source: str, gathered: SourceCounts) -> None:
        """Count a batch that the reader of a payload has parsed; record its error as a problem, instead of raising it.

        Args:
          batch: a column for each raw column.
          source: name of the payload's split, for messages.
          gathered: what to add the counts to.
        """
        try:
            records, dtypes = arrow_examples(batch, {*self._raw, *(self._transform.spec if self._transform else ())})
            features = _with_dtypes(self._plan, dtypes)
            _add_dtypes(features, dict.fromkeys(dtypes, source), gathered)
            counts = list(batch_counts(features, self._counter(features)(tf.constant(records, tf.string))))
            for feature, counted in counts:
                check_width(feature, counted, source)
            gathered.add_batch(len(records), counts)
        except EmbeddingError as error:
            gathered.set_problem(f"{source!r}: {error}")
        except PARSE_ERRORS as error:
            gathered.set_problem(
                f"{source!r}: {_refusal(self._plan.features, error)}; correct the data, or its schema."
            )

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
    feature: CountedFeature,
    counts: BatchCounts,
    source: str,
    records: tf.Tensor | None = None,
    numbers: Sequence[int] = (),
) -> None:
    """Refuse lists in a column that is configured to hold one value.

    Raises:
      DataError: the column holds a list; the row is named if the records are given.
    """
    if feature.multivalent is not False or counts.widest <= 1:
        return
    place = repr(source)
    if records is not None and not feature.column.after_transform:
        place += f", row {numbers[first_wide_row(records.numpy(), feature.column.name)]}"
    raise DataError(
        f"feature {feature.name!r}: column {feature.column.name!r} holds up to {counts.widest} values in {place}, but "
        "`multivalent` is false: set it to true, or write one value per row."
    )
