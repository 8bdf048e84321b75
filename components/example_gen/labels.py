"""Converts labels to numbers or classes, and finds bad rows: no label, an invalid weight, or too many values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.rows import Batch, Mask, is_list, kind_of, map_values, tokens, values_per_row
from components.example_gen.settings import Label
from components.example_gen.splits import keys_of
from components.example_gen.tally import Labels
from components.example_gen.values import FALSE, TRUE, Value, number, same, short

_OTHER = -1.0


def several_values(name: str, column: pa.Array) -> dict[int, str]:
    """Find the bad rows that hold more than one value; return the reason for each, by position."""
    if not is_list(column.type):
        return {}
    lengths = values_per_row(column)
    return {
        int(row): f"column {name!r} holds {lengths[row]} values, and the configuration reads one a row; a categorical "
        "feature of several is `multivalent: true`"
        for row in np.flatnonzero(lengths > 1)
    }


def label_values(label: Label, batch: Batch, *, may_lack: bool = False) -> tuple[pa.Array, dict[int, str]]:
    """Compute the label: a number as float32, a class as text, or a binary label as 0, 1, or -1 for other values.

    Args:
      label: the label.
      batch: the rows.
      may_lack: whether a row may have no value, which becomes null; otherwise such a row is bad.

    Returns:
      The labels; and the reason for each bad row, by position. A row is bad if it has several values, a negative count,
      or a class with a line break, a NUL or invalid UTF-8. If the label is a regression or a count, or has `above`, a
      value that is not a finite number is bad too.
    """
    column = batch.columns[label.data_column]
    reasons = several_values(label.data_column, column)
    first = _first(column)
    if label.kind == "multiclass":
        made, bad = _texts(label, _first(tokens(label.data_column, batch)))
    else:
        values, bad = map_values(first, lambda value: _value_of(value, label, batch.decimal), float("nan"))
        bad = {row: f"label column {label.column!r}: {reason}" for row, reason in bad.items()}
        made = pa.array(values, pa.float32(), mask=np.isnan(values))
    if not may_lack:
        no_value = f"label column {label.column!r} has no value"
        missing = made.is_null().to_numpy(zero_copy_only=False)
        bad = {**{int(row): no_value for row in np.flatnonzero(missing)}, **bad}
    return made, {**bad, **reasons}


def _texts(label: Label, column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the classes as text, null for a missing or empty one, and by position why a class cannot be used."""
    texts = column if kind_of(column) == "bytes" else keys_of(column)[0]
    texts = pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.large_binary()), texts)
    distinct = [text for text in texts.unique().to_pylist() if text is not None]
    bad = {text: reason for text in distinct if (reason := _not_a_class(text))}
    if not bad:
        return texts, {}
    rows = np.flatnonzero(pc.is_in(texts, pa.array(list(bad), pa.large_binary())).to_numpy(zero_copy_only=False))
    return texts, {int(row): f"label column {label.column!r}: {bad[texts[int(row)].as_py()]}" for row in rows}


def _not_a_class(text: bytes) -> str:
    """Say why a text cannot be a class; empty if it can."""
    if any(sign in text for sign in (b"\n", b"\r", b"\0")):
        return f"the class {short(text.decode('utf-8', 'backslashreplace'))} has a line break or NUL"
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return f"the class {short(text.decode('utf-8', 'backslashreplace'))} is not UTF-8"
    return ""


def without_any(columns: Sequence[pa.Array], names: Sequence[str]) -> dict[int, str]:
    """Find the bad rows without a value in any of the label columns; return the reason for each, by position."""
    missing = np.all([column.is_null().to_numpy(zero_copy_only=False) for column in columns], axis=0)
    reason = f"none of the label columns {', '.join(map(repr, names))} has a value"
    return {int(row): reason for row in np.flatnonzero(missing)}


def _first(column: pa.Array) -> pa.Array:
    """Return the first value of each row; null if it has none."""
    if not is_list(column.type):
        return column
    offsets = column.offsets.to_numpy()
    return column.values.take(pa.array(offsets[:-1], mask=np.diff(offsets) == 0))


def _value_of(value: Value, label: Label, decimal: str) -> float:
    """Return a value of the label as a number: a binary one as 0, 1, or -1 for other values, and NaN if it is missing.

    Raises:
      ValueError: the value makes its row bad.
    """
    if value == "":
        return math.nan
    if label.kind != "binary":
        return _checked_number(value, label, decimal)
    if label.positive:
        return float(any(same(value, positive, decimal) for positive in label.positive))
    if label.above is not None:
        return _is_above(value, label.above, decimal)
    text = str(value).strip().casefold()
    if text in TRUE or text in FALSE:
        return float(text in TRUE)
    try:
        amount = float(number(value, decimal))
    except ValueError:
        return _OTHER
    return amount if amount in (0.0, 1.0) or np.isnan(amount) else _OTHER


def _checked_number(value: Value, label: Label, decimal: str) -> float:
    amount = float(np.float32(number(value, decimal)))
    if np.isinf(amount):
        raise ValueError(f"{short(value)} is not finite")
    if label.kind == "count" and amount < 0:
        raise ValueError(f"{short(value)} is below 0, and `label.kind` is 'count'")
    return amount


def _is_above(value: Value, bound: float, decimal: str) -> float:
    try:
        amount = number(value, decimal)
    except ValueError as error:
        raise ValueError(f"{error}, and `label.above` bounds numbers") from error
    if math.isinf(amount):
        raise ValueError(f"{short(value)} is not finite")
    return amount if math.isnan(amount) else float(amount > bound)


def count_labels(label: Label, batch: Batch, values: pa.Array, good: Mask, counts: Labels) -> None:
    """Count the data's values of a binary or multiclass label; note the first binary value that is not 0 or 1.

    Args:
      label: the column, and which of its values are 1.
      batch: the rows.
      values: the labels that `label_values` returned.
      good: mask of the rows that are not bad.
      counts: updated by this function.
    """
    if label.kind not in ("binary", "multiclass"):
        return
    column = _first(batch.columns[label.data_column]).filter(pa.array(good))
    for entry in pc.value_counts(column).to_pylist():
        counts.add(_shown(entry["values"]), entry["counts"])
    if label.kind == "multiclass":
        return
    numbers = values.to_numpy(zero_copy_only=False)  # a null is NaN
    counts.positive += int((numbers[good] == 1).sum())
    others = np.flatnonzero(good & (numbers == _OTHER))
    if len(others) and not counts.other:
        counts.other = batch.place(int(batch.index[others[0]]))


def _shown(value: object) -> str:
    return short(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)


def weight_reasons(name: str, column: pa.Array) -> dict[int, str]:
    """Find the bad rows whose weight is missing, not finite or below 0; return the reason for each, by position."""
    values = _first(column)
    is_valid = pc.and_(pc.greater_equal(values, 0), pc.is_finite(values))
    good = pc.fill_null(is_valid, False).to_numpy(zero_copy_only=False)
    return {
        int(row): f"sample weight {name!r} is {values[int(row)].as_py()!r}: it must be a finite number of at least 0"
        for row in np.flatnonzero(~good)
    }
