"""Adds up token counts in Arrow arrays; memory grows with the number of distinct tokens, not of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that an Arrow message holds (CVE-2023-47248)

_PENDING_LIMIT = 1 << 20
_BYTES_PER_MESSAGE = 1 << 26

Part = tuple[pa.Array, npt.NDArray[np.int64]]


def merge_counts(parts: Iterable[Part]) -> Part:
    """Add up parts of (large_binary tokens, int64 counts); each token of the result occurs once, in any order."""
    filled = [(tokens, counts) for tokens, counts in parts if len(tokens)]
    if not filled:
        return pa.array([], pa.large_binary()), np.zeros(0, np.int64)
    chunks = pa.chunked_array([tokens for tokens, _ in filled]).dictionary_encode().chunks
    distinct = chunks[-1].dictionary
    index = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    # Sums of whole numbers in float64 are exact below 2**53 occurrences of one token.
    sums = np.bincount(index, weights=np.concatenate([counts for _, counts in filled]), minlength=len(distinct))
    return distinct, sums.astype(np.int64)


class TokenCounts:
    """Running sums of token counts by vocabulary.

    Parts are collected, and merged when they hold more tokens than the result of the last merge (and more
    than a million), so that a token is hashed only a few times. All vocabularies are merged at once, because
    their parts share buffers.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}
        self._pending = 0
        self._merged = 0

    def add(self, vocabulary: str, tokens: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        """Add counts of tokens, which need not be distinct."""
        self._parts.setdefault(vocabulary, []).append((tokens, counts))
        self._pending += len(tokens)

    def compact(self, *, always: bool = False) -> None:
        """Merge what was added, if `always` or if it outgrew the last merge; call it after each batch."""
        if not always and self._pending <= max(_PENDING_LIMIT, self._merged):
            return
        self._parts = {name: [merge_counts(parts)] for name, parts in self._parts.items()}
        self._pending, self._merged = 0, sum(len(parts[0][0]) for parts in self._parts.values())

    def items(self) -> Iterator[tuple[str, Part]]:
        """Yield each vocabulary with its distinct tokens and their counts."""
        self.compact(always=True)
        for name, parts in self._parts.items():
            yield name, parts[0]


def write_counts(tokens: pa.Array, counts: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the counts as Arrow messages of about 64 MB each, for transport."""
    rows = max(1, len(tokens) * _BYTES_PER_MESSAGE // max(1, tokens.nbytes))
    for start in range(0, len(tokens), rows):
        part = slice(start, start + rows)
        batch = pa.record_batch([tokens[part], pa.array(counts[part])], ["token", "count"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield sink.getvalue().to_pybytes()


def read_counts(message: bytes) -> Part:
    """Return the tokens and counts in one message of `write_counts`, without copying."""
    table = pa.ipc.open_stream(message).read_all().combine_chunks()
    token, count = (table[name].chunk(0) for name in ("token", "count"))
    return token, count.to_numpy()
