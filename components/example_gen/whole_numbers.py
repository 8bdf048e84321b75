"""Handles ids that are written as 3 in one place and as 3.0 in another, as pandas does to a column with a gap."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import BadRows, Batch, flat_values, is_list
from components.example_gen.settings import Settings

_BEYOND = float(1 << 53)  # from here on a float64 is not every whole number


def with_whole_numbers(batch: Batch, settings: Settings, bad: BadRows) -> Batch:
    """Write 3.0 as 3 in the columns of `settings.whole_numbers`; text that is not a number stays as it is.

    A column of floats becomes one of whole numbers; its rows with a fraction are bad.
    """
    reasons: dict[int, str] = {}
    columns = dict(batch.columns)
    for name in settings.whole_numbers:
        column = columns[name]
        values = flat_values(column)
        if pa.types.is_floating(values.type):
            values, fractions = _whole(values)
            reasons |= {row: f"column {name!r}: {why}" for row, why in _of_rows(column, fractions).items()}
        elif not pa.types.is_integer(values.type):
            # Of a sign that is not the decimal one, only what cannot be thousands.
            values = pc.replace_substring_regex(values, rf"^([+-]?\d+)([{batch.decimal}]0*|[.]0)$", r"\1")
        columns[name] = pa.LargeListArray.from_arrays(column.offsets, values) if is_list(column.type) else values
    batch = dataclasses.replace(batch, columns=columns)
    return batch.set_aside(bad, dict(sorted(reasons.items()))) if reasons else batch


def _whole(values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        good = (numbers == np.floor(numbers)) & (np.abs(numbers) <= _BEYOND)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    whole = pa.array(np.where(good & valid, numbers, 0).astype(np.int64), mask=~valid)
    return whole, {
        # The value itself is not shown: tokens may be private.
        int(at): "a number that is not whole (or beyond 2**53), and `data.whole_numbers` names the column"
        for at in np.flatnonzero(valid & ~good)
    }


def _of_rows(column: pa.Array, reasons: dict[int, str]) -> dict[int, str]:
    if not is_list(column.type) or not reasons:
        return reasons
    rows = np.searchsorted(column.offsets.to_numpy(), list(reasons), side="right") - 1
    return dict(zip(rows.tolist(), reasons.values(), strict=True))


def count_whole_numbers(column: pa.Array) -> tuple[int, int]:
    """Count the values of a column of text that are written as 3, and as 3.0."""
    values = flat_values(column)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return 0, 0
    values = values.cast(pa.large_binary())
    with_point = pc.sum(pc.match_substring_regex(values, r"^[+-]?\d+[.,]0$")).as_py() or 0
    plain = pc.sum(pc.match_substring_regex(values, r"^[+-]?\d+$")).as_py() or 0
    return plain, with_point
