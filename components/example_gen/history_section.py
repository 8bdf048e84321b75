"""Declares the histories of users that ExampleGen makes of the rows. Imports neither TFX nor TensorFlow."""

from __future__ import annotations

from typing import Literal

from components.example_gen.row_selection import Condition, RowFilter, Split, SplitByHash, SplitLeaveOneOut
from embedding_core.schema import ByName, Count, Json, Listed, Mistakes, Positive, Section, Text


class Histories(Section):
    """New columns that hold what a user did before: each row is an event, and lists earlier events of its user.

    A row for training lists events of the train split alone. A row for evaluation lists earlier events of all rows that
    were read. A row that is set aside or left out by a row filter is not an event.

    Attributes:
      user: column of the user, or of anything else that has a history; a row without a value there is bad. 100, 100.0
        and the texts "100" and "100.0" are one user.
      time: column of the time: dates, Unix times (seconds to nanoseconds), or other numbers that grow with time, such
        as positions. Dates and Unix times in any units are compared as moments; other numbers must not be beside dates,
        or beside Unix times in several units. A row without a value there is bad.
      columns: new columns, each with the column whose values it lists, such as {history: item}. Histories of
        several columns stay aligned: an event that lacks one of the values is in no history, and is counted.
      max_length: largest number of events in a history: the latest events, oldest first.
      min_length: smallest number of events in a history; rows with a shorter one are left out, and counted.
      ties: order of events of one user and time. "apart" keeps them out of each other's histories. "in_order" keeps
        the order of the data: by file name, then by row.
      remember: conditions that an event must meet to be in later histories, such as {column: clicked, equals: 1}, with
        the keys of `row_filters`. Other events still become rows with a history.
    """

    user: Text
    time: Text
    columns: ByName[Text]
    max_length: Positive = 50
    min_length: Count = 0
    ties: Literal["apart", "in_order"] = "apart"
    remember: Listed[RowFilter] = ()

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if not self.columns:
            yield "columns", "is {}: name at least one new column, such as {history: item}."
        read = (self.user, self.time, *self.columns.values(), *(one.column for one in self.remember))
        for name, source in self.columns.items():
            if not name or not source:
                yield "columns", f"has {name!r}: {source!r}: both must be names of columns."
            elif name in read:
                yield (
                    f"columns.{name}",
                    "is a column of the data, which `histories` reads: give the new one a new name.",
                )
        if self.min_length > self.max_length:
            yield "min_length", f"is {self.min_length}: it must be at most `max_length`, {self.max_length}."

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns whose values are listed, sorted."""
        return tuple(sorted(set(self.columns.values())))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of `remember`."""
        return tuple(condition for row_filter in self.remember for condition in row_filter.conditions)

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the data that are read to make the histories, sorted."""
        return tuple(sorted({self.user, self.time, *self.sources, *(one.column for one in self.remember)}))

    def to_mapping(self) -> Json:
        """Return the settings as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def split_mistakes(histories: Histories | None, split: Split) -> Mistakes:
    """Yield contradictions between histories and split, by key of the configuration."""
    if isinstance(split, SplitLeaveOneOut) and histories is None:
        rule = "which row is a user's last needs `data: {histories: {user: ..., time: ..., columns: ...}}`; add it."
        yield "split.by", f"is 'leave_one_out', but `data.histories` is null: {rule}"
    if isinstance(split, SplitByHash) and histories is not None and split.key != histories.user:
        yield (
            "split",
            (
                f"is by hash with `key` {split.key!r}: it would cut events for evaluation out of histories for "
                "training; split by leave_one_out, by time, or by hash with the user as key "
                f"(`split: {{by: hash, key: {histories.user}}}`)."
            ),
        )
