"""Defines a vocabulary: the tokens that the rows of a table belong to, with their counts and a digest.

Row i of a table belongs to token i. The order is total (count descending, then bytes ascending), so the
same data gives the same rows wherever and however often it is counted.

A vocabulary that evolved from a previous one, its base (`embedding_core.vocabulary.evolution`), may be in another
order, and may have tokens that do not occur in its data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.config import EvolutionMode
from embedding_core.errors import ConfigError
from embedding_core.schema import Name, read
from embedding_core.vocabulary.chunks import plain_chunks, sha256_of
from embedding_core.vocabulary.feature_summary import FeatureSummary

_UNREPRESENTABLE = (b"\n", b"\r", b"\0")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evolution:
    """How a vocabulary evolved from its base, a previous one, by the rule of `embedding_core.vocabulary.evolution`.

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
      evolution: how it evolved from its base; None without a base.
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
