"""Looks up the ids of tokens, with one policy for unknown tokens in training and serving.

An *unknown token* (not in the vocabulary) goes to one of the table's `oov_rows`, by its hash; if the table has none,
it is dropped. *Invalid ids*, which only raw integer features can have, are handled by the lookup of rows, which applies
the feature's `invalid_id` (`embedding_core.normal_form`).
"""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf

from embedding_core.config import TableConfig
from embedding_core.errors import VocabularyError

_SIZE = "size_of_export"
_IS_SIZE = re.compile(rf"(.*/)?{_SIZE}(_\d+)?")


def size_constant(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Return a constant that follows from how many tokens the tables have, and from where their rows are.

    Two exports of a model may differ in it, although a delta leads from one to the other: the name of its operation
    tells it from all other constants, which must be equal (`embedding_core.serving.delta_export`).
    """
    return tf.constant(value, dtype, name=_SIZE)


def is_size_constant(name: str) -> bool:
    """Return whether the operation of that name is a `size_constant`."""
    return _IS_SIZE.fullmatch(name) is not None


def _count_lines(path: str) -> int:
    """Count the lines of a file; the last one may lack its LF."""
    lines, last = 0, b"\n"
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(1 << 22):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def kept(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Keep the flat values of a ragged `[B, None]` for which the bool `[N]` `keep` is true.

    Does the same as tf.ragged.boolean_mask, with a tenth of its operations.
    """
    before = tf.concat([[0], tf.cumsum(tf.cast(keep, rows.row_splits.dtype))], 0)
    splits = tf.gather(before, rows.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(rows.values, keep), splits, validate=False)


class TokenTable(tf.Module):
    """Maps tokens to the ids of one table, in the same way in the training input and in an exported model.

    A token of the vocabulary gets its line number. Any other token gets
    ``tokens + fingerprint64(token) % oov_rows``, as in `tf.lookup.StaticVocabularyTable`; with
    `oov_rows` 0 it gets no id. The lookup runs on the host's CPU. If this is an attribute of an
    exported `tf.Module`, the vocabulary file becomes an asset of the SavedModel.
    """

    def __init__(self, vocabulary_file: str | os.PathLike[str], vocabulary_size: int, oov_rows: int) -> None:
        """Load the vocabulary.

        Args:
          vocabulary_file: plain tokens, one per line, in the order of the rows.
          vocabulary_size: number of rows of the table, including the out-of-vocabulary rows.
          oov_rows: number of rows, the last ones, that unknown tokens share.

        Raises:
          VocabularyError: the file does not hold exactly `vocabulary_size - oov_rows` tokens.
        """
        super().__init__()
        path = os.fspath(vocabulary_file)
        self.tokens = int(vocabulary_size) - int(oov_rows)
        self.oov_rows = int(oov_rows)
        lines = _count_lines(path)
        if lines != self.tokens:
            raise VocabularyError(
                f"{path!r} holds {lines} tokens: a table of {vocabulary_size} rows, {oov_rows} of them out of "
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
        return tf.lookup.StaticHashTable(initializer, default_value=self._default())

    def _default(self) -> int:
        """Return what the static table gives for other tokens; with a single row for them, no hash is needed."""
        return self.tokens if self.oov_rows == 1 else -1

    @classmethod
    def of(cls, table: TableConfig, vocabulary_file: str | os.PathLike[str]) -> TokenTable:
        """Make the token table of a configured embedding table."""
        return cls(vocabulary_file, table.vocabulary_size, table.oov_rows)

    def lookup(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Look up ids of tokens.

        Args:
          tokens: string `[B, None]`.

        Returns:
          int64 `[B, None]`, in the same order; without the unknown tokens if the table has no row for them.
        """
        ids = tokens.with_flat_values(self.ids_of(tokens.flat_values))
        return ids if self.oov_rows else kept(ids, ids.flat_values >= 0)

    def ids_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Look up the ids of a flat string tensor: int64 of the same shape, -1 for an unknown token that has no row."""
        if self._table is None:
            return self.unknown_ids(tokens)
        known = self._table.lookup(tokens)
        return known if self.oov_rows <= 1 else tf.where(known < 0, self.unknown_ids(tokens), known)

    def unknown_ids(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the ids that tokens get if they are unknown: int64 of the same shape, -1 without a row for them."""
        if self.oov_rows <= 1:
            return tf.fill(tf.shape(tokens), size_constant(self.tokens if self.oov_rows else -1, tf.int64))
        return size_constant(self.tokens, tf.int64) + tf.strings.to_hash_bucket_fast(tokens, self.oov_rows)
