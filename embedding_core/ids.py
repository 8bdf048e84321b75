"""From tokens to ids, and what becomes of ids that are no row: one policy for training and serving.

An *unknown token* (not in the vocabulary) goes to one of the table's `oov_rows`, by its hash; with none
it is dropped. An *invalid id* (< 0 or >= rows) can only come from raw integer features; its policy
is the feature's `invalid_id`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from embedding_core.config import FeatureConfig, TableConfig
from embedding_core.errors import ConfigError, VocabularyError

__all__ = ["Ids", "TokenTable", "valid_ids"]

Ids: TypeAlias = "tf.Tensor | tf.SparseTensor | tf.RaggedTensor"


def _count_lines(path: str) -> int:
    """Number of lines of a file, the last one with or without its LF."""
    lines, last = 0, b"\n"
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(1 << 22):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


class TokenTable(tf.Module):
    """Token -> id of one table: the same lookup in the training input and inside an exported model.

    Tokens of the vocabulary get their line number. Any other token gets
    ``tokens + fingerprint64(token) % oov_rows``, as `tf.lookup.StaticVocabularyTable` would; with
    `oov_rows` 0 it gets no id at all. The lookup runs on the host's CPU. Kept as an attribute of an
    exported `tf.Module`, the vocabulary file becomes an asset of the SavedModel.
    """

    def __init__(self, vocabulary_file: str | os.PathLike[str], vocabulary_size: int, oov_rows: int) -> None:
        """Load the vocabulary.

        Args:
          vocabulary_file: plain tokens, one per line, in the order of the rows.
          vocabulary_size: number of rows of the table, the out-of-vocabulary rows included.
          oov_rows: how many of the rows, the last ones, are shared by unknown tokens.

        Raises:
          VocabularyError: the file does not hold exactly `vocabulary_size - oov_rows` tokens.
        """
        super().__init__()
        path = os.fspath(vocabulary_file)
        self.tokens = int(vocabulary_size) - int(oov_rows)
        self.oov_rows = int(oov_rows)
        found = _count_lines(path)
        if found != self.tokens:
            raise VocabularyError(
                f"{path!r} holds {found} tokens: a table of {vocabulary_size} rows, {oov_rows} of them out of "
                f"vocabulary, needs {self.tokens}; compute vocabularies and tables from the same run."
            )
        self._table = None if self.tokens == 0 else self._load(path)

    def _load(self, path: str) -> tf.lookup.StaticHashTable:
        initializer = tf.lookup.TextFileInitializer(
            path,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            vocab_size=self.tokens,
        )
        return tf.lookup.StaticHashTable(initializer, default_value=-1)

    @classmethod
    def of(cls, table: TableConfig, vocabulary_file: str | os.PathLike[str]) -> TokenTable:
        """The token table of a configured embedding table."""
        return cls(vocabulary_file, table.vocabulary_size, table.oov_rows)

    def lookup(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ids of tokens.

        Args:
          tokens: string `[B, None]`.

        Returns:
          int64 `[B, None]`, rows in the same order; shorter where unknown tokens were dropped.
        """
        return drop_negative(tokens.with_flat_values(self.ids_of(tokens.flat_values)))

    def ids_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Ids of a flat string tensor, of the same shape; -1 for an unknown token that has no row."""
        if self._table is None:
            known = tf.fill(tf.shape(tokens), tf.constant(-1, tf.int64))
        else:
            known = self._table.lookup(tokens)
        if self.oov_rows == 0:
            return known
        hashed = self.tokens + tf.strings.to_hash_bucket_fast(tokens, self.oov_rows)
        return tf.where(known < 0, hashed, known)


def drop_negative(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """The ids without the negative ones; the number of rows stays."""
    return tf.ragged.boolean_mask(ids, ids >= 0)


def _is_valid(ids: tf.Tensor, rows: int) -> tf.Tensor:
    return tf.logical_and(ids >= 0, ids < rows)


def _checked(ids: tf.Tensor, feature: FeatureConfig, table: TableConfig) -> tf.Tensor:
    rule = (
        f"an id of feature {feature.name!r} is outside its table {table.name!r}: it must be in "
        f"[0, {table.vocabulary_size}); correct the data, or set `invalid_id` of the feature to 'row' or 'drop'."
    )
    valid = _is_valid(ids, table.vocabulary_size)
    first = tf.boolean_mask(ids, ~valid)[:8]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(valid), [rule, "given:", first])]):
        return tf.identity(ids)


def _to_rows(ids: tf.Tensor, feature: FeatureConfig, table: TableConfig) -> tf.Tensor:
    if table.oov_rows == 0:
        raise ConfigError(
            f"`invalid_id` of feature {feature.name!r} is 'row', but table {table.name!r} has no rows for it: "
            "give the table `oov_rows`, or choose 'error' or 'drop'."
        )
    shared = table.vocabulary_size - table.oov_rows + tf.math.floormod(ids, tf.cast(table.oov_rows, ids.dtype))
    return tf.where(_is_valid(ids, table.vocabulary_size), ids, tf.cast(shared, ids.dtype))


def _dropped(ids: Ids, rows: int) -> Ids:
    if isinstance(ids, tf.SparseTensor):
        return tf.sparse.retain(ids, _is_valid(ids.values, rows))
    if not isinstance(ids, tf.RaggedTensor):
        ids = tf.RaggedTensor.from_tensor(ids)
    return tf.ragged.boolean_mask(ids, ids.with_flat_values(_is_valid(ids.flat_values, rows)))


def _map_values(ids: Ids, function: Callable[[tf.Tensor], tf.Tensor]) -> Ids:
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(function(ids.flat_values))
    if isinstance(ids, tf.SparseTensor):
        return ids.with_values(function(ids.values))
    return function(ids)


def valid_ids(ids: Ids, feature: FeatureConfig, table: TableConfig) -> Ids:
    """Raw ids after the feature's policy for ids outside the table. Runs on the host, before any lookup.

    Args:
      ids: int32 or int64, dense (rank >= 2 with 'drop'), sparse or ragged.
      feature: whose `invalid_id` decides: "error" raises `tf.errors.InvalidArgumentError` when run,
        "row" sends the id to one of the table's out-of-vocabulary rows, "drop" removes it.
      table: the table that the ids are rows of.

    Returns:
      The ids, of the same kind; 'drop' turns dense ids into ragged ones.

    Raises:
      ConfigError: 'row', but the table has no out-of-vocabulary rows.
    """
    if feature.invalid_id == "drop":
        return _dropped(ids, table.vocabulary_size)
    policy = _checked if feature.invalid_id == "error" else _to_rows
    return _map_values(ids, lambda values: policy(values, feature, table))
