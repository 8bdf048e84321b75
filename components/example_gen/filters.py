"""Leaves out the rows that fail a condition of the row filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from components.example_gen.row_selection import Condition
from components.example_gen.rows import BadRows, Batch, Mask, map_values
from components.example_gen.values import Value, instant, number, same, text_of


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
        batch = _without(batch, met, reasons, bad)
    return batch


def meets(batch: Batch, condition: Condition) -> tuple[Mask, dict[int, str]]:
    """Return which rows meet the condition, and the reason for each row that it cannot compare, by position.

    The mask is true for rows that the condition cannot compare.
    """
    column = batch.column(condition.column)
    met, reasons = map_values(column, _predicate(condition, batch.decimal), _of_missing(condition))
    met[list(reasons)] = True
    return met, {row: f"column {condition.column!r}: {reason}" for row, reason in reasons.items()}


def _without(batch: Batch, met: Mask, reasons: dict[int, str], bad: BadRows) -> Batch:
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
            return lambda value: any(same(value, one, decimal) for one in given)
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
