"""The sections that say what the rows are: data, split, label, row filters."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from components.example_gen.csv_format import CsvFormat
from components.example_gen.formats import DataFormat
from components.example_gen.settings import MissingSpans
from embedding_core.schema import ChosenBy, Listed, Mistakes, Positive, Rule, Section, Share, Text


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"it must be a regular expression as Python's `re` reads it ({error}).") from error
    return value


def _moment(value: str) -> str:
    if not _is_date(value[:10]):
        raise ValueError("it must be a date or time such as 2011-11-01.")
    return value


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


def _one_or_more(value: Any) -> Any:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else [value]


def _as_numbers(value: Any) -> Any:
    """The columns of a list are columns of numbers."""
    texts = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return dict.fromkeys(value, "float") if texts else value


Scalar = Annotated[bool | int | float | str, Rule("one text, number or boolean")]
OneOrMore = Annotated[
    Listed[Scalar],
    BeforeValidator(_one_or_more),
    WithJsonSchema({"type": ["array", "string", "number", "boolean", "null"]}),
]
ColumnKind: TypeAlias = Literal["float", "token"]
_TEXTS = {"type": "array", "items": {"type": "string"}}
Columns = Annotated[
    Mapping[Text, ColumnKind],
    BeforeValidator(_as_numbers),
    Rule("a list of columns that hold numbers, or a mapping of columns to float or token"),
    WithJsonSchema({"anyOf": [_TEXTS, {"type": "object", "additionalProperties": {"enum": ["float", "token"]}}]}),
]
Regex = Annotated[str, AfterValidator(_regex)]
Moment = Annotated[str, AfterValidator(_moment)]
Rate = Annotated[float, Field(ge=0, lt=1), Rule("a number from 0 (none) to below 1")]


class Spans(Section):
    """Which of the spans in the path's placeholders are read, both ends included; null is open.

    Attributes:
      first: the first span: a date as 2011-10-31 for {YYYY}-{MM}-{DD}, a number for {SPAN}.
      last: the last span.
      missing: what becomes of days (or numbers) in between that have no file: "warn" says so, also in the report;
        "error" refuses to run.
      every: days (or numbers) from one file to the next: 7 if they are weekly. Others in between are not missing; if
        they are there, they are read.
    """

    first: Scalar | None = None
    last: Scalar | None = None
    missing: MissingSpans = "warn"
    every: Positive = 1


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
    whole_numbers: Listed[Text] = ()

    @property
    def by_date(self) -> bool:
        """Whether the path's spans are dates."""
        return all(part in self.path for part in ("{YYYY}", "{MM}", "{DD}"))

    @property
    def has_spans(self) -> bool:
        """Whether the path has placeholders for spans."""
        return any(part in self.path for part in ("{YYYY}", "{MM}", "{DD}", "{SPAN}"))

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
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


class SplitByHash(Section):
    """Rows go to "eval" by a hash, so that a row keeps its split in every run.

    Attributes:
      by: "hash".
      eval_fraction: share of the rows (or keys) for "eval".
      key: column whose rows stay together, such as a customer; null hashes the whole row.
    """

    by: Literal["hash"] = "hash"
    eval_fraction: Share = 0.2
    key: Text | None = None


class SplitByColumn(Section):
    """A column says to which split a row belongs; rows with any other value are in none.

    Attributes:
      by: "column".
      column: the column.
      train: its values for "train".
      eval: its values for "eval".
    """

    by: Literal["column"]
    column: Text
    train: Listed[Scalar] = ("train",)
    eval: Listed[Scalar] = ("eval",)

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
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
      column: holds ISO dates or times, timestamps, or Unix times; without a zone, UTC.
      before: the first moment of "eval": an ISO date or time.
    """

    by: Literal["time"]
    column: Text
    before: Moment


Split = Annotated[SplitByHash | SplitByColumn | SplitByTime, ChosenBy("by", default={"by": "hash"})]


class Label(Section):
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
    columns: Columns = Field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the data that hold the answer."""
        return (*([self.column] if self.column else []), *self.columns)

    @property
    def transformed(self) -> str:
        """The key of the label in Transform's output."""
        return self.key or "label"

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
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


class RowFilter(Section):
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
    equals: Scalar | None = None
    not_equals: Scalar | None = None
    matches: Regex | None = None
    not_matches: Regex | None = None
    min: Scalar | None = None
    max: Scalar | None = None
    in_: Listed[Scalar] | None = None

    @property
    def conditions(self) -> tuple[str, ...]:
        """The fields that say what must hold of the column."""
        names = [name for name in RowFilter.model_fields if name != "column"]
        return tuple(name for name in names if getattr(self, name) is not None)

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
        if not self.conditions:
            keys = ", ".join(key for key in self.keys() if key != "column")
            yield "", f"has no condition: give column {self.column!r} at least one of {keys}."
        yield from self._bounds()

    def _bounds(self) -> Mistakes:
        low, high = _bound(self.min), _bound(self.max)
        if type(low) is type(high) and low is not None and low > high:
            yield "min", f"is {self.min!r}: it must be at most `max`, {self.max!r}; no row would pass."
