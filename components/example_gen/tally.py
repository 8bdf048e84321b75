"""Counts the rows that were kept, left out and set aside; the executor adds the counts up. No TFX, no TensorFlow."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa

from components.column_summary import ColumnSummary, summaries_of_json
from components.example_gen.row_selection import SplitByFile
from components.example_gen.rows import SHOWN, BadRows, summary_of
from components.example_gen.settings import Histories, Label, Settings
from components.example_gen.splits import SPLITS, Sides
from components.example_gen.values import DATE, NOT_A_MOMENT, stands_for_missing
from embedding_core.errors import DataError, nearest
from embedding_core.schema import Json

_DISTINCT = 100


Problems: TypeAlias = Iterator[tuple[bool, DataError]]
"""Whether a problem is final (further rows cannot change it), and the problem as an error."""


class TooFewRowsError(DataError):
    """The data has no rows, none for a split, or none with a positive label: further rows may change that."""


@dataclasses.dataclass
class Labels:
    """The values of the label as they are in the data.

    Attributes:
      values: rows per value, of the first 100 distinct values.
      positive: rows whose label is 1.
      other: place of the first value that is neither 0 nor 1; "" if there is none.
    """

    values: dict[str, int] = dataclasses.field(default_factory=dict)
    positive: int = 0
    other: str = ""

    def add(self, value: str, rows: int) -> None:
        """Count rows of one value."""
        if value in self.values or len(self.values) < _DISTINCT:
            self.values[value] = self.values.get(value, 0) + rows

    def add_all(self, other: Labels) -> None:
        """Add the counts of further files."""
        for value, rows in other.values.items():
            self.add(value, rows)
        self.positive += other.positive
        self.other = self.other or other.other

    def problems(self, label: Label, data: str) -> Problems:
        """Yield the problems of the label as `Tally.problems` does; their texts show its values and their counts."""
        if self.other:
            text = (
                f"{self.other}: label column {label.column!r} is neither 0 nor 1; the rows of {data} hold "
                f"{self._seen()}. A label is 0 or 1, true or false, yes or no: say which value is 1 "
                f"with `label: {{column: {label.column}, positive: ...}}`, from which number on with `above: ...`, "
                f"predict each value as a class with `kind: multiclass`, or leave rows out by a row filter (column, "
                f"in: [...]).{self._marks()}"
            )
            yield True, DataError(text)
        if label.above is not None and not self.positive:
            text = (
                f"{data}: no row has a number above `label.above`, {label.above:g}, in column {label.column!r}, "
                f"which holds {self._seen()}: correct `label.above`."
            )
            yield False, TooFewRowsError(text)
        if label.positive and not self.positive:
            text = (
                f"{data}: no row has the value of `label.positive`, {list(label.positive)!r}, in column "
                f"{label.column!r}, which holds {self._seen()}: correct `label.positive`, "
                "which names values as the data writes them; a bound on a number is `label.above`."
            )
            yield False, TooFewRowsError(text)

    def _marks(self) -> str:
        """Suggest a setting for texts that stand for a missing value; empty if no text looks like that."""
        texts = [ast.literal_eval(value) for value in self.values if value[0] in "'\"" and value[0] == value[-1]]
        marks = [text for text in texts if stands_for_missing(text)]
        return f" If {marks[0]!r} means a missing value, set `data: {{missing: {json.dumps(marks)}}}`." if marks else ""

    def _seen(self) -> str:
        shown = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))
        more = f" and {len(shown) - 10} or more others" if len(shown) > 10 else ""
        return ", ".join(f"{value} ({rows} rows)" for value, rows in shown[:10]) + more


@dataclasses.dataclass
class Tally:
    """Counts over some files.

    Attributes:
      files: files read.
      files_without_rows: the first few files without rows.
      kept: rows per split.
      filtered: rows per row filter, each row at the first filter that it fails.
      outside: rows in neither split.
      short: rows left out because their history is shorter than `min_length`.
      unlisted: events in no history because they lack one of the values that histories list.
      waiting: rows that wait for their histories; 0 at the end.
      bad: rows set aside.
      kinds: per column, the kinds of feature ("bytes", "int64", "float") and the place of the first of each.
      moments: per column of dates or times that become text, "date" and "time", and the place of the first of each.
      seen: names of all columns found.
      times: units of the times that histories are ordered by (see `Events`), and the place of the first of each.
      labels: the values of each binary or multiclass label, by name.
      numbered: per column, the number of values written as 3, and of those written as 3.0.
      summaries: per split and column, the summary of its values.
      shards: per split, the names of the files written.
    """

    files: int = 0
    files_without_rows: list[str] = dataclasses.field(default_factory=list)
    kept: dict[str, int] = dataclasses.field(default_factory=lambda: {"train": 0, "eval": 0})
    filtered: list[int] = dataclasses.field(default_factory=list)
    outside: int = 0
    short: int = 0
    unlisted: int = 0
    waiting: int = 0
    bad: BadRows = dataclasses.field(default_factory=BadRows)
    kinds: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    moments: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    seen: list[str] = dataclasses.field(default_factory=list)
    times: dict[str, str] = dataclasses.field(default_factory=dict)
    labels: dict[str, Labels] = dataclasses.field(default_factory=dict)
    numbered: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    summaries: dict[str, dict[str, ColumnSummary]] = dataclasses.field(
        default_factory=lambda: {"train": {}, "eval": {}}
    )
    shards: dict[str, list[str]] = dataclasses.field(default_factory=lambda: {"train": [], "eval": []})

    @property
    def read(self) -> int:
        """Rows read."""
        left_out = sum(self.filtered) + self.outside + self.short + self.bad.count
        return sum(self.kept.values()) + left_out + self.waiting

    def add(self, other: Tally) -> None:
        """Add the counts of further files."""
        self.files += other.files
        self.files_without_rows = [*self.files_without_rows, *other.files_without_rows][:SHOWN]
        self.filtered = [a + b for a, b in zip(self.filtered or [0] * len(other.filtered), other.filtered, strict=True)]
        self.outside += other.outside
        self.short += other.short
        self.unlisted += other.unlisted
        self.waiting += other.waiting
        self.bad = BadRows(self.bad.count + other.bad.count, [*self.bad.first, *other.bad.first][:SHOWN])
        self.seen = sorted({*self.seen, *other.seen})
        for split in self.kept:
            self.kept[split] += other.kept[split]
            self.shards[split] += other.shards[split]
            for name, summary in other.summaries[split].items():
                self.summaries[split].setdefault(name, ColumnSummary()).add(summary)
        for mine, others in ((self.kinds, other.kinds), (self.moments, other.moments)):
            for name, kinds in others.items():
                for kind, place in kinds.items():
                    mine.setdefault(name, {}).setdefault(kind, place)
        for kind, place in other.times.items():
            self.times.setdefault(kind, place)
        for name, labels in other.labels.items():
            self.labels.setdefault(name, Labels()).add_all(labels)
        for name, (plain, with_point) in other.numbered.items():
            self.add_numbered(name, plain, with_point)

    def add_rows(self, columns: Mapping[str, pa.Array], sides: Sides) -> None:
        """Count rows, and summarize their columns.

        Args:
          columns: the columns of the examples.
          sides: the split of each row, as a position in `SPLITS`.
        """
        for position, split in enumerate(SPLITS):
            chosen = sides == position
            self.kept[split] += int(chosen.sum())
            for name, column in columns.items():
                summary = self.summaries[split].setdefault(name, ColumnSummary())
                summary.add(summary_of(column, chosen, known_to_differ=summary.only == ""))

    def add_numbered(self, name: str, plain: int, with_point: int) -> None:
        """Count a column's values that are written as 3 and as 3.0."""
        before = self.numbered.get(name, (0, 0))
        self.numbered[name] = (before[0] + plain, before[1] + with_point)

    def present(self, name: str) -> dict[str, int]:
        """Return per split the rows that have a value in a column."""
        return {split: columns.get(name, ColumnSummary()).rows for split, columns in self.summaries.items()}

    @property
    def kinds_differ(self) -> bool:
        """Whether a column holds values of several kinds, which cannot be one column of a table."""
        return any(len(kinds) > 1 for kinds in self.kinds.values())

    @property
    def mixed(self) -> dict[str, tuple[int, int]]:
        """The columns in which some whole numbers are written as 3 and some as 3.0, which are different tokens."""
        return {name: counts for name, counts in sorted(self.numbered.items()) if all(counts)}

    def to_json(self) -> str:
        """Return the counts as JSON; `from_json` restores them."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Tally:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        summaries = summaries_of_json(data["summaries"])
        made = {
            "bad": BadRows(**data["bad"]),
            "labels": {name: Labels(**labels) for name, labels in data["labels"].items()},
            "summaries": summaries,
        }
        return cls(**{**data, **made})

    def facts(self, settings: Settings) -> Json:
        """Return the counts as a report shows them."""
        histories = {"history_too_short": self.short, "in_no_history": self.unlisted} if settings.histories else {}
        return {
            "files": self.files,
            "files_without_rows": self.files_without_rows,
            "rows_read": self.read,
            "rows_kept": sum(self.kept.values()),
            "filtered": [
                {"filter": str(condition), "rows": rows}
                for condition, rows in zip(settings.conditions, self.filtered, strict=True)
            ],
            "set_aside": {"rows": self.bad.count, "first": self.bad.first},
            "in_neither_split": self.outside,
            **histories,
            "splits": self.kept,
            "label_values": {name: labels.values for name, labels in self.labels.items()},
            "mixed_whole_numbers": {
                name: {"3": plain, "3.0": with_point} for name, (plain, with_point) in self.mixed.items()
            },
            "columns": {
                name: {"kind": next(iter(self.kinds.get(name, {})), None), "present": self.present(name)}
                for name in sorted(self.summaries["train"])
            },
        }

    def check(self, settings: Settings, data: str) -> None:
        """Check that a model can be trained on the rows.

        Args:
          settings: settings of ExampleGen.
          data: the data's path, as errors name it.

        Raises:
          TooFewRowsError: no rows, an empty split, or no row with a positive label.
          DataError: too many bad rows, or a column that is absent, empty or of two kinds.
        """
        for _, problem in self.problems(settings, data):
            raise problem

    def problems(self, settings: Settings, data: str) -> Problems:
        """Find all reasons why a model cannot be trained on the rows.

        Yields:
          Whether the problem is final (further rows cannot change it), and the problem as an error.
        """
        if not self.read:
            first = f", the first is {self.files_without_rows[0]}" if self.files_without_rows else ""
            counted = f"{self.files} of {self.files} files are empty or have only a header{first}"
            yield False, TooFewRowsError(f"{data}: no file has rows; {counted}: give files with rows.")
            return
        for name, labels in self.labels.items():
            yield from labels.problems(settings.labels[name], data)
        yield from self._bad(settings, data)
        if settings.histories is not None:
            yield from self._times(settings.histories)
        sources = () if settings.histories is None else settings.histories.sources
        for name in dict.fromkeys((*settings.columns, *sources)):
            yield from self._kinds(name)
        if self.waiting or self.has_too_many_bad(settings):  # the rest is not known, or may follow from the bad rows
            return
        yield from self._splits(settings, data)
        for name in settings.columns:
            yield from self._column(name, settings, data)

    def _times(self, histories: Histories) -> Problems:
        """Refuse other numbers beside dates, or beside Unix times in several units: nothing orders them."""
        others = {kind: place for kind, place in self.times.items() if kind != NOT_A_MOMENT}
        if NOT_A_MOMENT in self.times and (len(others) > 1 or DATE in others):
            shown = "".join(f", a {kind} in {place}" for kind, place in others.items())
            text = (
                f"column {histories.time!r}, the time of `data.histories`, is a {NOT_A_MOMENT} of 1973 to 2100 in "
                f"{self.times[NOT_A_MOMENT]}{shown}: write all of its times as dates or Unix times, or, if they "
                "are positions, as numbers below 100,000,000."
            )
            yield True, DataError(text)

    def has_too_many_bad(self, settings: Settings) -> bool:
        """Whether more rows were set aside than the settings allow."""
        return self.bad.count > settings.allowed_bad_rate * self.read

    def _bad(self, settings: Settings, data: str) -> Problems:
        if self.has_too_many_bad(settings):
            # A reason that names a key of `data` has the remedy.
            remedied = all("`data: {" in row for row in self.bad.first)
            remedy = "" if remedied else " Correct them, leave them out by a row filter, or allow a rate."
            text = (
                f"{data}: {self.bad.count} of {self.read} rows cannot be used, more than `allowed_bad_rate` "
                f"{settings.allowed_bad_rate:g} allows.{remedy}{self.bad.shown}"
            )
            yield settings.allowed_bad_rate == 0, DataError(text)

    def _splits(self, settings: Settings, data: str) -> Problems:
        for split, rows in self.kept.items():
            if rows:
                continue
            left_out = [
                f"{count} left out by `{condition}`"
                for condition, count in zip(settings.conditions, self.filtered, strict=True)
            ]
            by_file = isinstance(settings.split, SplitByFile)
            cause = "the files of `data.path` and `data.eval_path`" if by_file else f"`split` (by {settings.split.by})"
            text = (
                f"{data}: no row is left for the {split} split; "
                f"{', '.join([f'{self.read} rows read', *left_out])}, {self.outside} in neither split, "
                f"{self.bad.count} set aside, {f'{self.short} with too short a history, ' if self.short else ''}"
                f"{sum(self.kept.values())} in the other split. Change {cause} or the row filters."
            )
            yield False, TooFewRowsError(text)

    def _kinds(self, name: str) -> Problems:
        kinds = self.kinds.get(name, {})
        if len(kinds) > 1:
            (first, here), (second, there) = list(kinds.items())[:2]
            text = f"column {name!r} is {first} in {here} and {second} in {there}: store it as one type throughout" + (
                "." if "bytes" in kinds else f", or read 3.0 as 3 with `data: {{whole_numbers: [{name}]}}`."
            )
            yield True, DataError(text)
        moments = self.moments.get(name, {})
        if len(moments) > 1:
            text = (
                f"column {name!r} holds dates in {moments['date']} and times in {moments['time']}: a day and its "
                "midnight would be two tokens; store it as one type throughout."
            )
            yield True, DataError(text)

    def _column(self, name: str, settings: Settings, data: str) -> Problems:
        if name not in self.seen:
            near = nearest(name, map(settings.shown_name, self.seen))
            yield False, DataError(f"{data}: no row has a column {name!r}: {near}")
        elif self.present(name)["train"] or settings.allow_empty:
            return
        elif name in settings.made:
            text = (
                f"{data}: no row of the train split has an earlier event of its user, so column {name!r} is empty: "
                "correct `user`, `time` or `ties` of `data.histories`."
            )
            yield False, DataError(text)
        else:
            text = (
                f"{data}: column {name!r} is empty in all {self.kept['train']} rows of the train split: remove "
                "it from the configuration, or correct the data; or, if spans are so small that this happens, set "
                "`data.empty_columns: allow`."
            )
            yield False, DataError(text)


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """Add up the counts of several workers, in order."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total
