"""Declares a label: which column of the data is predicted, of what kind it is, and which of its values are 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from components.example_gen.row_selection import Scalar
from embedding_core.errors import ConfigError
from embedding_core.schema import Listed, Mistakes, Number, Rule, Text
from embedding_core.tasks import Objective, Task

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
            if given:
                yield field, f"is {given!r}, but `kind` is 'positive': each row has label 1; leave it out."
