"""Leaves out the rows that fail a filter, and assigns the others to splits: by the row and the seed alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from components.example_gen.row_selection import Condition, SplitByColumn, SplitByHash, SplitByTime, SplitLeaveOneOut
from components.example_gen.rows import BadRows, Batch, Mask, map_values
from components.example_gen.settings import Settings
from components.example_gen.values import Value, instant, number, same, text_of
from components.example_gen.whole_numbers import keys_of

Sides: TypeAlias = npt.NDArray[np.int8]

SPLITS = ("train", "eval")
_NEITHER = -1


def assign_splits(batch: Batch, settings: Settings, bad: BadRows) -> tuple[Batch, Sides]:
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


def _by_hash(batch: Batch, split: SplitByHash, seed: int, bad: BadRows) -> tuple[Batch, Sides]:
    if split.key is None:
        return batch, _sides(_shares(batch.content(batch.index), seed), split)
    keys, reasons = keys_of(batch.column(split.key), batch.decimal)
    encoded = keys.dictionary_encode()
    missing = keys.is_null().to_numpy(zero_copy_only=False)
    shares = np.empty(len(batch))
    shares[~missing] = _shares(encoded.dictionary.to_pylist(), seed)[encoded.indices.drop_null().to_numpy()]
    shares[missing] = _shares(batch.content(batch.index[missing]), seed)
    return _without(batch, _sides(shares, split), f"{split.key!r}, the key of the split", reasons, bad)


def _sides(shares: npt.NDArray[np.float64], split: SplitByHash) -> Sides:
    return (shares < split.eval_fraction).astype(np.int8)


def _shares(contents: Sequence[bytes], seed: int) -> npt.NDArray[np.float64]:
    """Hash each content to a number in [0, 1); the numbers are uniformly distributed."""
    salt = str(seed).encode()
    digests = b"".join(hashlib.blake2b(content, digest_size=8, key=salt).digest() for content in contents)
    return (np.frombuffer(digests, dtype=">u8") >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _by_column(batch: Batch, split: SplitByColumn) -> Sides:
    def side(value: Value) -> np.int8:
        for position, name in enumerate(SPLITS):
            if any(same(value, given, batch.decimal) for given in getattr(split, name)):
                return np.int8(position)
        return np.int8(_NEITHER)

    sides, _ = map_values(batch.column(split.column), side, np.int8(_NEITHER))
    return sides


def _by_time(batch: Batch, split: SplitByTime, bad: BadRows) -> tuple[Batch, Sides]:
    before = instant(split.before)
    column = batch.column(split.column)
    sides, reasons = map_values(column, lambda value: np.int8(instant(value) >= before), np.int8(_NEITHER))
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        reasons[int(row)] = "it has no value"
    return _without(batch, sides, f"{split.column!r}, by which rows are split", reasons, bad)


def _without(batch: Batch, sides: Sides, column: str, reasons: Mapping[int, str], bad: BadRows) -> tuple[Batch, Sides]:
    """Set bad rows aside; return the others, and their splits."""
    if not reasons:
        return batch, sides
    good = np.ones(len(batch), dtype=bool)
    good[list(reasons)] = False
    return batch.set_aside(bad, {row: f"column {column}: {reasons[row]}" for row in sorted(reasons)}), sides[good]


# Leaves out the rows that fail a condition of the row filters.


def filter_rows(batch: Batch, conditions: Sequence[Condition], filtered: list[int], bad: BadRows) -> Batch:
    """Keep the rows that meet every condition.

    A row is counted for the first condition that it fails. If a condition cannot compare a value (for example, `min`
    is a number and the value is not), the row is set aside as bad.

    Args:
      batch: the rows.
      conditions: the conditions, in order.
      filtered: per condition, the number of rows that it left out; increased here.
      bad: collects the rows set aside.
    """
    for position, condition in enumerate(conditions):
        met, reasons = meets(batch, condition)
        filtered[position] += int((~met).sum())
        batch = _without_rows(batch, met, reasons, bad)
    return batch


def meets(batch: Batch, condition: Condition) -> tuple[Mask, dict[int, str]]:
    """Return which rows meet the condition, and the reason for each row that it cannot compare, by position.

    The mask is true for rows that the condition cannot compare.
    """
    column = batch.column(condition.column)
    met, reasons = map_values(column, _predicate(condition, batch.decimal), _of_missing(condition))
    met[list(reasons)] = True
    return met, {row: f"column {condition.column!r}: {reason}" for row, reason in reasons.items()}


def _without_rows(batch: Batch, met: Mask, reasons: dict[int, str], bad: BadRows) -> Batch:
    if not reasons:
        return batch.keep(met)
    positions = met.cumsum() - 1
    return batch.keep(met).set_aside(bad, {int(positions[row]): reason for row, reason in reasons.items()})


def _of_missing(condition: Condition) -> bool:
    return condition.rule in {"not_equals", "not_matches"} or (condition.rule == "present" and not condition.value)


def _predicate(condition: Condition, decimal: str) -> Callable[[Value], bool]:
    given = condition.value
    match condition.rule:
        case "present":
            return lambda value: bool(given)
        case "equals":
            return lambda value: same(value, given, decimal)
        case "not_equals":
            return lambda value: not same(value, given, decimal)
        case "in":
            return lambda value: any(same(value, allowed, decimal) for allowed in given)
        case "matches" | "not_matches":
            wanted = condition.rule == "matches"
            pattern = re.compile(given)
            return lambda value: bool(pattern.search(text_of(value))) is wanted
        case _:
            return _bound(condition.rule, given, decimal)


def _bound(rule: str, given: Any, decimal: str) -> Callable[[Value], bool]:
    measure: Callable[[Any], float] = instant if isinstance(given, str) else lambda value: number(value, decimal)
    limit = measure(given)
    if rule == "min":
        return lambda value: measure(value) >= limit
    return lambda value: measure(value) <= limit
