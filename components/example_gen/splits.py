"""Filters rows, assigns them to splits whatever their order, and unifies ids that are written as 3 and as 3.0.

pandas writes 3.0, because it converts an integer column with missing values to float. Keys, by which rows are split and
joined, are always unified (`keys_of`); tokens are where `data.whole_numbers` asks for it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.row_selection import (
    Condition,
    SplitByColumn,
    SplitByFile,
    SplitByHash,
    SplitByTime,
    SplitLeaveOneOut,
)
from components.example_gen.rows import (
    BadRows,
    Batch,
    Mask,
    flat_values,
    map_values,
    of_rows,
    rewrapped,
    time_texts,
    widened,
)
from components.example_gen.settings import Settings
from components.example_gen.values import Value, instant, number, same, text_of

_Floats: TypeAlias = npt.NDArray[np.floating[Any]]

_TOO_LARGE = (
    "a whole number that a float cannot tell from its neighbours (2**53 and beyond; in float32, 2**24): store the "
    "column as whole numbers or as text"
)


def with_whole_numbers(batch: Batch, settings: Settings, bad: BadRows) -> Batch:
    """Write 3.0 as 3 in the columns of `settings.whole_numbers`; other text stays as it is.

    A float column becomes int64. Its rows with a fraction, or with a number that `_are_exact` excludes, are bad.
    """
    reasons: dict[int, str] = {}
    columns = dict(batch.columns)
    for name in settings.whole_numbers:
        column = columns[name]
        values = flat_values(column)
        if pa.types.is_floating(values.type):
            values, fractions = _whole(values)
            reasons |= {row: f"column {name!r}: {why}" for row, why in of_rows(column, fractions).items()}
        elif not pa.types.is_integer(values.type):
            # If the point is not the decimal separator, it may separate thousands (3.000), so only ".0" is removed.
            values = _without_fraction(values, rf"([{batch.decimal}]0*|[.]0)")
        columns[name] = rewrapped(column, values)
    batch = dataclasses.replace(batch, columns=columns)
    return batch.set_aside(bad, dict(sorted(reasons.items()))) if reasons else batch


def _without_fraction(texts: pa.Array, fraction: str) -> pa.Array:
    """Write whole numbers that have such a fraction, a regular expression, as their digits: also "+3.0" and "-0.0"."""
    texts = pc.replace_substring_regex(texts, rf"^[+-]?0{fraction}$", "0")
    return pc.replace_substring_regex(texts, rf"^(?:[+](\d+)|(-?\d+)){fraction}$", r"\1\2")


def _whole(values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    numbers = values.to_numpy(zero_copy_only=False)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        good = valid & (numbers == np.floor(numbers)) & _are_exact(numbers)
    whole = pa.array(np.where(good, numbers, 0).astype(np.int64), mask=~valid)
    # Leaves out the value itself, because tokens may be private.
    reason = (
        "a number that is not whole (or 2**53 or more; in float32, 2**24), and `data.whole_numbers` names the column"
    )
    return whole, dict.fromkeys(np.flatnonzero(valid & ~good).tolist(), reason)


def _are_exact(numbers: _Floats) -> Mask:
    """Return where a float stands for one whole number only: below 2**53, in float32 below 2**24."""
    exact: Mask = np.abs(numbers) < 2.0 ** (np.finfo(numbers.dtype).nmant + 1)
    return exact


def keys_of(column: pa.Array, decimal: str = ".") -> tuple[pa.Array, dict[int, str]]:
    """Return what identifies each value of a key: equal keys are equal bytes, whatever type a file gives them.

    Splits, histories and samples of users compare keys by this function alone. A key is text. A whole number is its
    digits: 100, 100.0 and the text "100.0" are one key. Any other float is the shortest text that reads back as the
    same float. A date or time is ISO text; midnight is its date, since pandas writes dates as times. Any other text is
    itself: "100.00" and "0100" are other keys than 100.

    Args:
      column: a scalar column, as `normal` returns it or text of a CSV file.
      decimal: decimal separator of text.

    Returns:
      The keys, large_binary [rows]; null for a missing or empty value. And by position of the row the reason why its
      value cannot be a key: a float that stands for several whole numbers.
    """
    if pa.types.is_floating(column.type):
        return _keys_of_floats(column)
    if pa.types.is_integer(column.type):
        return column.cast(pa.string()).cast(pa.large_binary()), {}
    if pa.types.is_temporal(column.type):
        return pc.replace_substring_regex(time_texts(column), r" 00:00:00$", ""), {}
    texts = column.cast(pa.large_binary())
    for point in dict.fromkeys((".", decimal)):
        if pc.any(pc.ends_with(texts, f"{point}0")).as_py():
            texts = _without_fraction(texts, rf"[{point}]0")
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.large_binary()), texts), {}


def _keys_of_floats(column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    encoded = column.dictionary_encode()
    numbers = encoded.dictionary.to_numpy(zero_copy_only=False)
    texts = map(text_of, widened(encoded.dictionary).to_pylist())
    # Infinity is not exact either.
    ambiguous = pa.array((numbers == np.floor(numbers)) & ~_are_exact(numbers), pa.bool_()).take(encoded.indices)
    bad = np.flatnonzero(pc.fill_null(ambiguous, False).to_numpy(zero_copy_only=False))
    return pa.array(texts, pa.large_binary()).take(encoded.indices), dict.fromkeys(bad.tolist(), _TOO_LARGE)


def count_whole_numbers(column: pa.Array) -> tuple[int, int]:
    """Count the values of a text column that are written like 3, and those like 3.0; zeros for numbers and times."""
    values = flat_values(column)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_temporal(values.type):
        return 0, 0
    values = values.cast(pa.large_binary())
    with_point = pc.sum(pc.match_substring_regex(values, r"^[+-]?\d+[.,]0$")).as_py() or 0
    plain = pc.sum(pc.match_substring_regex(values, r"^[+-]?\d+$")).as_py() or 0
    return plain, with_point


Sides: TypeAlias = npt.NDArray[np.int8]

SPLITS = ("train", "eval")
_NEITHER = -1


class EqualRows:
    """Tells equal rows of a file apart, so that a hash divides them among the splits.

    Else, of a few tokens that come with both labels, one split would have all rows of one label. A row without an equal
    one before it has the same digest whatever the file and the order of rows. Of more than 262,144 different rows, the
    later ones are not told apart.
    """

    _MOST = 1 << 18

    def __init__(self) -> None:
        """Begin a file."""
        self._seen: dict[bytes, int] = {}

    def digests(self, contents: Sequence[bytes], salt: bytes) -> list[bytes]:
        """Return a digest of 8 bytes for each content; those of equal contents differ, also from call to call."""
        seen, found = self._seen, []
        for digest in digests(contents, salt):
            before = seen.get(digest, 0)
            if before or len(seen) < self._MOST:
                seen[digest] = before + 1
            found.append(digest if not before else _digest(digest + before.to_bytes(8, "big"), salt))
        return found


def assign_splits(batch: Batch, settings: Settings, bad: BadRows, equal_rows: EqualRows) -> tuple[Batch, Sides]:
    """Assign each row its split, as a position in `SPLITS`, or -1 for neither.

    Args:
      batch: the rows.
      settings: how they are split.
      bad: rows set aside; extended here.
      equal_rows: the rows of the file that came before.

    Returns:
      The rows and their splits [rows]. Rows without a valid time are set aside, and not returned.
    """
    split = settings.split
    if isinstance(split, SplitByHash):
        return _by_hash(batch, split, str(settings.seed).encode(), bad, equal_rows)
    if isinstance(split, SplitByColumn):
        return batch, _by_column(batch, split)
    if isinstance(split, SplitByFile):
        return batch, np.full(len(batch), SPLITS.index(split.side), np.int8)
    if isinstance(split, SplitLeaveOneOut):  # known only when all rows of a user are together
        return batch, np.full(len(batch), _NEITHER, np.int8)
    return _by_time(batch, split, bad)


def _by_hash(batch: Batch, split: SplitByHash, salt: bytes, bad: BadRows, equal_rows: EqualRows) -> tuple[Batch, Sides]:
    if split.key is None:
        return batch, _sides(equal_rows.digests(batch.content(batch.index), salt), split)
    keys, reasons = keys_of(batch.column(split.key), batch.decimal)
    encoded = keys.dictionary_encode()
    missing = keys.is_null().to_numpy(zero_copy_only=False)
    sides = np.empty(len(batch), np.int8)
    of_keys = _sides(digests(encoded.dictionary.to_pylist(), salt), split)
    sides[~missing] = of_keys[encoded.indices.drop_null().to_numpy()]
    sides[missing] = _sides(equal_rows.digests(batch.content(batch.index[missing]), salt), split)
    return _without(batch, sides, f"{split.key!r}, the key of the split", reasons, bad)


def _sides(digests: Sequence[bytes], split: SplitByHash) -> Sides:
    """Compare each digest, as a number in [0, 1), with the share of the eval split."""
    numbers = np.frombuffer(b"".join(digests), dtype=">u8") >> np.uint64(11)
    return (numbers.astype(np.float64) / float(1 << 53) < split.eval_fraction).astype(np.int8)


def digests(contents: Iterable[bytes], salt: bytes = b"") -> list[bytes]:
    """Return a digest of 8 bytes for each content."""
    return [_digest(content, salt) for content in contents]


def _digest(content: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8, key=salt).digest()


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
            return lambda value: (value != "") is given  # empty text gives no token and no label
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
