"""Declares which spans of the data are read, and finds those that have no file."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Collection
from typing import Literal, NamedTuple

from components.example_gen.row_selection import Scalar
from components.example_gen.values import day_of
from embedding_core.schema import Listed, Mistakes, Positive, Section, Text

_SHOWN = 5
_OPEN = (0, 1 << 62)


def is_dated(pattern: str) -> bool:
    """Return whether the spans of a file pattern are dates, that is, whether it has {YYYY}, {MM} and {DD}."""
    return all(part in pattern for part in ("{YYYY}", "{MM}", "{DD}"))


class Gaps(NamedTuple):
    """The spans without a file: their number, and the first few of them as text."""

    total: int = 0
    first: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.first) + (", ..." if self.total > len(self.first) else "")


class Spans(Section):
    """Which spans of the path's placeholders are read; both bounds are included, null leaves a bound open.

    Attributes:
      first: the first span: a date such as 2011-10-31 for {YYYY}-{MM}-{DD}, a number for {SPAN}.
      last: the last span.
      missing: what to do about expected spans without a file: "warn" names them, also in the report; "error" refuses to
        run.
      every: number of days (or numbers) from one file to the next, such as 7 for weekly files. Files in between are
        read too, but may be missing.
      without: spans that are left out, for instance one whose files are damaged.
    """

    first: Scalar | None = None
    last: Scalar | None = None
    missing: Literal["warn", "error"] = "warn"
    every: Positive = 1
    without: Listed[Scalar] = ()

    def bound_mistakes(self, pattern: str) -> Mistakes:
        """Yield the bounds, and spans left out, that do not fit the placeholders of a file pattern."""

        def fits(span: Scalar | None) -> bool:
            return _is_date(span) if is_dated(pattern) else type(span) is int

        for key, value in (("first", self.first), ("last", self.last), *(("without", span) for span in self.without)):
            if value is not None and not fits(value):
                kind = "a date such as 2011-10-31" if is_dated(pattern) else "a whole number"
                yield key, f"is {value!r}: it must be {kind}, as the placeholders of {pattern!r} are."
        bounds = [str(bound) for bound in (self.first, self.last) if fits(bound)]
        if len(bounds) == 2 and _number(bounds[0], pattern) > _number(bounds[1], pattern):
            yield "first", f"is {self.first!r}: it must be at most `last`, {self.last!r}; exchange the two."


class PatternSpans(Spans):
    """The spans to read, with the file pattern that they belong to.

    Attributes:
      pattern: file pattern relative to the data folder, with the placeholders of its spans.
    """

    pattern: Text

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if is_dated(self.pattern) == ("{SPAN}" in self.pattern):
            yield "pattern", f"is {self.pattern!r}: it must have {{YYYY}}, {{MM}} and {{DD}}, or {{SPAN}}."
        else:
            yield from self.bound_mistakes(self.pattern)

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers of the first and the last span: `date.toordinal()` of a date; 0 and 2**62 if a bound is open."""
        low, high = (
            open_end if bound is None else _number(str(bound), self.pattern)
            for bound, open_end in zip((self.first, self.last), _OPEN, strict=True)
        )
        return low, high

    @property
    def left_out(self) -> frozenset[int]:
        """The numbers of the spans that are left out."""
        return frozenset(_number(str(span), self.pattern) for span in self.without)

    def gaps(self, present: Collection[int]) -> Gaps:
        """Find the expected spans without a file; the range's first span and every `every`-th after it are expected.

        An open bound of the range is the smallest or largest span present.

        Args:
          present: the numbers of the spans that have files; at least one.
        """
        first, last = self.numbers
        low = min(present) if self.first is None else first
        high = max(present) if self.last is None else last
        inside = {span for span in present if low <= span <= high}
        expected = range(low, high + 1, self.every)
        inside |= {span for span in self.left_out if low <= span <= high}
        absent = (span for span in expected if span not in inside)
        shown = tuple(str(self.name_of(span)) for span in itertools.islice(absent, _SHOWN))
        total = max(0, (high - low) // self.every + 1)  # `len(expected)` would fail above 2**63 - 1
        return Gaps(total - sum(span in expected for span in inside), shown)

    def name_of(self, number: int) -> str | int:
        """Return the name of a span as users write it: an ISO date, or the number itself."""
        return datetime.date.fromordinal(number).isoformat() if is_dated(self.pattern) else number


def _number(span: str, pattern: str) -> int:
    return day_of(span).toordinal() if is_dated(pattern) else int(span)


def _is_date(value: object) -> bool:
    try:
        day_of(str(value))
    except ValueError:
        return False
    return True
