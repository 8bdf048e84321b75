"""Defines vocabularies, their file format, and how one evolves from the vocabulary of a previous run.

Row i of a table belongs to token i. The order is total (count descending, then bytes ascending), so the
same data gives the same rows wherever and however often it is counted.

A vocabulary that evolved from a previous one, its base, may be in another order, and may have tokens that do not occur
in its data. This module does not load TensorFlow.

The rule, run after run (a run counts the data that the pipeline is run on, such as a day or a month):

* A run *admits* a token that it counts at least `min_count` times. A token is *idle* in a run that does not admit it.
* A token expires when it has been idle for `expire_after` runs in a row. It stays as long as one of the last
  `expire_after` runs counted it at least `min_count` times (if `max_size` leaves room). Without `expire_after` no token
  expires.
* "rerank" gives rows to all tokens that have not expired, at most `max_size` of them. Their total order uses each
  token's count in the run that last admitted it, so an idle token keeps its rank. Rows move: a checkpoint is remapped
  by token.
* "append" leaves the tokens of the base in their rows, expired ones too, and puts newly admitted tokens after them in
  the total order of this run's counts, up to `max_size` rows in all. The row of an expired token is a tombstone: it
  stays reserved, and the token finds its own row again if it comes back. The plain file of the new vocabulary begins
  with that of the base. To reclaim the space, run once in mode "rerank".

Counts of tokens without a row are not remembered. `docs/decisions/0005-vocabulary-evolution.md` says why.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.config import ColumnConfig, EvolutionMode
from embedding_core.errors import ConfigError
from embedding_core.schema import Name, read

# Summarizes what counting found about one feature that feeds a vocabulary.

_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """Statistics of one feature that feeds a vocabulary.

    Attributes:
      column: column of the feature, with the dtype and valency found in the data.
      rows: number of rows read.
      missing: number of rows without any token.
      token_count: number of token occurrences.
      lengths: tokens per row, empty rows included: the smallest length that at least 50, 90, 95, 99
        and 100% of the rows do not exceed, as "p50", "p90", "p95", "p99" and "max".
      new_rows: number of rows with at least one token that the base vocabulary does not have; None without a base.
      new_tokens: number of token occurrences that the base does not have; None without a base.
    """

    column: ColumnConfig
    rows: int
    missing: int
    token_count: int
    lengths: Mapping[str, int]
    new_rows: int | None = None
    new_tokens: int | None = None

    @property
    def drift(self) -> dict[str, float]:
        """Return how much of the feature's data the base vocabulary does not know.

        Returns:
          "new_rows", the share of rows with at least one token that the base does not have, and "new_tokens", the
          share of token occurrences that it does not have; from 0 to 1. Empty without a base.
        """
        if self.new_rows is None or self.new_tokens is None:
            return {}
        return {
            "new_rows": self.new_rows / max(1, self.rows),
            "new_tokens": self.new_tokens / max(1, self.token_count),
        }


def length_percentiles(histogram: npt.ArrayLike) -> dict[str, int]:
    """Compute percentiles of the number of tokens per row.

    Args:
      histogram: [longest + 1] how many rows have 0, 1, 2, ... tokens.

    Returns:
      "p50", "p90", "p95", "p99", "max": the smallest length that at least that share of the rows does not exceed.
    """
    rows = np.cumsum(np.asarray(histogram, np.int64))
    total = int(rows[-1]) if rows.size else 0
    return {name: int(np.searchsorted(rows * 100, total * share)) for name, share in _PERCENTILES.items()}


# Converts vocabularies to the bytes of their files and back, in chunks, to use little memory.

_TOKENS_AT_ONCE = 1 << 18
_BYTES_AT_ONCE = 1 << 22
_LINE_FEED = ord("\n")
_format: Any = np.lib.format  # numpy's own types leave out the function used here


def sha256_of(chunks: Iterable[bytes]) -> str:
    """Compute the sha256 of all chunks together, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


class DigestedFile:
    """A new file that knows the digest of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Take an opened file, and write zero bytes so that the file is created even if it stays empty."""
        self._file = file
        self._file.write(b"")  # some file systems make a file only when it is written to
        self._sha256 = hashlib.sha256()

    def write(self, chunks: Iterable[bytes]) -> None:
        """Append chunks to the file."""
        for chunk in chunks:
            self._sha256.update(chunk)
            self._file.write(chunk)

    @property
    def digest(self) -> str:
        """Sha256 of what has been written, in hexadecimal."""
        return self._sha256.hexdigest()


def plain_chunks(tokens: pa.Array) -> Iterator[bytes]:
    """Yield the bytes of `<name>.txt`: each token followed by a line feed."""
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        part = tokens.slice(start, _TOKENS_AT_ONCE)
        row = pa.LargeListArray.from_arrays(pa.array([0, len(part)], pa.int64()), part)
        joined: bytes = pc.binary_join(row, pa.scalar(b"\n", pa.large_binary()))[0].as_py()
        yield joined + b"\n"


def npy_header(shape: tuple[int, ...]) -> bytes:
    """Make the header that `numpy.save` writes before the data of an int64 array."""
    header = io.BytesIO()
    _format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return header.getvalue()


def data_chunks(array: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the bytes of an array's values, which follow the header in a file of `numpy.save`."""
    flat = np.ascontiguousarray(array).reshape(-1)
    count = _BYTES_AT_ONCE // flat.itemsize
    for start in range(0, len(flat), count):
        yield flat[start : start + count].tobytes()


def read_tokens(file: IO[bytes]) -> tuple[pa.Array, str]:
    """Read the lines of a plain token file as a large_binary array, and the sha256 of its bytes."""
    digest, size = hashlib.sha256(), 0
    parts: list[bytes] = []
    ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
    while chunk := file.read(_BYTES_AT_ONCE):
        digest.update(chunk)
        breaks = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _LINE_FEED)
        ends.append(size + breaks - np.arange(len(breaks)))
        parts.append(chunk.replace(b"\n", b""))
        size += len(parts[-1])
    offsets = np.concatenate(ends)
    ends.clear()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers), digest.hexdigest()


# Defines a vocabulary: the tokens that the rows of a table belong to, with their counts and a digest.

_UNREPRESENTABLE = (b"\n", b"\r", b"\0")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evolution:
    """How a vocabulary evolved from its base, a previous one, by the rule of `embedding_core.vocabulary.vocabulary`.

    Attributes:
      mode: "append" leaves every row of the base in place, "rerank" sorts all tokens again.
      expire_after: number of runs in a row without admission after which a token expires; None for never.
      base: digest of the base.
      kept: number of tokens of the base that have a row.
      new: number of tokens with a row that the base does not have.
      dropped: number of tokens of the base without a row.
      refused: number of admitted tokens for which `max_size` left no row.
      idle: [size] int64: number of runs, this one included, since each token was last admitted.
      last_counts: [size] int64: count of each token in the run that last admitted it.
    """

    mode: EvolutionMode
    expire_after: int | None
    base: str
    kept: int
    new: int
    dropped: int
    refused: int
    idle: npt.NDArray[np.int64]
    last_counts: npt.NDArray[np.int64]

    @property
    def expired(self) -> int:
        """Number of rows that are only reserved, because their token has expired."""
        return 0 if self.expire_after is None else int(np.count_nonzero(self.idle >= self.expire_after))

    def facts(self) -> dict[str, Any]:
        """Return everything but the arrays, as JSON values."""
        names = ("mode", "expire_after", "base", "kept", "new", "dropped", "refused", "expired")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The tokens of one vocabulary in the order of their rows.

    Attributes:
      name: file name and default table name.
      tokens: [size] pyarrow large_binary array: the tokens that have rows.
      counts: [size] int64: number of occurrences of each; 0 is possible with a base.
      total_count: number of occurrences of all tokens, including those without a row.
      distinct: number of distinct tokens, without unrepresentable ones.
      unrepresentable: number of occurrences of tokens that hold LF, CR or NUL, which no text vocabulary can hold.
      min_count: smallest count of a token with a row.
      max_size: largest number of tokens with a row; None for no limit.
      private: whether tokens may be shown only as digests.
      features: statistics of each feature that feeds this vocabulary, by name.
      evolution: record of how it evolved from its base; None without a base.
    """

    name: str
    tokens: pa.Array
    counts: npt.NDArray[np.int64]
    total_count: int
    distinct: int
    unrepresentable: int = 0
    min_count: int = 1
    max_size: int | None = None
    private: bool = False
    features: Mapping[str, FeatureSummary] = dataclasses.field(default_factory=dict)
    evolution: Evolution | None = None

    def __post_init__(self) -> None:
        read(Name, self.name, "name of a vocabulary")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def coverage(self) -> float:
        """Share of the token occurrences whose token has a row, from 0 to 1."""
        return int(self.counts.sum()) / max(1, self.total_count)

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 of the plain token file's bytes, in hexadecimal."""
        return sha256_of(plain_chunks(self.tokens))


def vocabulary_from_counts(
    name: str,
    tokens: pa.Array,
    counts: npt.NDArray[np.int64],
    *,
    min_count: int = 1,
    max_size: int | None = None,
    private: bool = False,
    features: Mapping[str, FeatureSummary] | None = None,
) -> Vocabulary:
    """Sort counted tokens and keep those that get a row.

    Args:
      name: name of the vocabulary.
      tokens: [n] large_binary, each distinct token once, in any order.
      counts: [n] int64.
      min_count: smallest count of a token with a row; >= 1.
      max_size: largest number of tokens with a row; None for no limit.
      private: whether tokens may be shown only as digests.
      features: statistics of each feature.

    Raises:
      ConfigError: the thresholds leave out all tokens.
    """
    total = int(counts.sum())
    tokens, counts = representable(tokens, counts)
    kept = admitted_rows(tokens, counts, min_count, max_size)
    if len(tokens) and not len(kept):
        raise no_token_left(name, min_count, max_size, len(tokens), int(counts.max()))
    return Vocabulary(
        name=name,
        tokens=tokens.take(pa.array(kept)),
        counts=counts[kept],
        total_count=total,
        distinct=len(tokens),
        unrepresentable=total - int(counts.sum()),
        min_count=min_count,
        max_size=max_size,
        private=private,
        features=dict(features or {}),
    )


def admitted_rows(
    tokens: pa.Array, counts: npt.NDArray[np.int64], min_count: int, max_size: int | None
) -> npt.NDArray[np.int64]:
    """Return the positions of the tokens that the thresholds give a row, in their total order."""
    order = total_order(tokens, counts)
    return order[: np.searchsorted(-counts[order], -min_count, side="right")][:max_size]


def no_token_left(name: str, min_count: int, max_size: int | None, distinct: int, highest: int) -> ConfigError:
    """Return the error for thresholds that leave out all of the `distinct` tokens."""
    return ConfigError(
        f"`min_count` {min_count}, `max_size` {max_size} of vocabulary {name!r} leave no token: the most frequent of "
        f"its {distinct} tokens occurs {highest} times; use lower thresholds."
    )


def total_order(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of the tokens, sorted by descending count and, if counts are equal, by ascending bytes."""
    order: npt.NDArray[np.uint64] = pc.sort_indices(
        pa.table({"count": counts, "token": tokens}), [("count", "descending"), ("token", "ascending")]
    ).to_numpy()
    return order.astype(np.int64)


def representable(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Keep the tokens that a text vocabulary can hold, and their counts."""
    masks = [pc.match_substring(tokens, pattern).to_numpy(zero_copy_only=False) for pattern in _UNREPRESENTABLE]
    good = ~np.logical_or.reduce(masks)
    return (tokens, counts) if good.all() else (tokens.filter(pa.array(good)), counts[good])


def evolved_vocabulary(
    base: Vocabulary,
    tokens: pa.Array,
    counts: npt.NDArray[np.int64],
    *,
    mode: EvolutionMode,
    expire_after: int | None = None,
    min_count: int = 1,
    max_size: int | None = None,
    private: bool = False,
    features: Mapping[str, FeatureSummary] | None = None,
) -> Vocabulary:
    """Merge this run's tokens with those of a previous vocabulary, by the rule above.

    Args:
      base: vocabulary of the previous run; it may have a base itself.
      tokens: [n] large_binary, each distinct token of this run once, in any order.
      counts: [n] int64, of this run.
      mode: "append" or "rerank".
      expire_after: number of runs; >= 1, or None.
      min_count: smallest count with which a run admits a token; >= 1.
      max_size: largest number of tokens with a row; None for no limit.
      private: whether tokens may be shown only as digests.
      features: statistics of each feature in this run.

    Returns:
      A vocabulary with the base's name; its `counts`, `total_count` and `coverage` are those of this run's data.

    Raises:
      ConfigError: no token is left.
    """
    total = int(counts.sum())
    tokens, counts = representable(tokens, counts)
    before, fresh = len(base), _fresh(base, tokens, counts, min_count)
    all_tokens = pa.concat_arrays([base.tokens, tokens.take(pa.array(fresh))])
    all_counts = np.concatenate([_counts_of(base, tokens, counts), counts[fresh]])
    idle, last_counts = _idleness(base, all_counts, min_count)
    if mode == "append":
        rows = _appended(before, len(all_tokens), max_size)
    else:
        rows = total_order(all_tokens, last_counts)
        rows = rows[idle[rows] < (np.inf if expire_after is None else expire_after)][:max_size]
    _check_any(base.name, rows, expire_after)
    kept = int(np.count_nonzero(rows < before))
    return Vocabulary(
        name=base.name,
        tokens=all_tokens.take(pa.array(rows)),
        counts=all_counts[rows],
        total_count=total,
        distinct=len(tokens),
        unrepresentable=total - int(counts.sum()),
        min_count=min_count,
        max_size=max_size,
        private=private,
        features=dict(features or {}),
        evolution=Evolution(
            mode=mode,
            expire_after=expire_after,
            base=base.digest,
            kept=kept,
            new=len(rows) - kept,
            dropped=before - kept,
            refused=len(fresh) - (len(rows) - kept),
            idle=idle[rows],
            last_counts=last_counts[rows],
        ),
    )


def _fresh(base: Vocabulary, tokens: pa.Array, counts: npt.NDArray[np.int64], min_count: int) -> npt.NDArray[np.int64]:
    """Find the positions of the admitted tokens that the base does not have, in their total order."""
    known = pc.is_in(tokens, value_set=base.tokens).to_numpy(zero_copy_only=False)
    fresh = np.flatnonzero(~known & (counts >= min_count))
    return fresh[total_order(tokens.take(pa.array(fresh)), counts[fresh])]


def _counts_of(base: Vocabulary, tokens: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Look up this run's count of each token of the base."""
    positions = pc.fill_null(pc.index_in(base.tokens, value_set=tokens), -1).to_numpy(zero_copy_only=False)
    of_base: npt.NDArray[np.int64] = np.append(counts, 0)[positions]
    return of_base


def _idleness(
    base: Vocabulary, counts: npt.NDArray[np.int64], min_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Compute the idle runs and the last admitted count of the base's tokens, and of the new ones after them."""
    idle, last_counts = np.zeros_like(counts), counts.copy()
    previous = base.evolution
    idle[: len(base)] = 0 if previous is None else previous.idle
    last_counts[: len(base)] = base.counts if previous is None else previous.last_counts
    admitted = counts >= min_count
    return np.where(admitted, 0, idle + 1), np.where(admitted, counts, last_counts)


def _appended(before: int, after: int, max_size: int | None) -> npt.NDArray[np.int64]:
    return np.arange(after if max_size is None else max(before, min(after, max_size)))


def _check_any(name: str, rows: npt.NDArray[np.int64], expire_after: int | None) -> None:
    if not len(rows):
        raise ConfigError(
            f"`expire_after` {expire_after} leaves vocabulary {name!r} no token: the last runs admitted none; check "
            "the data, lower `min_count`, or let tokens expire later."
        )
