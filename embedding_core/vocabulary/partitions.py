"""Partitions the tokens of a vocabulary that is too large for one process, and merges the sorted partitions.

A token is in one partition only, and each partition is in the total order (count descending, then bytes ascending).
Merging holds one block of each partition in memory; `save_in_blocks` writes the merged blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedding_core.vocabulary.vocabulary import total_order
from embedding_core.vocabulary.vocabulary_files import Block

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TOKENS_AT_ONCE = 1 << 16


def partition_of(tokens: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """Assign each token to one of `partitions` by a hash of its bytes, which is the same in every process.

    Returns:
      [n] int64: the number of each token's partition.
    """
    slices = [_hashes(tokens[start : start + _TOKENS_AT_ONCE]) for start in range(0, len(tokens), _TOKENS_AT_ONCE)]
    hashes = np.concatenate(slices) if slices else np.zeros(0, np.uint64)
    return np.asarray((hashes >> np.uint64(33)) % np.uint64(partitions), np.int64)


def _hashes(tokens: pa.Array) -> npt.NDArray[np.uint64]:
    """Sum (byte + 1) * factor ** (position + 2) over the bytes of each token, modulo 2 ** 64."""
    offsets = np.frombuffer(tokens.buffers()[1], np.int64)[tokens.offset : tokens.offset + len(tokens) + 1]
    data = np.frombuffer(tokens.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    position = np.arange(len(data)) - np.repeat(starts, ends - starts)
    powers = np.full(int(position.max(initial=0)) + 1, _FACTOR).cumprod(dtype=np.uint64)
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[position], out=sums[1:])
    return np.asarray((sums[ends] - sums[starts]) * _FACTOR, np.uint64)


def merge_sorted(partitions: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """Merge sorted streams of blocks that have no token in common into one sorted stream.

    Each round takes everything up to the last token of the block that ends first: nothing that is still unread can
    come before that token.
    """
    heads = [head for head in (_Head(blocks) for blocks in partitions) if head.fill()]
    while heads:
        cut = min(head.last() for head in heads)
        taken = [head.take_to(cut) for head in heads]
        tokens = pa.concat_arrays([tokens for tokens, _ in taken])
        counts = np.concatenate([counts for _, counts in taken])
        order = total_order(tokens, counts)
        yield tokens.take(pa.array(order)), counts[order]
        heads = [head for head in heads if head.fill()]


class _Head:
    """The unread rest of the current block of one partition."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._tokens, self._counts = pa.array([], pa.large_binary()), np.zeros(0, np.int64)

    def fill(self) -> bool:
        """Read the next block if this one is used up, and return whether anything is left."""
        while not len(self._tokens):
            block = next(self._blocks, None)
            if block is None:
                return False
            self._tokens, self._counts = block
        return True

    def _key(self, row: int) -> tuple[int, bytes]:
        return -int(self._counts[row]), self._tokens[row].as_py()

    def last(self) -> tuple[int, bytes]:
        return self._key(len(self._tokens) - 1)

    def take_to(self, cut: tuple[int, bytes]) -> Block:
        """Remove and return everything up to and including the cut."""
        low, high = 0, len(self._tokens)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._key(middle) <= cut else (low, middle)
        taken = self._tokens[:low], self._counts[:low]
        self._tokens, self._counts = self._tokens[low:], self._counts[low:]
        return taken
