"""Reads TFRecord files of tf.Examples in batches; if TensorFlow cannot parse a batch, reads its rows one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError

from components.vocabulary_gen.counting_plan import CountedFeature
from embedding_core.config import TokenDtype
from embedding_core.errors import DataError
from embedding_core.record_files import open_records

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
