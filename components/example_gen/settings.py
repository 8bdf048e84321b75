"""Declares the settings of ExampleGen: formats, columns, filters, split, labels, histories. No TFX, no TensorFlow."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, BinaryIO, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from components.example_gen.row_selection import (
    AnySplit,
    Condition,
    RowFilter,
    Scalar,
    SplitByFile,
    SplitByHash,
    SplitLeaveOneOut,
)
from components.example_gen.spans import PatternSpans
from embedding_core.display import shown_token
from embedding_core.errors import ConfigError
from embedding_core.schema import (
    FROM_NUMPY,
    ByName,
    Count,
    Json,
    Listed,
    Mistakes,
    Number,
    Positive,
    Rule,
    Section,
    Text,
)
from embedding_core.storage import bounds
from embedding_core.tasks import Objective, Task

# Declares a label: which column of the data is predicted, of what kind it is, and which of its values are 1.

ColumnKind: TypeAlias = Literal["float", "token"]


def _one_or_more(value: object) -> object:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else [value]


def _as_numbers(value: object) -> object:
    """Convert a list of columns to a mapping of each column to "float"."""
    texts = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return dict.fromkeys(value, "float") if isinstance(value, list | tuple) and texts else value


OneOrMore = Annotated[
    Listed[Scalar],
    BeforeValidator(_one_or_more),
    WithJsonSchema({"type": ["array", "string", "number", "boolean", "null"]}),
]
_TEXTS = {"type": "array", "items": {"type": "string"}}
Columns = Annotated[
    Mapping[Text, ColumnKind],
    BeforeValidator(_as_numbers),
    Rule("a list of columns that hold numbers, or a mapping of columns to float or token"),
    WithJsonSchema({"anyOf": [_TEXTS, {"type": "object", "additionalProperties": {"enum": ["float", "token"]}}]}),
]


class Label(Objective):
    """What is predicted. The keys of `Objective` give the kind of the label and its loss.

    A binary label is 0 or 1, true or false, or yes or no. Other values become 0 or 1 by `positive` or `above`. The
    classes of a multiclass label are the values of its column in the train split; a row of the eval split with another
    value is not evaluated on this label.

    Attributes:
      column: the column of the data that holds the label.
      positive: the value (or list of values) of the column that makes the label 1, written as in the data; every other
        value makes the label 0. For a binary label.
      above: a number; the label is 1 if the column's number is greater, else 0. For a binary label.
      key: the key under which the `preprocessing_fn` returns the label, instead of `column`.
      columns: the columns that the `preprocessing_fn` reads only to compute the label. Requests to the served model do
        not have them, so no feature may read them. A list (of numbers), or a mapping to "float" or "token".
    """

    SHORT = "column"

    column: Text | None = None
    positive: OneOrMore = ()
    above: Number | None = None
    key: Text | None = None
    columns: Columns = Field(default_factory=dict)

    @property
    def data_column(self) -> str:
        """The column of the data that holds the label.

        Raises:
          ConfigError: the label is computed by a `preprocessing_fn`.
        """
        if self.column is None:
            raise ConfigError(f"the label has no `column`: your `preprocessing_fn` computes it as {self.key!r}.")
        return self.column

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the data that the label is read or computed from."""
        return (*([self.column] if self.column else []), *self.columns)

    def task(self, name: str, key: str) -> Task:
        """Return the task of training this label.

        Args:
          name: name of the task.
          key: the label's key in Transform's output, unless the `preprocessing_fn` returns it under another.
        """
        given = {field: getattr(self, field) for field in Objective.model_fields}
        return Task(name=name, key=self.key or key, source=self._in_words, **given)

    @property
    def _in_words(self) -> str | None:
        """What the label is made from; None if each row has label 1."""
        if self.column is None:
            return None if self.key is None else f"{self.key!r} of preprocessing_fn"
        if self.positive:
            return f"column {self.column!r} is {' or '.join(sorted(repr(str(value)) for value in self.positive))}"
        return f"column {self.column!r}" + ("" if self.above is None else f" above {self.above!r}")

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        yield from super().mistakes()
        if self.kind == "positive":
            yield from self._without_column()
        elif self.kind != "binary" and (self.positive or self.above is not None):
            key = "positive" if self.positive else "above"
            yield key, f"is given, but `kind` is {self.kind!r}: it tells which values of a binary label are 1."
        elif (self.column is None) == (self.key is None):
            yield "", "must have either `column` (of the data) or `key` (that your `preprocessing_fn` returns)."
        elif self.positive and self.above is not None:
            yield "above", f"is {self.above!r}, and `label.positive` is given too: give one of them."
        elif self.key is not None and self.above is not None:
            yield "above", f"is {self.above!r}, but `label.column` is null: it bounds the numbers of that column."
        elif self.key is not None and self.positive:
            yield (
                "positive",
                f"is {list(self.positive)!r}, but `label.column` is null: it names values of that column.",
            )
        elif self.key is None and self.columns:
            yield (
                "columns",
                f"is {list(self.columns)!r}, but `label.key` is null: they are read for a computed label only.",
            )

    def _without_column(self) -> Mistakes:
        for field in ("column", "positive", "above", "key", "columns"):
            given = getattr(self, field)
            if given != type(self).model_fields[field].get_default(call_default_factory=True):
                yield field, f"is {given!r}, but `kind` is 'positive': each row has label 1; leave it out."


# Declares the histories of users that ExampleGen makes of the rows. Imports neither TFX nor TensorFlow.


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
        for name, source in self.columns.items():
            if not name or not source:
                yield "columns", f"has {name!r}: {source!r}: both must be names of columns."
            elif name in self.read:
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
        tested = {condition.column for condition in self.conditions}
        return tuple(sorted({self.user, self.time, *self.sources} | tested))

    def to_mapping(self) -> Json:
        """Return the settings as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def split_mistakes(histories: Histories | None, split: AnySplit) -> Mistakes:
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


# Names the formats and compressions of data files, and recognizes them, without TFX or TensorFlow.

DataFormat: TypeAlias = Literal["csv", "tfrecord", "parquet"]
Compression: TypeAlias = Literal["none", "gz", "bz2", "zst", "xz"]

EXTENSIONS = ".csv (or .csv.gz, .csv.bz2, .csv.zst, .csv.xz), .tfrecord, .tfrecord.gz or .parquet"
_FORMATS: Mapping[DataFormat, re.Pattern[str]] = {
    "csv": re.compile(r"\.csv(\.(gz|bz2|zst|xz))?$"),
    "tfrecord": re.compile(r"tfrecords?(\.gz)?(-\d+-of-\d+)?(\.gz)?$"),
    "parquet": re.compile(r"\.parquet$"),
}
# bzip2 is recognized by all ten bytes, because the header of a text file may start with "BZh".
_FIRST_BYTES: Mapping[Compression, re.Pattern[bytes]] = {
    "gz": re.compile(rb"\x1f\x8b\x08"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)"),
    "zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}


def format_of(file: str) -> DataFormat | None:
    """Recognize the format by a file's name; None if its extension is unknown."""
    name = os.path.basename(file).lower()
    return next((format_ for format_, pattern in _FORMATS.items() if pattern.search(name)), None)


def compression_of(start: bytes) -> Compression:
    """Recognize the compression by a file's first bytes (at least 10, if the file has as many)."""
    return next((compression for compression, pattern in _FIRST_BYTES.items() if pattern.match(start)), "none")


def unpacked(stream: BinaryIO, compression: Compression) -> io.RawIOBase:
    """Return a stream of the uncompressed bytes."""
    if compression == "gz":
        return cast(io.RawIOBase, gzip.GzipFile(fileobj=stream))
    if compression == "bz2":
        return cast(io.RawIOBase, bz2.BZ2File(stream))
    if compression == "xz":
        return cast(io.RawIOBase, lzma.LZMAFile(stream))
    if compression == "zst":
        import pyarrow as pa  # slow to import, and rarely needed here

        return cast(io.RawIOBase, pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"))
    return cast(io.RawIOBase, stream)


# Declares how CSV files are written, for the YAML file and for ExampleGen.

COMMON_DELIMITERS = (";", "\t", "|", "::", ",")
_LINE_ENDS = "\n\r\0"


class CsvFormat(Section):
    """How CSV files are written.

    Attributes:
      missing: texts that mean a missing value, such as "?" and "NA", in addition to the empty text.
      delimiter: text between two fields, of one character or more (`::`).
      decimal: decimal separator, "." or ",".
      quote: character around a field that holds delimiters or line breaks; "" if quotes are ordinary characters.
      encoding: character encoding as Python names it, such as latin-1 or cp1252.
      compression: "gz", "bz2", "zst", "xz" or "none"; null recognizes each file by its first bytes.
      columns: names of all columns, in order, of files without a header; null reads the names from the first line.
    """

    missing: Listed[str] = ()
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    quote: str = '"'
    encoding: str = "utf-8"
    compression: Compression | None = None
    columns: Listed[str] | None = None

    def mistakes(self) -> Mistakes:
        """Yield the rules that the fields break, as pairs of the key and the message that follows it."""
        if not self.delimiter or any(sign in self.delimiter for sign in _LINE_ENDS):
            yield "delimiter", f"is {self.delimiter!r}: it must be the text between two fields, and not a line break."
        elif self.delimiter == r"\t":
            yield "delimiter", r'is a backslash and a "t": for a tab write it in double quotes, delimiter: "\t".'
        if len(self.quote) > 1 or (self.quote and self.quote in _LINE_ENDS):
            yield "quote", f'is {self.quote!r}: it must be one character, or "" if quotes are ordinary characters.'
        if self.quote and self.quote in self.delimiter:
            yield "quote", f"is {self.quote!r}: it must not be in `delimiter`, {self.delimiter!r}."
        if self.decimal == self.delimiter:
            yield "decimal", f'is {self.decimal!r}, as `delimiter` is: give the delimiter, such as `delimiter: ";"`.'
        if not _is_text_encoding(self.encoding):
            yield (
                "encoding",
                f"is {self.encoding!r}: not an encoding that Python knows; write one such as utf-8, latin-1 or cp1252.",
            )
        yield from self._column_mistakes()

    def _column_mistakes(self) -> Mistakes:
        if self.columns is None:
            return
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if not self.columns or "" in self.columns:
            yield "columns", f"is {list(self.columns)!r}: name every column of the files, in order."
        elif twice:
            yield "columns", f"is {list(self.columns)!r}: {twice[0]!r} occurs twice; names must be unique."

    @property
    def changed(self) -> tuple[str, ...]:
        """The keys that differ from their defaults."""
        return tuple(name for name, field in CsvFormat.model_fields.items() if getattr(self, name) != field.default)

    @property
    def codec(self) -> str:
        """The codec to read with; for UTF-8, it skips a byte order mark."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding


def allow_long_values() -> None:
    """Let Python's csv module read values of up to `bounds.CELL_CHARACTERS`, and not only of 131,072.

    The limit is one of the whole process, and so is only raised: a larger one is meant for another reader.
    """
    csv.field_size_limit(max(bounds.CELL_CHARACTERS, csv.field_size_limit()))


def _is_text_encoding(name: str) -> bool:
    try:
        "a".encode(name)
    except (LookupError, ValueError, TypeError):  # LookupError also for codecs that do not encode text, such as base64
        return False
    return True


# Declares the settings of ExampleGen: columns, filters, split and label. Imports neither TFX nor TensorFlow.

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
    split: AnySplit = Field(default_factory=SplitByHash)
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
    def of_eval_files(self) -> Settings:
        """The settings for reading the files whose rows are all "eval"."""
        return self.replace(split=SplitByFile(side="eval"))

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
        read = {*self.from_data, *(filter_.column for filter_ in self.row_filters), *self.split.columns}
        return tuple(sorted(read if self.histories is None else {*read, *self.histories.read}))

    def to_mapping(self) -> Json:
        """Return the settings as plain JSON values.

        Examples artifacts record a digest of `row_filters`, `split` and `histories` in this form (`rows_digest`), so
        the form must not change.
        """
        values = super().to_mapping()
        values["row_filters"] = [
            filter_.model_dump(mode="json", by_alias=True, exclude_none=True) for filter_ in self.row_filters
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
