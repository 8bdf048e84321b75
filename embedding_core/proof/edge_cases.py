"""Makes edge cases from rows of the eval split: rows that are rare in data, but that any server gets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig
from embedding_core.record_files import open_records

Values: TypeAlias = "list[bytes] | list[int] | list[float]"

_UNKNOWN_TOKEN = b"no such token 5b1f"

# The rule that each case tests. In other projects, training and serving lookups are known to differ in these rules.
_MISSING = "a row without ids gives zeros, and the batch keeps it"
_UNKNOWN = "an unknown token goes to the out-of-vocabulary rows"
_INVALID = "an id outside the table follows `invalid_id`"
_DUPLICATE = "duplicate ids count as often as they occur"
_OVERLONG = "a sequence is cut and padded with zeros, a long list is combined whole"
_TEXT = "a token is its bytes, in any encoding"
_NUMBER = "a number becomes its shortest decimal text"
_BOUNDARY = "the first and the last row are looked up like any other"


class EdgeCase(NamedTuple):
    """A serialized tf.Example, the feature whose column was changed, and the rule that the change tests."""

    row: bytes
    feature: str
    rule: str


def read_rows(files: Sequence[str], limit: int) -> list[bytes]:
    """Read the first `limit` serialized tf.Examples of TFRecord files; names ending in .gz are gzipped."""
    rows: list[bytes] = []
    for name in sorted(files):
        rows.extend(open_records([name]).take(limit - len(rows)).as_numpy_iterator())
        if len(rows) >= limit:
            break
    return rows


def edge_cases(rows: Sequence[bytes], config: EmbeddingConfig, spare: Collection[str] = ()) -> list[EdgeCase]:
    """Make variants of rows, each with other values in the column of one categorical feature.

    For each feature, as far as its kind allows: a missing value, an empty one, an unknown token, a duplicate token,
    text that is not ASCII or not UTF-8, a token with a line feed, an over-long token, over-long lists; for raw ids the
    first and the last row, and ids outside the table if the feature's `invalid_id` does not stop training.

    Args:
      rows: serialized tf.Examples; each variant starts from one of them.
      config: tables and features.
      spare: columns to leave unchanged, because they are used for more than tokens.

    Returns:
      The cases; empty without rows.
    """
    cases: list[EdgeCase] = []
    for feature in config.features if rows else ():
        column = feature.column
        if column is None or column.after_transform or column.name in spare:
            continue
        table = config.table_of(feature.name)
        tests = _of_tokens(feature, column) if table.vocabulary else _of_ids(feature, column, table.vocabulary_size)
        for rule, values in tests:
            cases.append(EdgeCase(_with(rows[len(cases) % len(rows)], column.name, values), feature.name, rule))
    return cases


def _with(row: bytes, column: str, values: Values) -> bytes:
    """Replace the values in one column of a row; without values, remove the column."""
    example = tf.train.Example.FromString(row)
    example.features.feature.pop(column, None)
    feature = example.features.feature[column] if values else tf.train.Feature()
    if values:
        kinds = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}
        kinds[type(values[0])].value.extend(values)
    result: bytes = example.SerializeToString()
    return result


def _of_ids(feature: FeatureConfig, column: ColumnConfig, rows: int) -> Iterator[tuple[str, Values]]:
    """Yield raw ids; include ids outside the table only if they do not stop training."""
    yield _MISSING, []
    yield from ((_BOUNDARY, [number]) for number in (0, rows - 1))
    if feature.invalid_id != "error":
        yield from ((_INVALID, [number]) for number in (-1, rows, 2**31, 2**40))
    if column.multivalent:
        yield _DUPLICATE, _list(rows - 1, 2)
        yield _OVERLONG, _list(0, feature.max_sequence_length + 300)


def _of_tokens(feature: FeatureConfig, column: ColumnConfig) -> Iterator[tuple[str, Values]]:
    yield _MISSING, []
    if column.dtype == "float32":
        yield from ((_NUMBER, [number]) for number in (1e30, -0.0))
        yield _MISSING, [float("nan")]
        return
    unknown: bytes | int = _UNKNOWN_TOKEN if column.dtype == "string" else 2**62
    yield _UNKNOWN, _list(unknown)
    yield from _texts() if column.dtype == "string" else ((_NUMBER, [number]) for number in (-1, 0))
    long = feature.max_sequence_length + 300
    if column.multivalent:
        yield _DUPLICATE, _list(unknown, 2)
        yield _OVERLONG, _list(unknown, long)
    if column.separator is not None:
        separator = column.separator.encode()
        yield _DUPLICATE, [separator.join([_UNKNOWN_TOKEN] * 2)]
        yield _OVERLONG, [separator.join([_UNKNOWN_TOKEN] * long)]
        yield _MISSING, [separator * 3]


def _texts() -> Iterator[tuple[str, Values]]:
    yield _MISSING, [b""]
    odd = (b"\xc5\xbelu\xc5\xa5 \xe6\x97\xa5\xe6\x9c\xac", b"\xff\xfe", b" padded ", b"line\nfeed", b"x" * 66000)
    yield from ((_TEXT, [text]) for text in odd)


def _list(value: Any, count: int = 1) -> Values:
    return [value] * count
