"""Guesses which column is the label, and what kind of task that makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from components.example_gen.sampling import Column
from components.example_gen.values import FALSE, TRUE
from embedding_core.errors import ConfigError, nearest
from pipelines.new_project.column_guess import Guess, is_number, word_set, words_of

_OUTCOME = word_set(
    "label target y clicked click purchased purchase bought converted conversion churn churned default "
    "survived readmitted outcome response fraud spam liked like rating stars score"
)
_AMOUNT = word_set("rating stars score")
_USER = word_set("user userid customer customerid visitor member account session")
_ITEM = word_set("item itemid product productid movie movieid song track article book stockcode sku")
_MOST_CLASSES = 50
_EVENTS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelGuess:
    """The label and the model.

    Attributes:
      label: the section `label`.
      column: the label's column, which is not a feature; None for events without a label.
      why: what the guess is based on.
      model: the section `model`; None for the default.
      softmax: the feature of `training.softmax`; None for none.
      only_with_label: whether rows without a label must be left out.
    """

    label: Mapping[str, Any]
    column: str | None
    why: str
    model: Mapping[str, Any] | None = None
    softmax: str | None = None
    only_with_label: bool = False


def guess_label(columns: Mapping[str, Column], guesses: Sequence[Guess], given: str | None) -> LabelGuess:
    """Guess the label.

    Args:
      columns: the columns of the data.
      guesses: the role of each as a feature.
      given: the label's column, if the user names it.

    Raises:
      ConfigError: the given column does not exist, or no column looks like a label.
    """
    if given is not None:
        if given not in columns:
            raise ConfigError(f"`--label` is {given!r}: the data has no such column; {nearest(given, columns)}")
        return _of_column(given, columns[given], "given by `--label`")
    useful = {name: column for name, column in columns.items() if column.distinct > 1 and "lists" not in column.kind}
    named = [name for name in useful if set(words_of(name)) & _OUTCOME]
    if named:
        return _of_column(named[-1], useful[named[-1]], "named like an outcome")
    constant = [name for name, column in columns.items() if column.distinct == 1 and set(words_of(name)) & _OUTCOME]
    if not constant:
        return _without_name(useful, guesses)
    found = _of_events(guesses) or _without_name(useful, guesses)
    only = f"{constant[-1]!r} is named like an outcome, but has one value in these rows, as if they were events"
    return dataclasses.replace(found, why=f"{found.why}; {only}")


def _without_name(columns: Mapping[str, Column], guesses: Sequence[Guess]) -> LabelGuess:
    """Guess the label by the values of the columns that have several."""
    two = [name for name, column in columns.items() if _is_binary(column)]
    if two:
        return _of_column(two[-1], columns[two[-1]], "the last column of two values such as 0 and 1")
    return _of_events(guesses) or _last(columns)


def _last(columns: Mapping[str, Column]) -> LabelGuess:
    """Take the last column of two values, else the last of numbers, else the last of few classes.

    Raises:
      ConfigError: there is no such column.
    """
    for why, wanted in (
        ("the last column of two values", lambda column: column.distinct == _EVENTS),
        ("the last column of numbers that are not whole", lambda column: is_number(column) and _has_fractions(column)),
        ("the last column of numbers", is_number),
        ("the last column of few values", lambda column: column.distinct <= _MOST_CLASSES),
    ):
        names = [name for name, column in columns.items() if wanted(column)]
        if names:
            return _of_column(names[-1], columns[names[-1]], why)
    raise ConfigError("no column looks like a label: name it with `--label`, such as --label clicked.")


def _has_fractions(column: Column) -> bool:
    return column.kind != "whole numbers" and column.with_point < column.rows - column.missing


def _is_binary(column: Column) -> bool:
    values = {value.decode("utf-8", "replace").strip().casefold() for value, _ in column.frequent}
    return len(values) == _EVENTS and bool(values & TRUE) and bool(values & FALSE) and values <= TRUE | FALSE


def _of_column(name: str, column: Column, why: str) -> LabelGuess:
    label, task = _kind(name, column)
    some = column.missing > 0
    return LabelGuess(label={"column": name, **label}, column=name, why=f"{why}; {task}", only_with_label=some)


def _kind(name: str, column: Column) -> tuple[dict[str, Any], str]:
    if _is_binary(column):
        return {}, "two values, so a probability is predicted"
    if column.distinct == _EVENTS:
        rarer = column.frequent[-1][0].decode("utf-8", "replace")
        return {"positive": rarer}, f"two values, so the probability of the rarer one, {rarer!r}, is predicted"
    if is_number(column) and (set(words_of(name)) & _AMOUNT or column.distinct > _MOST_CLASSES):
        return {"kind": "regression"}, "numbers, so a number is predicted"
    if column.distinct <= _MOST_CLASSES:
        return {"kind": "multiclass"}, f"{column.distinct} values, so one of these classes is predicted"
    raise ConfigError(
        f"column {name!r} has {column.distinct:,} distinct texts, too many for classes: name another column with "
        "`--label`."
    )


def _of_events(guesses: Sequence[Guess]) -> LabelGuess | None:
    """Take the rows as events of users with items, if there are such columns: which item comes next is predicted."""
    tokens = [guess.column for guess in guesses if guess.role == "categorical" and "separator" not in guess.options]
    users = [name for name in tokens if set(words_of(name)) & _USER]
    items = [name for name in tokens if set(words_of(name)) & _ITEM]
    if not users or not items or users[0] == items[0]:
        return None
    return LabelGuess(
        label={"kind": "positive"},
        column=None,
        why=f"no outcome, but {users[0]} and {items[0]}: rows are events, and the item of an event is predicted",
        model={"name": "two_tower", "arguments": {"query_features": [users[0]], "candidate_features": [items[0]]}},
        softmax=items[0],
    )
