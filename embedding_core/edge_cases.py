"""Rows that real data seldom has and a server meets on its first day, made from rows of the eval split."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig

__all__ = ["edge_cases", "read_rows"]

Values: TypeAlias = "list[bytes] | list[int] | list[float]"

_UNKNOWN = b"no such token 5b1f"
_ODD = (b"\xc5\xbelu\xc5\xa5 \xe6\x97\xa5\xe6\x9c\xac", b"\xff\xfe", b" padded ", b"line\nfeed", b"x" * 66000)


def read_rows(files: Sequence[str], limit: int) -> list[bytes]:
    """The first `limit` serialized tf.Examples of TFRecord files; names ending in .gz are gzipped."""
    found: list[bytes] = []
    for name in sorted(files):
        records = tf.data.TFRecordDataset(name, "GZIP" if name.endswith(".gz") else "")
        found.extend(records.take(limit - len(found)).as_numpy_iterator())
        if len(found) >= limit:
            break
    return found


def edge_cases(rows: Sequence[bytes], config: EmbeddingConfig, spare: Collection[str] = ()) -> list[bytes]:
    """Variants of rows, each with other tokens in the column of one categorical feature.

    Per feature: a missing value, an empty one, an unknown token, the same token twice, text that is not
    ASCII or not UTF-8, a token with a line feed, an over-long token, and over-long lists.

    Args:
      rows: serialized tf.Examples; each variant starts from one of them.
      config: the features.
      spare: columns to leave as they are, because something else than tokens is made of them too.

    Returns:
      Serialized tf.Examples; none where there are no rows.
    """
    made: list[bytes] = []
    for feature in config.features if rows else ():
        column = feature.column
        if (
            column is None
            or column.after_transform
            or column.name in spare
            or not config.table_of(feature.name).vocabulary
        ):
            continue
        for values in _variants(feature, column):
            made.append(_with(rows[len(made) % len(rows)], column.name, values))
    return made


def _with(row: bytes, column: str, values: Values) -> bytes:
    """The row with other values in one column; no values remove the column."""
    example = tf.train.Example.FromString(row)
    example.features.feature.pop(column, None)
    feature = example.features.feature[column] if values else tf.train.Feature()
    if values:
        kinds = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}
        kinds[type(values[0])].value.extend(values)
    result: bytes = example.SerializeToString()
    return result


def _variants(feature: FeatureConfig, column: ColumnConfig) -> Iterator[Values]:
    yield []
    if column.dtype == "float32":
        yield from ([1e30], [-0.0], [float("nan")])
        return
    unknown: bytes | int = _UNKNOWN if column.dtype == "string" else 2**62
    yield _list(unknown)
    if column.dtype == "string":
        yield from ([text] for text in (b"", *_ODD))
    else:
        yield from ([-1], [0])
    if column.multivalent:
        yield from (_list(unknown, 2), _list(unknown, feature.max_sequence_length + 300))
    if column.separator is not None:
        separator = column.separator.encode()
        yield from ([separator.join([_UNKNOWN] * count)] for count in (2, feature.max_sequence_length + 300))
        yield [separator * 3]


def _list(value: Any, count: int = 1) -> Values:
    return [value] * count
