"""Summarizes the columns of a batch of rows. No TFX, no TensorFlow."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.column_summary import ColumnSummary
from components.example_gen.arrays import kind_of
from components.example_gen.rows import Mask, flat_values, values_per_row


def summary_of(column: pa.Array, chosen: Mask, *, known_to_differ: bool) -> ColumnSummary:
    """Summarize the chosen rows of a column.

    Args:
      column: texts or numbers, or lists of these.
      chosen: mask of the rows.
      known_to_differ: whether values of previous batches differ; if so, the values of this batch are not compared.
    """
    rows = column.filter(pa.array(chosen))
    counts = values_per_row(rows)
    counts = counts[counts > 0]
    if not len(counts):
        return ColumnSummary(kind=kind_of(column))
    values = flat_values(rows).drop_null()
    summary = ColumnSummary(
        kind=kind_of(column),
        rows=len(counts),
        values=int(counts.sum()),
        fewest=int(counts.min()),
        most=int(counts.max()),
        only="",
    )
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
        summary.smallest, summary.largest = float(numbers.min()), float(numbers.max())
        summary.total = float(numbers.sum())
    if not known_to_differ and pc.all(pc.equal(values, values[0])).as_py():
        summary.only = _digest(values[0].as_py())
    return summary


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
