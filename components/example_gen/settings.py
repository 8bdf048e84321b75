"""Declares the settings of ExampleGen: columns, filters, split and label. Imports neither TFX nor TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from components.example_gen.csv_format import CsvFormat
from components.example_gen.history_section import Histories, split_mistakes
from components.example_gen.label_section import ColumnKind, Label
from components.example_gen.row_selection import Condition, RowFilter, Split, SplitByHash
from components.example_gen.spans import PatternSpans
from embedding_core.display import shown_token
from embedding_core.errors import ConfigError
from embedding_core.schema import FROM_NUMPY, ByName, Json, Listed, Mistakes, Rule, Section, Text

Rate = Annotated[float, Field(ge=0, lt=1), FROM_NUMPY, Rule("a number from 0 (none) to below 1")]
_ONLY_IF_SET = ("seed", "allow_empty", "passthrough", "private", "histories", "other_labels")
_SINGLE = "label"  # name of the label of a configuration that has one


def _label_to_mapping(label: Label) -> Json:
    read = {"column", "positive", "above"} | ({"kind"} if label.kind != "binary" else set())
    return label.model_dump(mode="json", include=read, exclude_none=True)


class Settings(Section):
    """The settings of ExampleGen: how rows of the data become tf.Examples.

    Attributes:
      columns: kind of each column to keep, by name: "token" keeps its values, "float" converts them to float32 (text of
        CSV files is parsed).
      row_filters: filters that a row must pass.
      split: rule that assigns rows to the train and the eval split.
      allowed_bad_rate: share of the rows read that may be set aside as bad.
      seed: seed of the hash split and of the order of rows.
      passthrough: whether all other columns are kept too (CSV: as tokens; TFRecord: each record as it is).
      spans: spans that are read; None leaves the choice to TFX, which reads the latest.
      csv: format of the CSV files.
      labels: the labels that are columns of the data, by name; a row without any of them is bad.
      other_labels: whether the model also has labels that are not columns of the data, so that a row may lack all
        of `labels`.
      weight: column of the sample weight; rows without a weight of 0 or more are bad.
      single_valued: columns that hold at most one value per row; rows with several are bad.
      whole_numbers: token columns in which 3.0 is converted to 3.
      allow_empty: whether a column may be empty in all rows of the train split.
      private: whether any column is private; messages then show a digest of a value's text, unless the value is a
        number or time, and of the name of a column that is not needed: it may be a token of a file without a header.
      histories: columns made of a user's earlier rows; `columns` must list them as tokens. None makes no such columns.

    Raises:
      ConfigError: a value breaks its rule.
    """

    columns: Mapping[Text, ColumnKind] = Field(default_factory=dict)
    row_filters: Listed[RowFilter] = ()
    split: Split = Field(default_factory=SplitByHash)
    allowed_bad_rate: Rate = 0.0
    seed: int = 0
    passthrough: bool = False
    spans: PatternSpans | None = None
    csv: CsvFormat = Field(default_factory=CsvFormat)
    labels: ByName[Label] = Field(default_factory=dict)
    other_labels: bool = False
    weight: Text | None = None
    single_valued: Listed[Text] = ()
    whole_numbers: Listed[Text] = ()
    allow_empty: bool = False
    private: bool = False
    histories: Histories | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_labels(cls, values: Any) -> Any:
        """Accept one `label`, as releases up to 0.1.0 wrote it."""
        if not isinstance(values, Mapping) or _SINGLE not in values:
            return values
        label = values[_SINGLE]
        others = {key: value for key, value in values.items() if key != _SINGLE}
        return {**others, "labels": {} if label is None else {_SINGLE: label}}

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if not self.columns and not self.passthrough:
            yield "columns", "is empty: name at least one column, or set `passthrough`."
        for name, label in self.labels.items():
            if label.column is None:
                rule = "is null: a label of ExampleGen is a column of the data; leave out a computed one."
                yield f"labels.{name}.column", rule
        for index, name in enumerate(self.whole_numbers):
            if name in self.made or (self.columns.get(name) != "token" and name not in self._tokens_of_events):
                yield f"whole_numbers.{index}", f"is {name!r}: it must be a column that is kept as a token."
        yield from split_mistakes(self.histories, self.split)
        if self.histories is not None:
            yield from self._history_mistakes(self.histories)

    def _history_mistakes(self, histories: Histories) -> Mistakes:
        if self.passthrough:
            yield "histories", "is given with `passthrough`: name the columns to keep instead."
        for name in self.made:
            if self.columns.get(name) != "token":
                yield f"histories.columns.{name}", "is not kept: `columns` must have it as a token."
        for name in histories.sources:
            if self.columns.get(name) == "float":
                yield "histories.columns", f"lists {name!r}, which is read as a float: histories hold tokens."

    @property
    def made(self) -> tuple[str, ...]:
        """The columns that are made of earlier rows; the data does not have them."""
        return () if self.histories is None else tuple(self.histories.columns)

    @property
    def from_data(self) -> dict[str, ColumnKind]:
        """The columns to keep that the data has."""
        return {name: kind for name, kind in self.columns.items() if name not in self.made}

    @property
    def _tokens_of_events(self) -> tuple[str, ...]:
        return () if self.histories is None else (self.histories.user, *self.histories.sources)

    def shown_name(self, name: str) -> str:
        """Return the name of a file's column for a message."""
        is_public = not self.private or name in self.needed or name in self.made
        return name if is_public else shown_token(name.encode("utf-8", "surrogateescape"), private=True)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of all row filters, in order."""
        return tuple(condition for row_filter in self.row_filters for condition in row_filter.conditions)

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of all columns of the data that are kept, or that filters, split or histories read, sorted."""
        read = {*self.from_data, *(one.column for one in self.row_filters), *self.split.columns}
        return tuple(sorted(read if self.histories is None else {*read, *self.histories.read}))

    def to_mapping(self) -> Json:
        """Return the settings as plain JSON values.

        Examples artifacts record a digest of `row_filters`, `split` and `histories` in this form (`rows_digest`), so
        the form must not change.
        """
        values = super().to_mapping()
        values["row_filters"] = [
            one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in self.row_filters
        ]
        values["csv"] = {key: values["csv"][key] for key in self.csv.changed}
        if self.histories is not None:
            values["histories"] = self.histories.to_mapping()
        if self.spans is not None:
            values["spans"] = self.spans.model_dump(mode="json", exclude_defaults=True)
        labels = {name: _label_to_mapping(label) for name, label in self.labels.items()}
        values["labels"] = labels
        if set(labels) <= {_SINGLE}:  # as releases up to 0.1.0, which had one label
            values = {_SINGLE if key == "labels" else key: value for key, value in values.items()}
            values[_SINGLE] = labels.get(_SINGLE)
        return {key: value for key, value in values.items() if value or key not in _ONLY_IF_SET}

    def to_json(self) -> str:
        """Return the settings as JSON text: the exec property of ExampleGen, which `from_json` reads."""
        return json.dumps(self.to_mapping())

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read the settings from the exec property of ExampleGen.

        Raises:
          ConfigError: the text is not JSON, has an unknown key, or a value breaks its rule.
        """
        try:
            return cls.from_mapping(json.loads(text))
        except json.JSONDecodeError as error:
            raise ConfigError(f"the settings of ExampleGen are {text[:200]!r}: they must be JSON ({error}).") from error
