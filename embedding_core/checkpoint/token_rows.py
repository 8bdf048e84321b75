"""Computes initial rows that depend on the token, not on the number of its row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import TableConfig

_TOKENS_AT_ONCE = 8192  # float64 numbers of a whole slice would take several times its memory
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def token_rows(table: TableConfig, tokens: Sequence[bytes], *, seed: int) -> npt.NDArray[np.float32]:
    """Compute the initial rows of tokens, by the table's initializer.

    Each number is a function of seed, table name, token and column: SplitMix64 (Steele et al., 2014), seeded with the
    token's keyed BLAKE2b digest, gives a uniform number, which the inverse distribution function converts.

    Returns:
      float32 [number of tokens, dim].
    """
    scale = 1 / math.sqrt(table.dim) if table.initializer.scale is None else table.initializer.scale
    if table.initializer.name == "constant":
        return np.full((len(tokens), table.dim), scale, np.float32)
    rows = np.empty((len(tokens), table.dim), np.float32)
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        part = tokens[start : start + _TOKENS_AT_ONCE]
        uniform = _uniform(_keys(f"{seed}/{table.name}".encode(), part), table.dim)
        rows[start : start + len(part)] = _distributed(table.initializer.name, uniform) * scale
    return rows


def _distributed(name: str, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert uniform numbers in (0, 1) to the initializer's distribution, with scale 1."""
    if name == "uniform":
        return 2 * uniform - 1
    low = 0.5 * math.erfc(math.sqrt(2))  # a truncated normal distribution ends at two standard deviations
    normal: npt.NDArray[np.float64] = tf.math.ndtri(tf.constant(low + uniform * (1 - 2 * low), tf.float64)).numpy()
    return normal


def _keys(salt: bytes, tokens: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    key = hashlib.sha256(salt).digest()
    digests = b"".join(hashlib.blake2b(token, digest_size=8, key=key).digest() for token in tokens)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _uniform(keys: npt.NDArray[np.uint64], columns: int) -> npt.NDArray[np.float64]:
    """Return uniform numbers in (0, 1): [number of keys, columns]."""
    with np.errstate(over="ignore"):
        state = keys[:, None] + np.arange(1, columns + 1, dtype=np.uint64) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state ^= state >> np.uint64(31)
    uniform: npt.NDArray[np.float64] = ((state >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return uniform
