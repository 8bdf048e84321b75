"""Declares which rows are read and which split each goes to: the sections of row filters and splits."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import AfterValidator, Field

from components.example_gen.values import day_of, instant
from embedding_core.schema import ChosenBy, Count, Listed, Mistakes, Rule, Section, Share, Text

PlainValue: TypeAlias = bool | int | float | str
Scalar = Annotated[PlainValue, Rule("one text, finite number or boolean")]


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"it must be a regular expression as Python's `re` reads it ({error}).") from error
    return value


def _bound(value: PlainValue) -> PlainValue:
    try:
        if isinstance(value, bool):
            raise ValueError
        _measure(value)
    except ValueError:
        raise ValueError("it must be a number, or a date such as '2011-11-01'.") from None
    return value


def _measure(bound: PlainValue) -> float:
    return instant(bound) if isinstance(bound, str) else bound


def _moment(value: str) -> str:
    try:
        day_of(value[:10])
        instant(value)
    except ValueError:
        raise ValueError("it must be a date or time such as 2011-11-01.") from None
    return value


Regex = Annotated[str, AfterValidator(_regex)]
Bound = Annotated[Scalar, AfterValidator(_bound)]


class Condition(NamedTuple):
    """One condition of a row filter.

    Attributes:
      column: name of the column.
      rule: key of the condition, such as "equals".
      value: what the rule compares with.
    """

    column: str
    rule: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column} {self.rule} {json.dumps(self.value)}"


class RowFilter(Section):
    """Keeps the rows that meet all given conditions; the others are left out of both splits.

    A missing value fails every condition but `not_equals`, `not_matches` and `present: false`.

    Attributes:
      column: the column that is tested; it need not be kept.
      present: whether the column must have a value (true) or must have none (false).
      equals, not_equals: value to compare with. If it is a number, text is compared as a number too ("5.0" equals 5).
      matches, not_matches: regular expression, searched for anywhere in the value; ^ and $ anchor it.
      min, max: bounds, both included: numbers, or dates such as 2011-11-01.
      in_: the allowed values; the key in YAML is `in`.
    """

    column: Text
    present: bool | None = None
    equals: Scalar | None = None
    not_equals: Scalar | None = None
    matches: Regex | None = None
    not_matches: Regex | None = None
    min: Bound | None = None
    max: Bound | None = None
    in_: Annotated[Listed[Scalar], Field(min_length=1)] | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that must hold of the column, in the order of the fields."""
        values = {name: getattr(self, name) for name in RowFilter.model_fields if name != "column"}
        given = {name: value for name, value in values.items() if value is not None}
        return tuple(Condition(self.column, name.rstrip("_"), value) for name, value in given.items())

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if not self.conditions:
            keys = ", ".join(key for key in self.keys() if key != "column")
            yield "", f"has no condition: give column {self.column!r} at least one of {keys}."
        low, high = self.min, self.max
        comparable = low is not None and high is not None and isinstance(low, str) == isinstance(high, str)
        if low is not None and high is not None and comparable and _measure(low) > _measure(high):
            yield "min", f"is {low!r}: it must be at most `max`, {high!r}; no row would pass."


class SplitByHash(Section):
    """Rows go to "eval" by a hash, so that a row keeps its split in every run.

    Attributes:
      by: "hash".
      eval_fraction: expected share of the rows (or keys) for "eval".
      key: column whose rows stay together, such as a customer; null hashes the whole row, and divides equal rows of a
        file among the splits. 100, 100.0 and the texts "100" and "100.0" are one key. A row without a value there is
        assigned as without a key.
    """

    by: Literal["hash"] = "hash"
    eval_fraction: Share = 0.2
    key: Text | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return () if self.key is None else (self.key,)


class SplitByColumn(Section):
    """A column names the split of its row; a row with any other value is in neither split, and is counted.

    Attributes:
      by: "column".
      column: the column.
      train: values of the column for "train".
      eval: values of the column for "eval".
    """

    by: Literal["column"] = "column"
    column: Text
    train: Listed[Scalar] = ("train",)
    eval: Listed[Scalar] = ("eval",)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return (self.column,)

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        both = [value for value in self.train if value in self.eval]
        if both:
            yield "eval", f"is {list(self.eval)!r}: {both[0]!r} is also in `split.train`; a value belongs to one split."
        for key in ("train", "eval"):
            if not getattr(self, key):
                yield key, "is []: it must name at least one value of the column."


class SplitByTime(Section):
    """Rows before a moment are "train", the others "eval".

    Attributes:
      by: "time".
      column: column of ISO dates or times, timestamps, or Unix times (seconds to nanoseconds); without a zone, UTC.
      before: the first moment of "eval": an ISO date or time.
    """

    by: Literal["time"] = "time"
    column: Text
    before: Annotated[str, AfterValidator(_moment)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return (self.column,)


class SplitLeaveOneOut(Section):
    """One row of each user is "eval", and the rows before it are "train"; it needs `data.histories`.

    All other rows are in neither split, and are counted: rows after the "eval" row, rows of the gap, and rows of users
    without an "eval" row.

    Attributes:
      by: "leave_one_out".
      held_out: which row of a user is for "eval": the "last", as for a final figure, or the "second_last", as for
        choosing settings.
      gap: number of rows directly before the held-out one that are in neither split; its history holds them. "last"
        with a gap of 1 trains on the same rows as "second_last" without a gap, as many published figures do.
    """

    by: Literal["leave_one_out"] = "leave_one_out"
    held_out: Literal["last", "second_last"] = "last"
    gap: Count = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads, beside those of the histories."""
        return ()


class SplitByFile(Section):
    """Rows of some files are "eval", those of the others "train": what `data.eval_path` makes, and no key `split`.

    Attributes:
      by: "file".
      side: the split of the rows of the files that are being read.
    """

    by: Literal["file"] = "file"
    side: Literal["train", "eval"] = "train"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return ()


_BY = ChosenBy("by", default={"by": "hash"})
Split = Annotated[SplitByHash | SplitByColumn | SplitByTime | SplitLeaveOneOut, _BY]
AnySplit = Annotated[SplitByHash | SplitByColumn | SplitByTime | SplitLeaveOneOut | SplitByFile, _BY]
