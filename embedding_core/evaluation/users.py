"""Reads the user of each row, and numbers users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from embedding_core.columns.raw_columns import Columns
from embedding_core.columns.tokens import tokens_of
from embedding_core.config import ColumnConfig, TokenDtype
from embedding_core.errors import DataError
from embedding_core.training.row_stream import batches_by_file

Tokens = npt.NDArray[np.object_]
ReadTokens = Callable[[tf.Tensor], Tokens]
"""Serialized tf.Examples, string `[B]` -> one token each, bytes `[B]`."""

_FIRST_ROWS = 256
_TYPES: dict[str, TokenDtype] = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}


def user_reader(column: str, files: Sequence[str]) -> ReadTokens:
    """Make a function that reads the user of each row.

    Args:
      column: column that names the user.
      files: TFRecord files whose first rows tell the type of the column.

    Raises:
      DataError: the column is in none of the first rows. The returned function raises it for a row without exactly one
        user.
    """
    dtype = _type_of(column, files)
    one = ColumnConfig(name=column, dtype=dtype, multivalent=dtype != "float32")
    columns = Columns([one], {})

    tokens = tf.function(
        lambda serialized: tokens_of(one, columns.parse(serialized).categorical[column]),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )

    def read(serialized: tf.Tensor) -> Tokens:
        found = tokens(serialized)
        lengths = found.row_lengths().numpy()
        if (lengths != 1).any():
            several = int(lengths[lengths != 1][0])
            raise DataError(
                f"a row has {several} values in column {column!r}, which `evaluation.user` names: each row must have "
                "one; name another column, or leave such rows out with `row_filters`."
            )
        users: Tokens = found.values.numpy()
        return users

    return read


def _type_of(column: str, files: Sequence[str]) -> TokenDtype:
    for _, serialized in batches_by_file(files, _FIRST_ROWS).take(1):
        for row in serialized.numpy():
            kind = tf.train.Example.FromString(row).features.feature[column].WhichOneof("kind")
            if kind is not None:
                return _TYPES[kind]
    raise DataError(
        f"`evaluation.user` is {column!r}: the first {_FIRST_ROWS} rows of the eval split have no such column; name a "
        "column of the data."
    )


class Numbering:
    """Numbers tokens in the order in which they are first seen."""

    def __init__(self) -> None:
        """Start with no token."""
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return how many tokens have a number."""
        return len(self._numbers)

    def add(self, tokens: Tokens) -> npt.NDArray[np.int64]:
        """Return the numbers of tokens, int64 `[B]`; new ones get the next numbers."""
        return _by_distinct(tokens, lambda one: self._numbers.setdefault(one, len(self._numbers)))

    def find(self, tokens: Tokens) -> npt.NDArray[np.int64]:
        """Return the numbers of tokens, int64 `[B]`; -1 for a token without a number."""
        return _by_distinct(tokens, lambda one: self._numbers.get(one, -1))

    def keep(self, numbers: npt.NDArray[np.int64]) -> None:
        """Keep only the tokens with these numbers, and renumber them by their place in `numbers`."""
        tokens = list(self._numbers)
        self._numbers = {tokens[number]: place for place, number in enumerate(numbers.tolist())}


def _by_distinct(tokens: Tokens, number: Callable[[bytes], int]) -> npt.NDArray[np.int64]:
    encoded = pa.array(tokens, pa.large_binary()).dictionary_encode()
    numbers = np.array([number(one) for one in encoded.dictionary.to_pylist()], np.int64)
    found: npt.NDArray[np.int64] = numbers[encoded.indices.to_numpy()]
    return found
