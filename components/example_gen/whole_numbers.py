"""Unifies ids that are written as 3 in some files and as 3.0 in others.

pandas writes 3.0, because it converts an integer column with missing values to float.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import BadRows, Batch, flat_values, is_list
from components.example_gen.settings import Settings

_BEYOND = float(1 << 53)  # above it, float64 cannot represent every whole number


def with_whole_numbers(batch: Batch, settings: Settings, bad: BadRows) -> Batch:
    """Write 3.0 as 3 in the columns of `settings.whole_numbers`; other text stays as it is.

    A float column becomes int64. Its rows with a fraction, or with a number beyond 2**53, are bad.
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
            # If the point is not the decimal separator, it may separate thousands (3.000), so only ".0" is removed.
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
        # Leaves out the value itself, because tokens may be private.
        int(at): "a number that is not whole (or beyond 2**53), and `data.whole_numbers` names the column"
        for at in np.flatnonzero(valid & ~good)
    }


def _of_rows(column: pa.Array, reasons: dict[int, str]) -> dict[int, str]:
    if not is_list(column.type) or not reasons:
        return reasons
    rows = np.searchsorted(column.offsets.to_numpy(), list(reasons), side="right") - 1
    return dict(zip(rows.tolist(), reasons.values(), strict=True))


def count_whole_numbers(column: pa.Array) -> tuple[int, int]:
    """Count the values of a text column that are written like 3, and those like 3.0; zeros for numbers and times."""
    values = flat_values(column)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_temporal(values.type):
        return 0, 0
    values = values.cast(pa.large_binary())
    with_point = pc.sum(pc.match_substring_regex(values, r"^[+-]?\d+[.,]0$")).as_py() or 0
    plain = pc.sum(pc.match_substring_regex(values, r"^[+-]?\d+$")).as_py() or 0
    return plain, with_point
