"""Guesses what each column is to the model: the label, a number, tokens, a time, or nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from components.example_gen.sampling import Column
from components.example_gen.values import FALSE, TRUE, instant
from embedding_core.errors import ConfigError, nearest
from pipelines.checks.column_codes import (
    ITEM,
    USER,
    agreed,
    has_trend,
    is_code_by_name,
    is_number,
    is_once,
    is_quantity_by_name,
    is_whole,
    names_in,
    why_codes,
    word_set,
    words_of,
)
from pipelines.config.column_rules import input_key

_FEW = 40  # whole numbers with at most as many distinct values are categories
_FLAGS = 10  # a quantity with at most as many is a category too
_LISTS = 0.3  # share of values that a sign must split into several
_LONG_TAIL = 20.0  # largest number over the median, above which an amount gets log1p
_NUMBERED = 1.2  # whole numbers that number the rows span at most so many times the number of rows
_EXACT = 2.0**53  # from here on, neighbouring whole numbers are one float
_EMPTY = 0.995  # share of rows without a value above which a column is left out
_WORDS = 3  # a text with as many words is read word by word

_DATE = re.compile(  # not ISO
    rb"(\d{1,2}([/.-])\d{1,2}\2\d{4}|\d{4}([/.])\d{1,2}\3\d{1,2}|\d{1,2}/\d{1,2}/\d\d)([ ,T].*)?\Z"
)

_CALENDAR = word_set("area hour day month week weekday dow year quarter")
_TIME = word_set("time timestamp ts date datetime created updated at day")
_PERSONAL = USER | word_set("email mail phone mobile tel ip ssn name surname firstname lastname address")
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


def guess_columns(columns: Mapping[str, Column], label: Column | None = None, *, whole: bool = True) -> list[Guess]:
    """Guess the role of each column, in order; pairs such as pickup_area and dropoff_area share a vocabulary.

    Args:
      columns: the columns of some rows.
      label: the column that is predicted, by which codes are told from quantities; None if there is none.
      whole: whether these are all rows of the data.
    """
    numbers = {name: column for name, column in columns.items() if is_number(column)}
    tokens = agreed({name: _why_tokens(name, column, label) for name, column in numbers.items()}, columns)
    guesses = (_guess(name, column, tokens.get(name, "tokens"), whole=whole) for name, column in columns.items())
    return _with_shared_vocabularies(_with_names_of_their_own(guesses))


def facts(column: Column) -> str:
    """Describe a column in a few words."""
    missing = column.missing / max(1, column.rows)
    return f"{column.kind}, {column.distinct:,} distinct, {missing:.0%} missing"


def _guess(name: str, column: Column, tokens: str | None, *, whole: bool) -> Guess:
    """Guess the role of a column; `tokens` says why its values are tokens, None that they are quantities."""
    named = names_in(name)

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
    if _is_date(column):
        return guess("left_out", "dates that a split by time cannot read; write them as 2026-01-31")
    if column.kind == "lists of floats":
        return guess("left_out", "a list of numbers per row, and these are not tokens")
    if column.kind.startswith("lists of"):
        return guess("categorical", "a list of tokens per row", multivalent=True)
    once = is_once(column)
    if tokens is None:
        low, _, high = column.extent or (0.0, 0.0, 0.0)
        if once and is_whole(column) and high < _EXACT and high - low < _NUMBERED * column.rows:
            return guess("left_out", "numbers of the rows")
        return _amount(name, column)
    personal = bool(named & _PERSONAL) and column.distinct > _TWO  # is_member says nothing about who
    separator = None if once and personal else _separator(column)
    if separator is not None:
        return guess("categorical", f"several tokens in one text, between {separator!r}", separator=separator)
    if once and (whole or not named & (USER | ITEM)):
        return guess("left_out", "nearly every row has a value of its own, so most rows of a table would never recur")
    private = {"private": True} if personal else {}
    hidden = "; about a person, so reports show digests" if private else ""
    return guess("categorical", f"{tokens}{hidden}", **private)


def _why_tokens(name: str, column: Column, label: Column | None) -> str | None:
    """Say why numbers are tokens; None if they are quantities."""
    if not is_whole(column):
        return None
    if names_in(name) & _CALENDAR and not is_quantity_by_name(name):
        return "named like a category"
    if column.distinct > _FEW or is_once(column) or is_code_by_name(name):
        return why_codes(name, column, label)
    if column.distinct <= _FLAGS:
        return "few distinct values"
    trend = label is not None and label is not column and has_trend(column, label)
    return None if trend or is_quantity_by_name(name) else "few distinct values"


def _amount(name: str, column: Column) -> Guess:
    low, median, high = column.extent or (0.0, 0.0, 0.0)
    why = f"{facts(column)}: from {low:g} to {high:g}"
    if low >= 0 and high > _LONG_TAIL * max(median, 1.0):
        why = f"{why} with {median:g} in the middle of the distinct ones, a long tail"
        return Guess(column=name, role="dense", options={"log1p": True}, why=why)
    return Guess(column=name, role="dense", why=why)


def _is_time(named: frozenset[str], column: Column) -> bool:
    if column.kind == "times":
        return True
    if column.kind.startswith("lists") or (column.kind != "text" and not named & _TIME):
        return False
    return bool(column.frequent) and all(_is_instant(value) for value, _ in column.frequent)


def _is_date(column: Column) -> bool:
    """Return whether the values are dates that are not ISO."""
    return bool(column.frequent) and all(_DATE.match(value) for value, _ in column.frequent)


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
        is_feature = guess.role in ("dense", "categorical")
        other = first.setdefault(input_key(guess.column), guess.column) if is_feature else guess.column
        if other == guess.column:
            yield guess
        else:
            why = f"as an input of the served model it has the name that {other!r} has; rename it in the data"
            yield Guess(column=guess.column, role="left_out", why=why)


def _with_shared_vocabularies(guesses: Iterable[Guess]) -> list[Guess]:
    """Give pairs of columns one vocabulary: those whose names differ in a word such as pickup and dropoff."""
    guesses = list(guesses)
    groups: dict[str, list[str]] = {}
    for guess in guesses:
        words = words_of(guess.column)
        if guess.role == "categorical" and len(words) > 1 and words[0] in _ENDS:
            groups.setdefault("_".join(words[1:]), []).append(guess.column)
    taken = {*feature_names([guess.column for guess in guesses if guess.role in ("dense", "categorical")]).values()}
    shared: dict[str, str] = {}
    for name, members in groups.items():
        if len(members) == 2:
            vocabulary = _free(_valid_part(name), taken)
            taken.add(vocabulary)
            shared.update(dict.fromkeys(members, vocabulary))
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


def feature_names(columns: Sequence[str]) -> dict[str, str]:
    """Return a name for the feature of each column: the column's, or if that is not a valid name, its valid part."""
    names: dict[str, str] = {}
    for column in columns:
        name = column if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}", column) else _valid_part(column)
        names[column] = _free(name, names.values())
    return names


def _free(name: str, taken: Container[str]) -> str:
    """Return the name, with a number at its end if it is taken."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _valid_part(column: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")[:150] or "column"


def _other(shared: Mapping[str, str], column: str) -> str:
    return next(other for other, name in shared.items() if name == shared[column] and other != column)


# Guesses which column is the label, and what kind of task that makes.

_OUTCOME = word_set("label target outcome response rating stars sold sales revenue delay")
_YES_OR_NO = word_set(
    "clicked click purchased purchase bought converted conversion churn churned attrition exited default survived "
    "readmitted cancelled canceled callback fraud spam liked like attributed booked subscribed delayed"
)
_ALONE = word_set("y class status left score overall count cnt")  # as one word of several, they name features
_AMOUNT = word_set("rating stars score overall sold sales revenue delay count cnt")
_MONEY = word_set("price fare tip salary wage charges")
_NEVER_LABELS = USER | ITEM | word_set("id gender sex")
_MOST_CLASSES = 50
_TWO = 2


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


def read_by_towers(guesses: Sequence[Guess], label: LabelGuess) -> list[Guess]:
    """Leave out the columns that neither tower of a retrieval model reads."""
    if label.model is None:
        return list(guesses)
    read = {name for names in label.model["arguments"].values() for name in names}
    why = "neither tower reads it; to use it, list it in `query_features` or `candidate_features`"
    return [
        guess
        if guess.column in read or guess.role in ("time", "left_out")
        else dataclasses.replace(guess, role="left_out", options={}, why=f"{guess.why}; {why}")
        for guess in guesses
    ]


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
    named = [name for name, column in useful.items() if _is_outcome(name, column)]
    named = [name for name in named if name != "y" or "x" not in useful]  # y beside x is a place
    if named:
        # A name of one word says it better than a name of several, and two values better than many.
        name = max(named, key=lambda name: (len(words_of(name)) == 1, useful[name].distinct == _TWO, named.index(name)))
        return _of_column(name, useful[name], "named like an outcome")
    guess = _without_name(useful, guesses)
    constant = [name for name, column in columns.items() if column.distinct == 1 and _is_outcome(name, column)]
    if not constant:
        return guess
    guess = _of_events(columns, guesses) or guess
    only = f"{constant[-1]!r} is named like an outcome, but has one value in these rows, as if they were events"
    return dataclasses.replace(guess, why=f"{guess.why}; {only}")


def _is_outcome(name: str, column: Column) -> bool:
    """Return whether the name is that of an outcome: Purchase is and WeekOfPurchase is not, unless it is yes or no."""
    words = [word for word in words_of(name) if not word.isdigit()]
    if column.distinct > _MOST_CLASSES and not is_number(column):
        return False
    if len(words) == 1:
        return words[0] in _OUTCOME | _YES_OR_NO | _ALONE
    if column.distinct <= _TWO:
        return not (_OUTCOME | _YES_OR_NO).isdisjoint(words)
    return not _OUTCOME.isdisjoint(words[-1:])


def _without_name(columns: Mapping[str, Column], guesses: Sequence[Guess]) -> LabelGuess:
    """Guess the label by the places and the values of the columns that have several.

    Raises:
      ConfigError: no column can be a label.
    """
    features = {guess.column for guess in guesses if guess.role in ("dense", "categorical")}
    names = [name for name in columns if name in features and not names_in(name) & _NEVER_LABELS]
    two = [name for name in names if columns[name].distinct == _TWO]
    numbers = [name for name in names if is_number(columns[name]) and not is_code_by_name(name)]
    events = _of_events(columns, guesses)
    likely = (
        ("the last column, of two values", [name for name in names[-1:] if name in two]),
        ("named like an amount of money", [name for name in numbers if names_in(name) & _MONEY and not events]),
        ("the last column of two values such as 0 and 1", [name for name in two if _is_binary(columns[name])]),
    )
    possible = (
        ("the last column of two values", two),
        ("the last column of numbers that are not whole", [name for name in numbers if not is_whole(columns[name])]),
        ("the last column of numbers", numbers),
        ("the last column of few values", [name for name in names if columns[name].distinct <= _MOST_CLASSES]),
    )
    guess = _last_of(columns, likely) or events or _last_of(columns, possible)
    if guess is None:
        raise ConfigError(
            f"no column of {', '.join(list(columns)[:10])} looks like a label, and no two like user and item: name the "
            "label with `--label`, such as --label clicked; if rows are events, rename columns to user and item, or "
            "write `label: {kind: positive}` and `model: {name: two_tower, arguments: {query_features: [USER], "
            "candidate_features: [ITEM]}}` by hand."
        )
    return guess


def _last_of(columns: Mapping[str, Column], choices: Iterable[tuple[str, Sequence[str]]]) -> LabelGuess | None:
    """Take the last name of the first choice that has any."""
    for why, names in choices:
        if names:
            return _of_column(names[-1], columns[names[-1]], why)
    return None


def _is_binary(column: Column) -> bool:
    values = {value.decode("utf-8", "replace").strip().casefold() for value, _ in column.frequent}
    return len(values) == _TWO and bool(values & TRUE) and bool(values & FALSE) and values <= TRUE | FALSE


def _is_measured(column: Column) -> bool:
    """Return whether the numbers were measured.

    They were if some are not whole, or if all have a decimal point although no value is missing: pandas adds points
    only if values are missing.
    """
    return not is_whole(column) or (bool(column.with_point) and not column.missing)


def _of_column(name: str, column: Column, why: str) -> LabelGuess:
    label, task = _kind(name, column)
    some = column.missing > 0
    return LabelGuess(label={"column": name, **label}, column=name, why=f"{why}; {task}", only_with_label=some)


def _kind(name: str, column: Column) -> tuple[dict[str, Any], str]:
    if column.distinct < _TWO:
        values = "one value" if column.distinct else "no value"
        raise ConfigError(
            f"column {name!r} has {values} in all {column.rows:,} rows that were read, so it cannot be the label: name "
            "another column with `--label`, or give rows with other values."
        )
    if _is_binary(column):
        return {}, "two values, so a probability is predicted"
    if column.distinct == _TWO:
        rarer = column.frequent[-1][0].decode("utf-8", "replace")
        return {"positive": rarer}, f"two values, so the probability of the rarer one, {rarer!r}, is predicted"
    if is_number(column) and (names_in(name) & _AMOUNT or column.distinct > _MOST_CLASSES or _is_measured(column)):
        return {"kind": "regression"}, "numbers, so a number is predicted"
    if column.distinct <= _MOST_CLASSES:
        return {"kind": "multiclass"}, f"{column.distinct} values, so one of these classes is predicted"
    raise ConfigError(
        f"column {name!r} has {column.distinct:,} distinct texts, too many for classes: name another column with "
        "`--label`."
    )


def _of_events(columns: Mapping[str, Column], guesses: Sequence[Guess]) -> LabelGuess | None:
    """Take the rows as events of users with items, if there are such columns: which item comes next is predicted.

    Without such names, the two columns of many tokens beside a time are the user and the item, unless one of two
    values may be the label.
    """
    tokens = [
        guess.column
        for guess in guesses
        if guess.role == "categorical" and not {"separator", "multivalent"} & guess.options.keys()
    ]
    # The user is the column of most values, which user_country is not; a session is one of many of a user.
    tokens.sort(key=lambda name: ("session" in names_in(name), -columns[name].distinct))
    users = [name for name in tokens if names_in(name) & USER]
    items = [name for name in tokens if names_in(name) & ITEM and name not in users]
    times = any(guess.role == "time" for guess in guesses) or any(map(_is_date, columns.values()))
    if times and not (users and items) and not any(column.distinct == _TWO for column in columns.values()):
        many = [name for name in columns if name in tokens and columns[name].distinct > _FEW]
        users, items = (many[:1], many[1:]) if len(many) == _TWO else ([], [])
    if not users or not items:
        return None
    return LabelGuess(
        label={"kind": "positive"},
        column=None,
        why=f"no outcome, but {users[0]} and {items[0]}: rows are events, and the item of an event is predicted",
        model={"name": "two_tower", "arguments": {"query_features": [users[0]], "candidate_features": [items[0]]}},
        softmax=items[0],
    )
