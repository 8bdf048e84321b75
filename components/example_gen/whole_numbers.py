"""Unifies ids that are written as 3 in some files and as 3.0 in others.

pandas writes 3.0, because it converts an integer column with missing values to float. Keys, by which rows are split and
joined, are always unified (`keys_of`); tokens are where `data.whole_numbers` asks for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import BadRows, Batch, Mask, flat_values, of_rows, rewrapped, time_texts, widened
from components.example_gen.settings import Settings
from components.example_gen.values import text_of

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
    for point in {".", decimal}:
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
