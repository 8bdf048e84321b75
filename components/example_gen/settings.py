"""What the configuration says about the rows that go in: columns, filters, split. No TFX, no TensorFlow."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from components.example_gen.csv_format import CsvFormat
from components.example_gen.values import instant
from embedding_core.errors import ConfigError, nearest

__all__ = [
    "ColumnSplit",
    "Gaps",
    "HashSplit",
    "LabelColumn",
    "MissingSpans",
    "RowFilter",
    "Settings",
    "Spans",
    "Split",
    "TimeSplit",
]

Kind: TypeAlias = Literal["token", "float"]
MissingSpans: TypeAlias = Literal["warn", "error"]
_SHOWN = 5
_RULES = ("present", "equals", "not_equals", "in", "matches", "not_matches", "min", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFilter:
    """A condition on one column; rows that fail it are left out and counted.

    A missing value (null, or "" in CSV) fails every condition but `not_equals`, `not_matches` and `present: false`.

    Attributes:
      column: name of the column; it need not be one that is kept.
      rule: "present" (true or false), "equals", "not_equals", "in" (a list), "matches", "not_matches" (a regular
        expression found anywhere in the text; anchor it with ^ and $), "min", "max" (inclusive; a number or a date).
      value: what the rule compares with; a number compares as a number also with text ("5.0" equals 5).

    Raises:
      ConfigError: the value is none that the rule takes.
    """

    column: str
    rule: str
    value: Any

    def __post_init__(self) -> None:
        problem = _problem(self.rule, self.value)
        if problem:
            raise ConfigError(f"`{self.rule}` of the row filter on {self.column!r} is {self.value!r}: {problem}.")

    def __str__(self) -> str:
        return f"{self.column} {self.rule} {json.dumps(self.value)}"


def _problem(rule: str, value: object) -> str:
    if rule not in _RULES:
        return f"unknown rule; {nearest(rule, _RULES)}"
    if rule == "present":
        return "" if isinstance(value, bool) else "it must be true or false"
    if rule == "in":
        return "" if isinstance(value, list) and value else "it must be a list of at least one value"
    if rule in {"matches", "not_matches"}:
        return _regex_problem(value)
    if rule in {"min", "max"}:
        return _bound_problem(value)
    return "" if isinstance(value, (str, bool, int, float)) else "it must be a text, a number, true or false"


def _regex_problem(value: object) -> str:
    try:
        re.compile(cast(str, value))
    except (re.error, TypeError) as error:
        return f"it must be a regular expression ({error})"
    return ""


def _bound_problem(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ""
    try:
        instant(cast(str, value))
    except (ValueError, TypeError):
        return "it must be a number, or a date such as '2011-11-01'"
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HashSplit:
    """Rows go by a hash of their content, or of one column, so that a row is always on the same side.

    Attributes:
      eval_fraction: expected share of the eval split, 0 < share < 1.
      key: rows with the same value in this column go to the same split; None hashes all columns of the row.
        A row without a value there goes by its content.
    """

    eval_fraction: float = 0.2
    key: str | None = None

    def __post_init__(self) -> None:
        fraction = self.eval_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
            raise ConfigError(f"`eval_fraction` of the split is {fraction!r}: it must lie between 0 and 1.")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return () if self.key is None else (self.key,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnSplit:
    """Rows go by the value of a column; rows with any other value go nowhere, and are counted."""

    column: str
    train: tuple[Any, ...] = ("train",)
    eval: tuple[Any, ...] = ("eval",)

    def __post_init__(self) -> None:
        for side in ("train", "eval"):
            value = getattr(self, side)
            values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            if not values:
                raise ConfigError(f"`{side}` of the split is {value!r}: it must name at least one value.")
            object.__setattr__(self, side, values)
        both = [value for value in self.train if value in self.eval]
        if both:
            raise ConfigError(f"{both[0]!r} is a value of both sides of the split: it must be of one.")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return (self.column,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """Rows before a time are the train split, the others the eval split.

    Attributes:
      column: ISO dates or times, timestamps, or Unix times (seconds to nanoseconds); without a zone, UTC.
      before: the first instant of the eval split, an ISO date or time.
    """

    column: str
    before: str

    def __post_init__(self) -> None:
        try:
            datetime.date.fromisoformat(str(self.before)[:10])
            instant(self.before)
        except ValueError as error:
            raise ConfigError(
                f"`before` of the split is {self.before!r}: it must be a date such as '2011-11-01'."
            ) from error

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the split reads."""
        return (self.column,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans:
    """The spans that are read, where the pattern of the files has {YYYY}, {MM} and {DD}, or {SPAN}.

    Attributes:
      pattern: the pattern of the files, with its placeholders.
      first: the first span (a day as its ordinal, see `datetime.date.toordinal`).
      last: the last span, included.
      bounded: which of "first" and "last" were given; an open end is that of the files.
      missing: what becomes of spans in between that have no file: "warn" counts them, "error" refuses to run.
      every: how far a span is from the next one: 7 for weekly files.
    """

    pattern: str
    first: int = 0
    last: int = 1 << 62
    bounded: tuple[str, ...] = ()
    missing: MissingSpans = "warn"
    every: int = 1

    @classmethod
    def from_bounds(
        cls, pattern: str, first: Any = None, last: Any = None, missing: MissingSpans = "warn", every: int = 1
    ) -> Spans:
        """The spans from `first` to `last`, both included: ISO dates, or numbers for {SPAN}; None is open.

        Raises:
          ConfigError: the pattern has no placeholders, a bound is none of its kind, or `every` is below 1.
        """
        by_date = _by_date(pattern)
        if missing not in get_args(MissingSpans):
            raise ConfigError(f"`missing` of the spans is {missing!r}: it must be warn or error.")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"`every` of the spans is {every!r}: it must be a whole number of at least 1.")
        if by_date == ("{SPAN}" in pattern):
            raise ConfigError(f"`spans` need {{YYYY}}, {{MM}} and {{DD}}, or {{SPAN}}, in the pattern {pattern!r}.")
        bounds: dict[str, int] = {}
        for name, value in (("first", first), ("last", last)):
            try:
                if value is not None:
                    bounds[name] = datetime.date.fromisoformat(value).toordinal() if by_date else int(value)
            except (TypeError, ValueError) as error:
                kind = "a date such as '2011-11-01'" if by_date else "a whole number"
                raise ConfigError(f"`{name}` of the spans is {value!r}: it must be {kind}.") from error
        return cls(pattern=pattern, bounded=tuple(bounds), missing=missing, every=every, **bounds)

    def gaps(self, found: Collection[int]) -> Gaps:
        """The spans of the range that are not among those found.

        Args:
          found: the spans that have files; at least one.
        """
        low = self.first if "first" in self.bounded else min(found)
        high = self.last if "last" in self.bounded else max(found)
        inside = {span for span in found if low <= span <= high}
        expected = range(low, high + 1, self.every)
        absent = (span for span in expected if span not in inside)
        shown = tuple(str(self.name_of(span)) for span in itertools.islice(absent, _SHOWN))
        return Gaps(len(expected) - sum(span in expected for span in inside), shown)

    def name_of(self, span: int) -> str | int:
        """The span as a person names it: an ISO date, or its number."""
        return datetime.date.fromordinal(span).isoformat() if _by_date(self.pattern) else span


class Gaps(NamedTuple):
    """The spans without a file: how many, and the first few."""

    total: int
    first: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.first) + (", ..." if self.total > len(self.first) else "")


def _by_date(pattern: str) -> bool:
    return all(part in pattern for part in ("{YYYY}", "{MM}", "{DD}"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """The column of the data that is predicted; its values become 0 and 1.

    Attributes:
      column: name of the column.
      positive: the values that are 1, all others being 0; empty if the data holds 0 and 1, true and false, or yes and
        no, or `above` is given.
      above: the bound that a number must exceed to be 1; None without one.

    Raises:
      ConfigError: `above` is not a number, or `positive` is given too.
    """

    column: str
    positive: tuple[Any, ...] = ()
    above: float | None = None

    def __post_init__(self) -> None:
        if self.above is None:
            return
        if isinstance(self.above, bool) or not isinstance(self.above, int | float) or not math.isfinite(self.above):
            raise ConfigError(f"`above` of the label is {self.above!r}: it must be a number.")
        if self.positive:
            raise ConfigError(f"`above` of the label is {self.above!r}, and `positive` is given too: give one of them.")


Split: TypeAlias = HashSplit | ColumnSplit | TimeSplit
_SPLITS: Mapping[str, type[Any]] = {"hash": HashSplit, "column": ColumnSplit, "time": TimeSplit}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How rows become examples.

    Attributes:
      columns: each column that is kept, "token" (as it is in the data) or "float" (float32; CSV text is parsed).
      row_filters: rows must meet all of them.
      split: which rows are the train and which the eval split.
      allowed_bad_rate: share of the rows read that may be set aside as bad, 0 to 1.
      seed: of the hash split and of the order of rows.
      passthrough: keep all other columns too (CSV: as tokens; TFRecord: each record as it is).
      spans: which spans are read; None leaves it to TFX, which reads the latest.
      csv: how CSV files are written.
      label: the column of the label, if it is one of the data; rows without it are bad.
      weight: the column of the sample weight; rows without a weight of 0 or more are bad.
      single_valued: columns of one value a row at most; rows with several are bad.
      whole_numbers: token columns in which 3.0 is written as 3.
      private: whether a column is private; messages then show digests of texts that are not numbers or times.

    Raises:
      ConfigError: a value breaks its rule.
    """

    columns: Mapping[str, Kind]
    row_filters: tuple[RowFilter, ...] = ()
    split: Split = HashSplit()
    allowed_bad_rate: float = 0.0
    seed: int = 0
    passthrough: bool = False
    spans: Spans | None = None
    csv: CsvFormat = dataclasses.field(default_factory=CsvFormat)
    label: LabelColumn | None = None
    weight: str | None = None
    single_valued: tuple[str, ...] = ()
    whole_numbers: tuple[str, ...] = ()
    private: bool = False

    def __post_init__(self) -> None:
        for name, kind in self.columns.items():
            if kind not in {"token", "float"}:
                raise ConfigError(f"column {name!r} is {kind!r}: it must be 'token' or 'float'.")
        if not self.columns and not self.passthrough:
            raise ConfigError("`columns` is empty: name at least one column, or set `passthrough`.")
        rate = self.allowed_bad_rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ConfigError(f"`allowed_bad_rate` is {rate!r}: it must lie between 0 and 1.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"`seed` is {self.seed!r}: it must be a whole number.")
        for name in self.whole_numbers:
            if self.columns.get(name) != "token":
                raise ConfigError(f"`whole_numbers` names {name!r}: it must be a column that is kept as a token.")

    @property
    def needed(self) -> tuple[str, ...]:
        """Every column that is kept, filtered by or split by, by name."""
        return tuple(sorted({*self.columns, *(f.column for f in self.row_filters), *self.split.columns}))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read the JSON that the component is given.

        Raises:
          ConfigError: not such JSON, an unknown key, or a value that breaks its rule.
        """
        try:
            data = dict(json.loads(text))
            data["columns"] = dict(data.get("columns") or {})
            data["row_filters"] = tuple(rule for entry in data.get("row_filters") or () for rule in _filters(entry))
            data["split"] = _split(dict(data.get("split") or {"by": "hash"}))
            data["csv"] = _csv(data.get("csv") or {})
            data["label"] = None if data.get("label") is None else _label(data["label"])
            for key in ("single_valued", "whole_numbers"):
                data[key] = tuple(data.get(key) or ())
            data["spans"] = None if data.get("spans") is None else Spans.from_bounds(**data["spans"])
        except (json.JSONDecodeError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"these are no settings of ExampleGen: {text[:200]!r} ({error}).") from error
        return cast(Settings, _build(cls, data, "the settings"))


def _build(cls: type[Any], data: Mapping[str, Any], owner: str) -> Any:
    known = [field.name for field in dataclasses.fields(cls)]
    for key in data:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {owner}: {nearest(key, known)}")
    for field in dataclasses.fields(cls):
        if field.default is field.default_factory is dataclasses.MISSING and field.name not in data:
            raise ConfigError(f"`{field.name}` is missing in {owner}: add it.")
    return cls(**data)


def _filters(entry: Mapping[str, Any]) -> list[RowFilter]:
    rules = {key: value for key, value in entry.items() if key != "column"}
    if "column" not in entry or not rules:
        raise ConfigError(f"row filter {entry!r}: it must have `column` and at least one of {', '.join(_RULES)}.")
    return [RowFilter(column=entry["column"], rule=rule, value=value) for rule, value in rules.items()]


def _csv(data: Mapping[str, Any]) -> CsvFormat:
    return CsvFormat.from_mapping(data)


def _label(data: Mapping[str, Any]) -> LabelColumn:
    positive = tuple(data.get("positive") or ())
    return cast(LabelColumn, _build(LabelColumn, {**data, "positive": positive}, "the label"))


def _split(data: dict[str, Any]) -> Split:
    by = data.pop("by", None)
    if by not in _SPLITS:
        raise ConfigError(f"`by` of the split is {by!r}: it must be one of {', '.join(_SPLITS)}.")
    return cast(Split, _build(_SPLITS[by], data, f"the split by {by}"))
