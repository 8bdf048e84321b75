"""Chooses the queries of a retrieval model's evaluation, with the true and the seen candidates of each query.

A *query* is either a user, with the true candidates of all the user's positive rows in the eval split, or one positive
row. Files are read one after the other, so the last row of a user is defined. The memory grows with the number of
chosen queries, and with the histories of their rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from embedding_core.columns import Columns, tokens_of
from embedding_core.config import ColumnConfig, TokenDtype
from embedding_core.errors import DataError
from embedding_core.evaluation.ranking_metrics import Ints, Lists
from embedding_core.training.row_stream import batches_by_file

# Reads the user of each row, and numbers users.

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
    user = ColumnConfig(name=column, dtype=dtype, multivalent=dtype != "float32")
    columns = Columns([user], {})

    tokens = tf.function(
        lambda serialized: tokens_of(user, columns.parse(serialized).categorical[column]),
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
        return _by_distinct(tokens, lambda token: self._numbers.setdefault(token, len(self._numbers)))

    def find(self, tokens: Tokens) -> npt.NDArray[np.int64]:
        """Return the numbers of tokens, int64 `[B]`; -1 for a token without a number."""
        return _by_distinct(tokens, lambda token: self._numbers.get(token, -1))

    def keep(self, numbers: npt.NDArray[np.int64]) -> None:
        """Keep only the tokens with these numbers, and renumber them by their place in `numbers`."""
        tokens = list(self._numbers)
        self._numbers = {tokens[number]: place for place, number in enumerate(numbers.tolist())}


def _by_distinct(tokens: Tokens, number: Callable[[bytes], int]) -> npt.NDArray[np.int64]:
    encoded = pa.array(tokens, pa.large_binary()).dictionary_encode()
    numbers = np.array([number(token) for token in encoded.dictionary.to_pylist()], np.int64)
    found: npt.NDArray[np.int64] = numbers[encoded.indices.to_numpy()]
    return found


_BATCH = 4096
_PAIRS = 1 << 22  # pairs of a user and a candidate that are collected before duplicates are dropped
_BITS = 31  # of a candidate's id


class Labelled(NamedTuple):
    """Which rows of a batch are positive, bool `[B]`; each row's candidate, int64 `[B]`, -1 if missing or unknown."""

    positive: npt.NDArray[np.bool_]
    candidates: Ints


ReadRows = Callable[[tf.Tensor], Labelled]
"""Reads serialized tf.Examples, string `[B]`."""
ReadHistory = Callable[[tf.Tensor], Lists]
"""Serialized tf.Examples, string `[B]` -> the candidates in the history of each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queries:
    """The queries of an evaluation, in the order of their rows.

    Attributes:
      rows: int64 `[q]`, index in the eval split of the row that gives each query its inputs; if queries are users, the
        last positive row of the user; with histories, the one that precedes the user's others.
      truths: the distinct true candidates of each query, without unknown ones.
      relevant: int64 `[q]`, number of true candidates of each query; each row with an unknown candidate adds one.
      positive_rows: number of positive rows of the eval split.
      is_sample: whether the eval split has more queries than these.
      users: numbering of the queries' users; None if each row is a query.
    """

    rows: Ints
    truths: Lists
    relevant: Ints
    positive_rows: int
    is_sample: bool
    users: Numbering | None


def choose_queries(
    files: Sequence[str],
    read: ReadRows,
    users: ReadTokens | None,
    *,
    most: int | None,
    seed: int,
    history: ReadHistory | None = None,
) -> Queries:
    """Read the eval split once, and choose its queries.

    Args:
      files: TFRecord files of the eval split.
      read: reads label and candidate of a row.
      users: reads the user of a row; None if each positive row is a query.
      most: largest number of queries; if there are more, those with the smallest seeded hashes are chosen.
      seed: seed of the hashes.
      history: reads the candidates in a row's history, to choose a user's row; None for the user's last positive row.

    Raises:
      DataError: there is no positive row.
    """
    chosen, first, positive_rows = _Chosen(most, seed), 0, 0
    for serialized in _batches(files):
        labelled = read(serialized)
        rows = np.flatnonzero(labelled.positive)
        numbers = first + rows
        tokens = tf.strings.as_string(numbers).numpy() if users is None else users(serialized)[rows]
        near = chosen.add(tokens, labelled.candidates[rows], numbers)
        if history is not None and len(near):
            chosen.hold(numbers[near], history(tf.gather(serialized, rows[near])))
        positive_rows += len(rows)
        first += len(serialized)
    if not positive_rows:
        raise DataError("the eval split has no positive row.")
    return chosen.queries(positive_rows, by_user=users is not None)


class _Chosen:
    """The positive rows of the queries with the smallest hashes: query, candidate, and number of each row."""

    def __init__(self, most: int | None, seed: int) -> None:
        self._most = most
        self._key = [seed & 0xFFFFFFFF, 0x5EED]
        self._numbering = Numbering()
        self._hashes = np.zeros(0, np.int64)  # of each query
        self._rows = np.zeros((3, 0), np.int64)
        self._bound = np.iinfo(np.int64).max  # hashes above it are not chosen
        self._new: list[Ints] = []
        self._held = [np.zeros((2, 0), np.int64)]  # number of the row, and candidate, of each candidate in a history

    def add(self, tokens: Tokens, candidates: Ints, rows: Ints) -> Ints:
        """Add positive rows; return the places of those that may be of a chosen query."""
        hashes = tf.strings.to_hash_bucket_strong(tokens, 1 << 62, self._key).numpy()
        near = hashes <= self._bound
        numbers = self._numbering.add(tokens[near])
        self._hashes = np.concatenate([self._hashes, np.zeros(len(self._numbering) - len(self._hashes), np.int64)])
        self._hashes[numbers] = hashes[near]
        self._new.append(np.stack([numbers, candidates[near], rows[near]]))
        if self._most is not None and len(self._numbering) > 2 * self._most:
            self._reduce(self._most)
        return np.flatnonzero(near)

    def hold(self, rows: Ints, histories: Lists) -> None:
        """Add the candidates in the histories of rows."""
        self._held.append(np.stack([rows[histories.owners], histories.values]))

    def _reduce(self, most: int) -> None:
        smallest = np.sort(np.argsort(self._hashes, kind="stable")[:most])
        places = np.full(len(self._hashes), -1, np.int64)
        places[smallest] = np.arange(len(smallest))
        rows = np.concatenate([self._rows, *self._new], axis=1)
        rows[0] = places[rows[0]]
        self._rows, self._new = rows[:, rows[0] >= 0], []
        held = np.concatenate(self._held, axis=1)
        self._held = [held[:, np.isin(held[0], self._rows[2])]]
        self._numbering.keep(smallest)
        self._hashes = self._hashes[smallest]
        self._bound = int(self._hashes.max())

    def queries(self, positive_rows: int, *, by_user: bool) -> Queries:
        """Return the queries, in the order of their rows."""
        if self._most is not None and len(self._numbering) > self._most:
            self._reduce(self._most)
        owners, candidates, numbers = np.concatenate([self._rows, *self._new], axis=1)
        rows = _before_the_others(owners, candidates, numbers, np.concatenate(self._held, axis=1))
        order = np.argsort(rows)
        self._numbering.keep(order)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        owners, known = places[owners], candidates >= 0
        truths = Lists.of_pairs(owners[known], candidates[known], len(order))
        unknown = np.bincount(owners[~known], minlength=len(order))
        return Queries(
            rows=rows[order],
            truths=truths,
            relevant=np.diff(truths.splits) + unknown,
            positive_rows=positive_rows,
            is_sample=self._bound < np.iinfo(np.int64).max,
            users=self._numbering if by_user else None,
        )


def _before_the_others(owner: Ints, candidate: Ints, number: Ints, held: Ints) -> Ints:
    """Choose for each user the positive row that precedes the user's others, by what the rows' histories hold.

    The history of a later row holds true candidates of earlier ones: as a query, it would be asked for what it shows. A
    true candidate is new if a row that has it does not have it in its history. The query is the row with the fewest
    new true candidates in its history; of several, the last.

    Args:
      owner: user of each positive row, `[n]`.
      candidate: candidate of each.
      number: number of each, ascending.
      held: number of the row, and candidate, of each candidate in a history, `[2, m]`.

    Returns:
      The number of each user's row.
    """
    held = held[:, np.isin(held[0], number)]
    target = owner << _BITS | np.maximum(candidate, 0)
    place = np.searchsorted(number, held[0])
    pair = owner[place] << _BITS | held[1]
    true = np.isin(pair, target[candidate >= 0])
    place, pair = place[true], pair[true]
    repeated = np.zeros(len(number), np.bool_)
    repeated[place[pair == target[place]]] = True
    new = np.isin(pair, target[(candidate >= 0) & ~repeated])
    order = np.lexsort((-number, np.bincount(place[new], minlength=len(number)), owner))
    rows: Ints = number[order][np.unique(owner[order], return_index=True)[1]]
    return rows


def seen_in_training(files: Sequence[str], read: ReadRows, users: ReadTokens, queries: Queries) -> Lists:
    """Collect the candidates that the users of the queries have in positive rows of the train split.

    Args:
      files: TFRecord files of the train split.
      read: reads label and candidate of a row.
      users: reads the user of a row.
      queries: the queries, one per user.
    """
    assert queries.users is not None
    pairs: list[Ints] = [np.zeros(0, np.int64)]
    for serialized in _batches(files):
        labelled, owners = read(serialized), queries.users.find(users(serialized))
        seen = labelled.positive & (labelled.candidates >= 0) & (owners >= 0)
        pairs.append(owners[seen] << _BITS | labelled.candidates[seen])
        if sum(map(len, pairs[1:])) > _PAIRS:
            pairs = [np.unique(np.concatenate(pairs))]
    every = np.concatenate(pairs)
    return Lists.of_pairs(every >> _BITS, every & ((1 << _BITS) - 1), len(queries.rows))


def rows_of_queries(files: Sequence[str], queries: Queries) -> Iterator[tf.Tensor]:
    """Read the eval split again, and yield the serialized rows of the queries in batches, in the queries' order."""
    first = 0
    for serialized in _batches(files):
        start, end = np.searchsorted(queries.rows, [first, first + len(serialized)])
        if end > start:
            yield tf.gather(serialized, queries.rows[start:end] - first)
        first += len(serialized)


def _batches(files: Sequence[str]) -> Iterator[tf.Tensor]:
    for _, serialized in batches_by_file(sorted(files), _BATCH):
        yield serialized
