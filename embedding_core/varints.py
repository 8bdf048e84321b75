"""Encodes whole numbers as varints, as Protocol Buffers do.

A number is groups of 7 bits, the lowest first, with 128 added to all groups but its last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GROUPS = 10  # of the largest number of 64 bits


def varints(numbers: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Encode numbers.

    Returns:
      The bytes of all numbers, and the number of bytes of each.
    """
    bits = int(numbers.max(initial=0)).bit_length()
    shifts = np.arange(0, max(bits, 1), 7, dtype=np.uint64)
    rest = numbers[:, None] >> shifts
    used = rest > 0
    used[:, 0] = True
    more = np.concatenate([used[:, 1:], np.zeros((len(numbers), 1), np.bool_)], axis=1)
    groups = (rest & np.uint64(127)).astype(np.uint8) | (more.astype(np.uint8) << 7)
    return groups[used], used.sum(axis=1, dtype=np.int64)


def from_varints(content: bytes) -> npt.NDArray[np.uint64]:
    """Decode what `varints` encoded.

    Raises:
      ValueError: the last number has no end, or a number has more than 64 bits.
    """
    groups = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(groups < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    if len(groups) and (not len(ends) or ends[-1] != len(groups) - 1 or (ends - starts).max() >= _GROUPS):
        raise ValueError("these bytes are not varints")
    if (groups[ends[ends - starts == _GROUPS - 1]] > 1).any():
        raise ValueError("these bytes are not varints: a number has more than 64 bits")
    if not len(groups):
        return np.zeros(0, np.uint64)
    places = np.arange(len(groups)) - np.repeat(starts, ends - starts + 1)
    parts = (groups & np.uint8(127)).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(parts, starts)
