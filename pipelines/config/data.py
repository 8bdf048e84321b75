"""The sections that say what the rows are: data, split, label, row filters."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from components.example_gen.csv_format import CsvFormat
from components.example_gen.formats import DataFormat
from components.example_gen.settings import MissingSpans
from pipelines.config.reading import Parse, Rule

__all__ = [
    "ColumnKind",
    "Columns",
    "Data",
    "Label",
    "RowFilter",
    "Scalar",
    "Spans",
    "Split",
    "SplitByColumn",
    "SplitByHash",
    "SplitByTime",
]


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise ValueError("it must be one text, number or boolean.")
    return value


def _is_regex(value: str) -> bool:
    try:
        re.compile(value)
    except re.error:
        return False
    return True


def _is_date(value: object) -> bool:
    try:
        datetime.date.fromisoformat(str(value))
    except ValueError:
        return False
    return True


def _bound(value: Any) -> Any:
    """A bound in a form to compare, float or datetime; None where it is neither a number nor a date or time."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        moment = datetime.datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", value))
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)


Scalar = Annotated[Any, Parse(_scalar)]
OptionalScalar = Annotated[Any, Parse(lambda value: None if value is None else _scalar(value))]


def _one_or_more(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(_scalar(one) for one in values)


OneOrMore = Annotated[tuple[Any, ...], Parse(_one_or_more)]
ColumnKind: TypeAlias = Literal["float", "token"]


def _columns(value: Any) -> Mapping[str, ColumnKind]:
    if isinstance(value, list | tuple):
        value = dict.fromkeys(value, "float")
    kinds = get_args(ColumnKind)
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("it must be a list of columns that hold numbers, or a mapping of columns to float or token.")
    for name, kind in value.items():
        if kind not in kinds:
            raise ValueError(f"the kind of column {name!r} must be one of {', '.join(kinds)}.")
    return dict(value)


Columns = Annotated[Mapping[str, ColumnKind], Parse(_columns)]
Text = Annotated[str, Rule(bool, "not empty")]
Regex = Annotated[str, Rule(_is_regex, "a regular expression as Python's `re` reads it")]
Moment = Annotated[str, Rule(lambda value: _is_date(value[:10]), "a date or time such as 2011-11-01")]
Fraction = Annotated[float, Rule(lambda value: 0 < value < 1, "a number between 0 and 1, both excluded")]
Rate = Annotated[float, Rule(lambda value: 0 <= value < 1, "a number from 0 (none) to below 1")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans:
    """Which of the spans in the path's placeholders are read, both ends included; null is open.

    Attributes:
      first: the first span: a date as 2011-10-31 for {YYYY}-{MM}-{DD}, a number for {SPAN}.
      last: the last span.
      missing: what becomes of days (or numbers) in between that have no file: "warn" says so, also in the report;
        "error" refuses to run.
      every: days (or numbers) from one file to the next: 7 if they are weekly. Others in between are not missing; if
        they are there, they are read.
    """

    first: OptionalScalar = None
    last: OptionalScalar = None
    missing: MissingSpans = "warn"
    every: Annotated[int, Rule(lambda value: value >= 1, "a whole number of at least 1")] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(CsvFormat):
    """Where the rows are, and how CSV files are written (the keys of `CsvFormat`).

    Attributes:
      path: a file, a folder, or a glob (what exists under exactly that name is meant literally);
        `package:<package>/<path>` for a file inside an installed package;
        {YYYY}, {MM}, {DD} or {SPAN} in it stand for the parts of a span.
      format: "csv", "tfrecord" (of tf.Example) or "parquet"; null goes by the extension.
      spans: which spans are read where the path has placeholders; null is all of them.
      allowed_bad_rate: share of rows that may be malformed, without a label, or with several values in a column of
        one; they are set aside and counted.
      whole_numbers: columns of tokens in which 3.0, as pandas writes a whole number in a column with gaps, is read as
        3; otherwise both are tokens as they are, and a mix of them is counted in the report.
    """

    SHORT = "path"

    path: Text
    format: DataFormat | None = None
    spans: Spans | None = None
    allowed_bad_rate: Rate = 0.0
    whole_numbers: tuple[Text, ...] = ()

    @property
    def by_date(self) -> bool:
        """Whether the path's spans are dates."""
        return all(part in self.path for part in ("{YYYY}", "{MM}", "{DD}"))

    @property
    def has_spans(self) -> bool:
        """Whether the path has placeholders for spans."""
        return any(part in self.path for part in ("{YYYY}", "{MM}", "{DD}", "{SPAN}"))

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """The rules over several fields."""
        yield from super().mistakes()
        if self.format not in ("csv", None) and self.changed:
            yield self.changed[0], f"is given, and `data.format` is {self.format!r}: it is for CSV files; leave it out."
        if self.has_spans and not self.by_date and "{SPAN}" not in self.path:
            yield "path", f"is {self.path!r}: a date needs all of {{YYYY}}, {{MM}} and {{DD}}; or use {{SPAN}}."
        if self.by_date and "{SPAN}" in self.path:
            yield "path", f"is {self.path!r}: spans are dates or numbers; use {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}} alone."
        if self.spans is None:
            return
        if not self.has_spans:
            yield (
                "spans",
                f"is given, but `path` {self.path!r} has no {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}}; put it there.",
            )
            return
        for key in ("first", "last"):
            value = getattr(self.spans, key)
            good = _is_date(value) if self.by_date else isinstance(value, int)
            if value is not None and not good:
                kind = "a date such as 2011-10-31" if self.by_date else "a whole number"
                yield f"spans.{key}", f"is {value!r}: it must be {kind}, as the placeholders of `data.path` are."


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitByHash:
    """Rows go to "eval" by a hash, so that a row keeps its split in every run.

    Attributes:
      eval_fraction: share of the rows (or keys) for "eval".
      key: column whose rows stay together, such as a customer; null hashes the whole row.
    """

    by: Literal["hash"] = "hash"
    eval_fraction: Fraction = 0.2
    key: Text | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitByColumn:
    """A column says to which split a row belongs; rows with any other value are in none.

    Attributes:
      column: the column.
      train: its values for "train".
      eval: its values for "eval".
    """

    by: Literal["column"]
    column: Text
    train: tuple[Scalar, ...] = ("train",)
    eval: tuple[Scalar, ...] = ("eval",)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """The rules over several fields."""
        both = [value for value in self.train if value in self.eval]
        if both:
            yield "eval", f"is {list(self.eval)!r}: {both[0]!r} is also in `split.train`; a value belongs to one split."
        for key in ("train", "eval"):
            if not getattr(self, key):
                yield key, "is []: it must name at least one value of the column."


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitByTime:
    """Rows before a moment are "train", the others "eval".

    Attributes:
      column: holds ISO dates or times, timestamps, or Unix times; without a zone, UTC.
      before: the first moment of "eval": an ISO date or time.
    """

    by: Literal["time"]
    column: Text
    before: Moment


Split: TypeAlias = SplitByHash | SplitByColumn | SplitByTime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
    """What is predicted: 0 or 1, true or false, yes or no; one class against all others; or a number above a bound.

    Attributes:
      column: the column of the data that holds it, or
      positive: the value (or list of values) of the column that is predicted, as the data writes it; every other value
        is 0.
      above: a number; the label is 1 if the column's number is greater, else 0.
      key: the key under which the `preprocessing_fn` puts it, and
      columns: the columns that the function reads for the label only: they are not there when the model serves, and no
        feature may read them. A list (of numbers), or a mapping to "float" or "token".
    """

    SHORT = "column"

    column: Text | None = None
    positive: OneOrMore = ()
    above: float | None = None
    key: Text | None = None
    columns: Columns = dataclasses.field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the data that hold the answer."""
        return (*([self.column] if self.column else []), *self.columns)

    @property
    def transformed(self) -> str:
        """The key of the label in Transform's output."""
        return self.key or "label"

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """The rules over several fields."""
        if (self.column is None) == (self.key is None):
            yield "", "must have either `column` (of the data) or `key` (that your `preprocessing_fn` returns)."
        elif self.positive and self.above is not None:
            yield "above", f"is {self.above!r}, and `label.positive` is given too: one of them says what is 1."
        elif self.key is not None and self.above is not None:
            yield "above", f"is {self.above!r}, but `label.column` is null: it bounds the numbers of that column."
        elif self.key is not None and self.positive:
            yield (
                "positive",
                f"is {list(self.positive)!r}, but `label.column` is null: it says which of its values is 1.",
            )
        elif self.key is None and self.columns:
            yield (
                "columns",
                f"is {list(self.columns)!r}, but `label.key` is null: they are read for a computed label only.",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Rows that do not pass are left out, from "train" and "eval" both. All conditions given must hold.

    Attributes:
      column: the column looked at.
      present: whether the column must have a value (true) or must have none (false).
      equals, not_equals: a value.
      matches, not_matches: a regular expression, found anywhere in the value; anchor it with ^ and $.
      min, max: bounds, both included: numbers, or dates such as 2011-11-01.
      in_: the allowed values, written `in`.
    """

    column: Text
    present: bool | None = None
    equals: OptionalScalar = None
    not_equals: OptionalScalar = None
    matches: Regex | None = None
    not_matches: Regex | None = None
    min: OptionalScalar = None
    max: OptionalScalar = None
    in_: tuple[Scalar, ...] | None = None

    @property
    def conditions(self) -> tuple[str, ...]:
        """The fields that say what must hold of the column."""
        fields = [field.name for field in dataclasses.fields(self) if field.name != "column"]
        return tuple(name for name in fields if getattr(self, name) is not None)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """The rules over several fields."""
        if not self.conditions:
            fields = [field.name.rstrip("_") for field in dataclasses.fields(self) if field.name != "column"]
            yield "", f"has no condition: give column {self.column!r} at least one of {', '.join(fields)}."
        yield from self._bounds()

    def _bounds(self) -> Iterator[tuple[str, str]]:
        low, high = _bound(self.min), _bound(self.max)
        if type(low) is type(high) and low is not None and low > high:
            yield "min", f"is {self.min!r}: it must be at most `max`, {self.max!r}; no row would pass."
