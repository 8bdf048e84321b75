"""Assigns rows to splits: by the row and the seed alone, never by files, order or runner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from components.example_gen.row_selection import SplitByColumn, SplitByHash, SplitByTime, SplitLeaveOneOut
from components.example_gen.rows import BadRows, Batch, map_values
from components.example_gen.settings import Settings
from components.example_gen.values import Value, instant, same
from components.example_gen.whole_numbers import keys_of

_Sides: TypeAlias = npt.NDArray[np.int8]

SPLITS = ("train", "eval")
_NEITHER = -1


def assign_splits(batch: Batch, settings: Settings, bad: BadRows) -> tuple[Batch, _Sides]:
    """Assign each row its split, as a position in `SPLITS`, or -1 for neither.

    Returns:
      The rows and their splits [rows]. Rows without a valid time are set aside, and not returned.
    """
    split = settings.split
    if isinstance(split, SplitByHash):
        return _by_hash(batch, split, settings.seed, bad)
    if isinstance(split, SplitByColumn):
        return batch, _by_column(batch, split)
    if isinstance(split, SplitLeaveOneOut):  # known only when all rows of a user are together
        return batch, np.full(len(batch), _NEITHER, np.int8)
    return _by_time(batch, split, bad)


def _by_hash(batch: Batch, split: SplitByHash, seed: int, bad: BadRows) -> tuple[Batch, _Sides]:
    if split.key is None:
        return batch, _sides(_shares(batch.content(batch.index), seed), split)
    keys, reasons = keys_of(batch.column(split.key), batch.decimal)
    encoded = keys.dictionary_encode()
    missing = keys.is_null().to_numpy(zero_copy_only=False)
    shares = np.empty(len(batch))
    shares[~missing] = _shares(encoded.dictionary.to_pylist(), seed)[encoded.indices.drop_null().to_numpy()]
    shares[missing] = _shares(batch.content(batch.index[missing]), seed)
    return _without(batch, _sides(shares, split), f"{split.key!r}, the key of the split", reasons, bad)


def _sides(shares: npt.NDArray[np.float64], split: SplitByHash) -> _Sides:
    return (shares < split.eval_fraction).astype(np.int8)


def _shares(contents: Sequence[bytes], seed: int) -> npt.NDArray[np.float64]:
    """Hash each content to a number in [0, 1); the numbers are uniformly distributed."""
    salt = str(seed).encode()
    digests = b"".join(hashlib.blake2b(content, digest_size=8, key=salt).digest() for content in contents)
    return (np.frombuffer(digests, dtype=">u8") >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _by_column(batch: Batch, split: SplitByColumn) -> _Sides:
    def side(value: Value) -> np.int8:
        for position, name in enumerate(SPLITS):
            if any(same(value, given, batch.decimal) for given in getattr(split, name)):
                return np.int8(position)
        return np.int8(_NEITHER)

    sides, _ = map_values(batch.column(split.column), side, np.int8(_NEITHER))
    return sides


def _by_time(batch: Batch, split: SplitByTime, bad: BadRows) -> tuple[Batch, _Sides]:
    before = instant(split.before)
    column = batch.column(split.column)
    sides, reasons = map_values(column, lambda value: np.int8(instant(value) >= before), np.int8(_NEITHER))
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        reasons[int(row)] = "it has no value"
    return _without(batch, sides, f"{split.column!r}, by which rows are split", reasons, bad)


def _without(
    batch: Batch, sides: _Sides, column: str, reasons: Mapping[int, str], bad: BadRows
) -> tuple[Batch, _Sides]:
    """Set bad rows aside; return the others, and their splits."""
    if not reasons:
        return batch, sides
    good = np.ones(len(batch), dtype=bool)
    good[list(reasons)] = False
    return batch.set_aside(bad, {row: f"column {column}: {reasons[row]}" for row in sorted(reasons)}), sides[good]
