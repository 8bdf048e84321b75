"""Guesses what each column is to the model: a number, tokens, a time, or nothing."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from components.example_gen.sampling import Column
from components.example_gen.values import instant
from pipelines.config.column_rules import input_key

_FEW = 40  # whole numbers with at most as many distinct values are categories
_ONCE = 0.9  # share of distinct values above which a column identifies its row
_LISTS = 0.3  # share of values that a sign must split into several
_LONG_TAIL = 20.0  # largest number over the median, above which an amount gets log1p
_ENOUGH = 50  # fewer values say nothing about how often they repeat
_NUMBERED = 1.2  # numbers of rows reach from the least to so many times the number of rows
_EXACT = 2.0**53  # from here on, neighbouring whole numbers are one float
_EMPTY = 0.995  # share of rows without a value above which a column is left out
_WORDS = 3  # a text with as many words is read word by word


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, without order."""
    return frozenset(text.split())


_CATEGORY = word_set(
    "id ids code zip zipcode postal postcode sku area tract region district type category cat class kind hour "
    "day month weekday dow year quarter version"
)
_TIME = word_set("time timestamp ts date datetime created updated at day")
_PERSONAL = word_set("email mail phone mobile tel ip ssn name surname firstname lastname address user customer")
_ENDS = word_set("pickup dropoff origin destination dest from to source target home away sender receiver start end")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guess:
    """What a column is to the model.

    Attributes:
      column: name of the column.
      role: "dense", "categorical", "time" (for a split, not for the model), or "left_out".
      options: keys of the feature that differ from their defaults.
      why: what the guess is based on.
    """

    column: str
    role: Literal["dense", "categorical", "time", "left_out"]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    why: str


def guess_columns(columns: Mapping[str, Column]) -> list[Guess]:
    """Guess the role of each column, in order; pairs such as pickup_area and dropoff_area share a vocabulary."""
    guesses = _with_names_of_their_own(_guess(name, column) for name, column in columns.items())
    return _with_shared_vocabularies(guesses)


def facts(column: Column) -> str:
    """Describe a column in a few words."""
    missing = column.missing / max(1, column.rows)
    return f"{column.kind}, {column.distinct:,} distinct, {missing:.0%} missing"


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case: `userId` and `user_id` give user and id."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", os.path.basename(name))
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def is_number(column: Column) -> bool:
    """Return whether all values of the column are numbers, one per row."""
    return column.extent is not None and not column.kind.startswith("lists")


def _guess(name: str, column: Column) -> Guess:
    named = set(words_of(name))
    values = column.rows - column.missing

    def guess(role: Literal["dense", "categorical", "time", "left_out"], why: str, **options: Any) -> Guess:
        return Guess(column=name, role=role, options=options, why=f"{facts(column)}: {why}")

    if not column.distinct:
        return guess("left_out", "no value in these rows")
    if column.distinct == 1:
        return guess("left_out", "one value in all rows teaches nothing")
    if column.missing > _EMPTY * column.rows:
        return guess("left_out", "hardly any row has a value")
    if _is_time(named, column):
        return guess("time", "times: for `split: {by: time}`")
    if column.kind.startswith("lists of"):
        return guess("categorical", "a list of tokens per row", multivalent=True)
    once = values >= _ENOUGH and column.distinct > _ONCE * values
    whole = column.kind == "whole numbers" or (is_number(column) and column.with_point == values)
    if is_number(column) and not (whole and (named & _CATEGORY or (column.distinct <= _FEW and not once))):
        low, _, high = column.extent or (0.0, 0.0, 0.0)
        if once and whole and high < _EXACT and high - low < _NUMBERED * column.rows:
            return guess("left_out", "numbers of the rows")
        return _amount(name, column)
    separator = _separator(column)
    if separator is not None:
        return guess("categorical", f"several tokens in one text, between {separator!r}", separator=separator)
    if once:
        return guess("left_out", "nearly every row has a value of its own, so most rows of a table would never recur")
    private = {"private": True} if named & _PERSONAL else {}
    hidden = "; about a person, so reports show digests" if private else ""
    if whole and is_number(column):
        reason = "named like a category" if named & _CATEGORY else "few distinct values"
        return guess("categorical", f"{reason}{hidden}", **private)
    return guess("categorical", f"tokens{hidden}", **private)


def _amount(name: str, column: Column) -> Guess:
    low, median, high = column.extent or (0.0, 0.0, 0.0)
    if low >= 0 and high > _LONG_TAIL * max(median, 1.0):
        why = (
            f"{facts(column)}: from {low:g} to {high:g} with {median:g} in the middle of the distinct ones, a long tail"
        )
        return Guess(column=name, role="dense", options={"log1p": True}, why=why)
    return Guess(column=name, role="dense", why=f"{facts(column)}: from {low:g} to {high:g}")


def _is_time(named: set[str], column: Column) -> bool:
    if column.kind == "times":
        return True
    if column.kind.startswith("lists") or (column.kind != "text" and not named & _TIME):
        return False
    return bool(column.frequent) and all(_is_instant(value) for value, _ in column.frequent)


def _is_instant(value: bytes) -> bool:
    try:
        instant(value.decode("utf-8", "replace"))
    except (ValueError, OverflowError):
        return False
    return True


def _separator(column: Column) -> str | None:
    """Return the sign that splits many values into several tokens, if there is one.

    Values that are lists have fewer distinct parts than there are distinct values.
    """
    if column.kind != "text":
        return None
    texts = [value.decode("utf-8", "replace") for value, _ in column.frequent]
    # A comma, which prose has too, is taken last.
    for sign, share in sorted(column.several.items(), key=lambda item: (item[0] == ",", -item[1])):
        if share >= _LISTS and len({part for text in texts for part in text.split(sign)}) < len(texts):
            return sign
    lengths = sorted(len(text.split()) for text in texts)
    rarely_equal = column.distinct > 0.5 * max(1, column.rows - column.missing)
    return " " if rarely_equal and lengths and lengths[len(lengths) // 2] >= _WORDS else None


def _with_names_of_their_own(guesses: Iterable[Guess]) -> Iterator[Guess]:
    """Leave out a column whose name among the served model's inputs would be that of a column before it."""
    first: dict[str, str] = {}
    for guess in guesses:
        if guess.role in ("dense", "categorical"):
            other = first.setdefault(input_key(guess.column), guess.column)
            if other != guess.column:
                why = f"its name differs from {other!r} only by signs or capitals; rename it in the data"
                guess = Guess(column=guess.column, role="left_out", why=why)  # noqa: PLW2901
        yield guess


def _with_shared_vocabularies(guesses: Iterable[Guess]) -> list[Guess]:
    """Give pairs of columns one vocabulary: those whose names differ in a word such as pickup and dropoff."""
    guesses = list(guesses)
    groups: dict[str, list[str]] = {}
    for guess in guesses:
        words = words_of(guess.column)
        if guess.role == "categorical" and len(words) > 1 and words[0] in _ENDS:
            groups.setdefault("_".join(words[1:]), []).append(guess.column)
    shared = {column: name for name, members in groups.items() if len(members) == 2 for column in members}
    return [
        dataclasses.replace(
            guess,
            options={**guess.options, "vocabulary": shared[guess.column]},
            why=f"{guess.why}; shares its table with {_other(shared, guess.column)}",
        )
        if guess.column in shared
        else guess
        for guess in guesses
    ]


def _other(shared: Mapping[str, str], column: str) -> str:
    return next(other for other, name in shared.items() if name == shared[column] and other != column)
