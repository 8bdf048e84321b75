"""Reads the columns that histories are made of: user, time, and the values that histories list."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.arrays import kind_of, tokens
from components.example_gen.filters import meets
from components.example_gen.history_section import Histories
from components.example_gen.labels import several_values
from components.example_gen.rows import BadRows, Batch, Mask, map_values
from components.example_gen.values import Value, instant, number
from components.example_gen.whole_numbers import keys_of
from embedding_core.errors import DataError

_NUMBER, _DATE = "number", "date"
_INT64 = 1 << 63
_WHOLE = r"^-?\d{1,18}$"  # texts that are surely an int64


class Events(NamedTuple):
    """The rows as events.

    Attributes:
      user: the user's key (`keys_of`).
      whole: floor of the time if it is a number; microseconds since 1970 if it is a date.
      fraction: fractional part of the time if it is a number, in [0, 1); 0 if it is a date.
      dated: whether the time is a date.
      remembered: whether later histories hold the event.
      values: the tokens that histories list, by source column.
    """

    user: pa.Array
    whole: npt.NDArray[np.int64]
    fraction: npt.NDArray[np.float64]
    dated: Mask
    remembered: Mask
    values: Mapping[str, pa.Array]

    def keep(self, mask: Mask) -> Events:
        """Keep the rows whose mask is true."""
        chosen = pa.array(mask)
        values = {name: column.filter(chosen) for name, column in self.values.items()}
        arrays = (self.whole[mask], self.fraction[mask], self.dated[mask], self.remembered[mask])
        return Events(self.user.filter(chosen), *arrays, values)

    def first_of_each_kind(self) -> dict[str, int]:
        """Return the position of the first time that is a number, and of the first date."""
        masks = {_NUMBER: ~self.dated, _DATE: self.dated}
        return {kind: int(np.argmax(mask)) for kind, mask in masks.items() if mask.any()}


def without_lists(batch: Batch, histories: Histories, bad: BadRows) -> Batch:
    """Set aside the rows that hold several values in a column that histories read."""
    reasons: dict[int, str] = {}
    for name in histories.read:
        reasons = {**several_values(name, batch.columns[name]), **reasons}
    return batch.set_aside(bad, dict(sorted(reasons.items()))) if reasons else batch


def events_of(batch: Batch, histories: Histories) -> tuple[Events, dict[int, str]]:
    """Read user, time and values of rows that hold at most one of each.

    Returns:
      The events, one for each row; and the reason why each bad row is bad, by position.

    Raises:
      DataError: a column whose values are listed holds floats.
    """
    reasons: dict[int, str] = {}
    remembered = np.ones(len(batch), dtype=bool)
    for condition in histories.conditions:
        met, wrong = meets(batch, condition)
        remembered &= met
        reasons = {**wrong, **reasons}
    values = {name: _listed(name, batch) for name in histories.sources}
    whole, fraction, dated, wrong = _times(batch.column(histories.time), batch.decimal)
    reasons = {**{row: f"column {histories.time!r}, the time: {text}" for row, text in wrong.items()}, **reasons}
    user, wrong = keys_of(batch.column(histories.user), batch.decimal)
    reasons |= {row: f"column {histories.user!r}, whose events make histories: {text}" for row, text in wrong.items()}
    for row in np.flatnonzero(user.is_null().to_numpy(zero_copy_only=False)).tolist():
        reasons[row] = f"column {histories.user!r}, whose events make histories: it has no value"
    return Events(user, whole, fraction, dated, remembered, values), reasons


def _listed(name: str, batch: Batch) -> pa.Array:
    column = tokens(name, batch.with_column(name, batch.column(name)))
    if kind_of(column) == "float" and column.null_count < len(column):
        raise DataError(
            f"{batch.place(int(batch.index[0]))}: column {name!r} holds floats, and histories list tokens: store "
            "them as text or whole numbers."
        )
    return column.cast(pa.large_binary()) if kind_of(column) == "bytes" else column


def _times(
    column: pa.Array, decimal: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], Mask, dict[int, str]]:
    """Return `whole`, `fraction` and `dated` of `Events`; and the reason for each bad row, by position."""
    rows = len(column)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    reasons = dict.fromkeys(np.flatnonzero(missing).tolist(), "it has no value")
    if pa.types.is_temporal(column.type):
        return _int64(column.cast(pa.timestamp("us"))), np.zeros(rows), ~missing, reasons
    if pa.types.is_integer(column.type):
        return _int64(column), np.zeros(rows), np.zeros(rows, bool), reasons
    is_text = kind_of(column) == "bytes"
    if is_text and pc.all(pc.match_substring_regex(column.cast(pa.large_binary()), _WHOLE)).as_py():
        return _int64(column.cast(pa.large_binary()).cast(pa.string())), np.zeros(rows), np.zeros(rows, bool), reasons
    known: list[tuple[int, float, bool]] = [(0, 0.0, False)]

    def position(value: Value) -> np.int64:
        known.append(_time(value, decimal))
        return np.int64(len(known) - 1)

    positions, wrong = map_values(column, position, np.int64(0))
    whole, fraction, dated = (np.array(part)[positions] for part in zip(*known, strict=True))
    return whole.astype(np.int64), fraction.astype(np.float64), dated.astype(bool), {**reasons, **wrong}


def _int64(column: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


def _time(value: Value, decimal: str) -> tuple[int, float, bool]:
    try:
        amount = number(value, decimal)
    except ValueError:
        return instant(value), 0.0, True
    if not math.isfinite(amount) or not -_INT64 <= amount < _INT64:
        raise ValueError(f"{value!r} is not a finite number within 64 bits")
    return math.floor(amount), amount - math.floor(amount), False
