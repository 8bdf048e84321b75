"""A vocabulary put together out of sorted parts, which no process holds as a whole; no TensorFlow.

Each part has tokens of its own, in the total order (count descending, then bytes ascending). They are merged block by
block: in memory is one block of each part. The files are those that `save_vocabulary` writes, byte by byte.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedding_core.storage.seals import sealed_json
from embedding_core.vocabulary import Vocabulary, description_of, total_order
from embedding_core.vocabulary.chunks import DigestedFile, npy_header, plain_chunks

__all__ = ["Block", "merge_sorted", "part_of", "save_merged"]

Block = tuple[pa.Array, npt.NDArray[np.int64]]
"""Distinct tokens (large_binary) and their counts (int64)."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TOKENS_AT_ONCE = 1 << 16


def part_of(tokens: pa.Array, parts: int) -> npt.NDArray[np.int64]:
    """Which of so many parts each token belongs to: by a hash of its bytes, the same in every process."""
    hashes = [_hashes(tokens[start : start + _TOKENS_AT_ONCE]) for start in range(0, len(tokens), _TOKENS_AT_ONCE)]
    found = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    return np.asarray((found >> np.uint64(33)) % np.uint64(parts), np.int64)


def _hashes(tokens: pa.Array) -> npt.NDArray[np.uint64]:
    """The sum over a token's bytes of (byte + 1) * factor ** (place + 1), modulo 2 ** 64."""
    offsets = np.frombuffer(tokens.buffers()[1], np.int64)[tokens.offset : tokens.offset + len(tokens) + 1]
    data = np.frombuffer(tokens.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    place = np.arange(len(data)) - np.repeat(starts, ends - starts)
    powers = np.full(int(place.max(initial=0)) + 1, _FACTOR).cumprod(dtype=np.uint64)
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[place], out=sums[1:])
    return np.asarray((sums[ends] - sums[starts]) * _FACTOR, np.uint64)


def merge_sorted(parts: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """One sorted stream of blocks out of several, which have no token in common.

    In every round comes out what stands before the last token of the block that ends first: nothing that is still to be
    read can stand before it.
    """
    heads = [head for head in (_Head(part) for part in parts) if head.fill()]
    while heads:
        cut = min(head.last() for head in heads)
        taken = [head.take_to(cut) for head in heads]
        tokens = pa.concat_arrays([tokens for tokens, _ in taken])
        counts = np.concatenate([counts for _, counts in taken])
        order = total_order(tokens, counts)
        yield tokens.take(pa.array(order)), counts[order]
        heads = [head for head in heads if head.fill()]


class _Head:
    """The block of a part that is being read."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._tokens, self._counts = pa.array([], pa.large_binary()), np.zeros(0, np.int64)

    def fill(self) -> bool:
        """Read on where the block is used up; whether there is anything left."""
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
        """Remove and return what does not stand behind the cut."""
        low, high = 0, len(self._tokens)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._key(middle) <= cut else (low, middle)
        taken = self._tokens[:low], self._counts[:low]
        self._tokens, self._counts = self._tokens[low:], self._counts[low:]
        return taken


def save_merged(
    vocabulary: Vocabulary,
    blocks: Iterator[Block],
    size: int,
    folder: str | os.PathLike[str],
    *,
    open_file: Callable[..., Any] = open,
) -> dict[str, Any]:
    """Write the files of a vocabulary whose tokens come in blocks.

    Args:
      vocabulary: everything but its tokens and counts, which are empty.
      blocks: sorted, all together.
      size: how many of the tokens get a row.
      folder: where to, as for `save_vocabulary`.
      open_file: likewise.

    Returns:
      `digest` and `coverage`.
    """
    covered, left = 0, size
    with contextlib.ExitStack() as stack:
        plain, counted = (
            stack.enter_context(DigestedFile(os.path.join(folder, vocabulary.name + suffix), open_file))
            for suffix in (".txt", ".counts.npy")
        )
        for chunk in npy_header((size,)):
            counted.write(chunk)
        for tokens, counts in blocks:
            for chunk in plain_chunks(tokens[:left]):
                plain.write(chunk)
            counted.write(np.ascontiguousarray(counts[:left]).tobytes())
            covered, left = covered + int(counts[:left].sum()), left - len(counts[:left])
            if not left:
                break
    coverage = covered / max(1, vocabulary.total_count)
    description = description_of(
        vocabulary, digest=plain.digest, counts_digest=counted.digest, size=size, coverage=coverage
    )
    with open_file(os.path.join(folder, f"{vocabulary.name}.json"), "wb") as file:
        file.write(sealed_json(description))
    return {"digest": plain.digest, "coverage": coverage}
