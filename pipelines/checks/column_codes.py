"""Decides whether the whole numbers of a column are codes or quantities: by its name, then by its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.example_gen.rows import is_list
from components.example_gen.sampling import Column, value_texts

Numbers: TypeAlias = npt.NDArray[np.float64]

_ONCE = 0.9  # share of distinct values above which a column identifies its row
_ENOUGH = 50  # fewer values say nothing about how often they repeat
_LEAST = 8  # fewer distinct numbers have any order
_SURE = 4.0  # standard deviations beyond chance
_ALONG = 0.5  # share of the differences between numbers that their order explains
_STEPS = 0.5  # squared difference of neighbours over that of any two numbers; about 1 for codes
_UNEVEN = 4.0  # variance of the counts over their mean; 1 is chance
_ALIKE = 0.3  # correlation of the counts of neighbours, from which on the order says how often a number occurs
_ROUND = 5  # people round quantities to multiples of 5, so these occur more often than their neighbours
_SAME = 0.7  # share of the numbers of two columns of one coding that both have
_MOST = 1_000  # more distinct numbers are not compared
_ENDING = re.compile(r"(id|no|number|name|key|code)\Z")  # of a word such as userid


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, without order."""
    return frozenset(text.split())


USER = word_set(
    "user uid usr customer cust client buyer shopper visitor member account acct session reader viewer listener player "
    "subscriber msno kunde nutzer cliente usuario utilisateur"
)
ITEM = word_set(
    "item iid product prod movie film video song track artist album article news book isbn asin sku stockcode anime "
    "game recipe ad creative listing hotel restaurant business venue place poi location artikel produkt producto"
)
_CODE = word_set(
    "id ids code cd key idx number nr no zip zipcode postal postcode sku tract region district type category cat class "
    "kind version country county state city airport airline carrier station shop store seller vendor merchant brand "
    "genre author publisher advertiser site domain app device os browser channel platform ip resource mgr manager dept "
    "department role title job occupation employee employer company query keyword group cluster segment"
)
_CODES = _CODE | USER | ITEM
_QUANTITY = word_set(
    "age amount price cost fare fee tip toll total sum balance income salary wage revenue sales budget tax gain loss "
    "count cnt counts qty quantity times visits views clicks minutes seconds hours days months years duration length "
    "distance miles km meters width height depth size weight volume rate ratio percent pct score points rank avg mean "
    "median min max std lat latitude lon lng longitude temperature speed delay"
)
_COUNTED = word_set(
    "num number n nb no count total sum avg mean min max minutes hours days weeks months years"
)  # of what follows


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case: `userId` and `user_id` give user and id."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[\W_]+", spaced) if word]


def names_in(name: str) -> frozenset[str]:
    """Return the words of a column's name, in other spellings too: `userid` gives user, `StockCode` stockcode."""
    words = words_of(name)
    return frozenset({*words, *(_ENDING.sub("", word) for word in words), "".join(words)})


def is_number(column: Column) -> bool:
    """Return whether all values of the column are numbers, one per row."""
    return column.extent is not None and _is_single(column)


def _is_single(column: Column) -> bool:
    return not any(is_list(piece.type) for piece in column.pieces)


def is_whole(column: Column) -> bool:
    """Return whether all values of the column are whole numbers, one per row; 3.0 is one."""
    whole = column.kind == "whole numbers" or column.with_point == column.rows - column.missing
    return is_number(column) and whole


def is_once(column: Column) -> bool:
    """Return whether nearly every row has a value of its own."""
    values = column.rows - column.missing
    return values >= _ENOUGH and column.distinct > _ONCE * values


def is_quantity_by_name(name: str) -> bool:
    """Return whether the name is that of a quantity: user_age and num_items are, age_group and item are not."""
    words = words_of(name)
    return _is_count(words) or (bool(_QUANTITY & {*words}) and not is_code_by_name(name))


def is_code_by_name(name: str) -> bool:
    """Return whether the last word, or `id` as the first, is that of a code or of what has one, such as a user."""
    words = [word for word in words_of(name) if not word.isdigit()]
    if not words or _is_count(words):
        return False
    return words[0] == "id" or any(_CODES & {word, _ENDING.sub("", word)} for word in (words[-1], "".join(words)))


def _is_count(words: list[str]) -> bool:
    return len(words) > 1 and (words[0] in _COUNTED or bool({"per", "since"} & {*words}))


def why_codes(name: str, column: Column, label: Column | None = None) -> str | None:
    """Say why whole numbers are codes, whose order says nothing; None if they do not look like codes.

    Args:
      name: the column's name, which decides if it has a word for codes or for quantities.
      column: the column.
      label: the label's column of the same rows.
    """
    if not is_whole(column) or column.extent is None:
        return None
    if is_code_by_name(name):
        return "named like a code"
    if is_quantity_by_name(name) or is_once(column) or column.distinct < _LEAST or column.extent[0] < -1:
        return None
    numbers = _row_numbers(column)
    ordered = None if label is None or label is column else _follows(numbers, label)
    if ordered is None:
        uneven = _is_uneven(*np.unique(numbers[np.isfinite(numbers)], return_counts=True))
        return "some numbers are frequent and those next to them are not, as with codes" if uneven else None
    return None if ordered else "the label leaps from number to number, as with codes"


def agreed(reasons: Mapping[str, str | None], columns: Mapping[str, Column]) -> dict[str, str | None]:
    """Decide alike for columns of one coding: as for most of them, and for codes at a tie.

    Args:
      reasons: for each column, why its numbers are codes; None if they are not.
      columns: the columns.
    """
    decided = dict(reasons)
    for family in families({name: columns[name] for name in reasons}):
        codes = [name for name in family if reasons[name] is not None]
        for name in family if codes else ():
            like = f"like {codes[0]}, which has nearly the same values: {reasons[codes[0]]}"
            decided[name] = (reasons[name] or like) if 2 * len(codes) >= len(family) else None
    return decided


def families(columns: Mapping[str, Column]) -> Iterator[list[str]]:
    """Yield the columns of one coding: names that differ only by a number, and nearly the same whole numbers."""
    found: dict[str, list[tuple[frozenset[float], list[str]]]] = {}
    for name, column in columns.items():
        stem = re.sub(r"\d+", "#", name)
        if stem == name or not is_whole(column) or column.distinct > _MOST:
            continue
        rows = _row_numbers(column)
        numbers = frozenset(rows[np.isfinite(rows)].tolist())
        groups = found.setdefault(stem, [])
        shares = [len(first & numbers) / len(first | numbers) for first, _ in groups]
        if max(shares, default=0.0) >= _SAME:
            groups[shares.index(max(shares))][1].append(name)
        else:
            groups.append((numbers, [name]))
    yield from (members for groups in found.values() for _, members in groups)


def has_trend(column: Column, label: Column) -> bool:
    """Return whether the label follows the order of the column's numbers."""
    return _follows(_row_numbers(column), label) is True


def _follows(numbers: Numbers, label: Column) -> bool | None:
    return _is_ordered(numbers, _row_ranks(label)) if _is_single(label) else None


def _row_numbers(column: Column) -> Numbers:
    """Return the number of each row, NaN without one."""
    return _per_row(column)[0]


def _row_ranks(column: Column) -> Numbers:
    """Return the rank of each row's value, as a share of the rows: outliers do not count more than other values."""
    numbers, places = _per_row(column)
    present = places >= 0
    if np.isnan(numbers[present]).any():  # texts: the most frequent one or another
        numbers = np.where(present, (places == np.argmax(np.bincount(places[present]))).astype(float), np.nan)
    distinct, inverse, counts = np.unique(numbers[present], return_inverse=True, return_counts=True)
    ranks = np.full(len(numbers), np.nan)
    if len(distinct):
        ranks[present] = ((np.cumsum(counts) - counts / 2) / counts.sum())[inverse]
    return ranks


def _per_row(column: Column) -> tuple[Numbers, npt.NDArray[np.int64]]:
    """Return the number of each row, NaN without one, and the place of its value among the distinct, -1 without one."""
    encoded = pa.concat_arrays([value_texts(piece) for piece in column.pieces]).dictionary_encode()
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = np.array([*map(_number, encoded.dictionary.to_pylist()), np.nan])
    return numbers[places], places


def _number(text: bytes) -> float:
    try:
        return float(text.replace(b",", b"."))
    except ValueError:
        return float("nan")


def _is_ordered(numbers: Numbers, label: Numbers) -> bool | None:
    """Compare the label's mean by number along the numbers: it follows a quantity's order, and leaps between codes.

    Returns:
      True if the mean follows the order or neighbours have about the same, False if neighbours differ as any two
      numbers do, None if the means differ by no more than chance.
    """
    values, inverse, counts = _repeated(numbers, label)
    if len(counts) < _LEAST:
        return None
    values = values - values.mean()
    means = np.bincount(inverse, values) / counts
    noise = np.bincount(inverse, (values - means[inverse]) ** 2) / (counts - 1) / counts  # variance of each mean
    signal = float((counts * (means**2 - noise)).sum())
    if signal <= _SURE * float(np.sqrt(2 * ((counts * noise) ** 2).sum())):
        return None
    below = np.cumsum(counts) - counts / 2
    below -= (counts * below).sum() / counts.sum()
    along = float((counts * below * means).sum() ** 2 / (counts * below**2).sum())
    weights = counts[:-1] * counts[1:] / (counts[:-1] + counts[1:])
    steps = float((weights * (np.diff(means) ** 2 - noise[:-1] - noise[1:])).sum() / weights.sum())
    any_two = 2 * signal / float(counts.sum() - (counts**2).sum() / counts.sum())
    return along > _ALONG * signal or steps < _STEPS * any_two


def _repeated(numbers: Numbers, label: Numbers) -> tuple[Numbers, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the labels of the numbers that occur more than once, the place of each one's number, and their counts."""
    known = np.isfinite(numbers) & np.isfinite(label)
    numbers, label = numbers[known], label[known]
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    often = counts[inverse] > 1
    _, inverse, counts = np.unique(numbers[often], return_inverse=True, return_counts=True)
    return label[often], inverse, counts


def _is_uneven(distinct: Numbers, counts: npt.NDArray[np.int64]) -> bool:
    """Return whether some numbers are frequent, not because they are round, and their neighbours are not."""
    counts = counts[distinct % _ROUND != 0]
    if len(counts) < len(distinct) / 2 or len(counts) < _LEAST or counts.var() < _UNEVEN * counts.mean():
        return False
    logs = np.log(counts)
    with np.errstate(invalid="ignore"):  # NaN if all counts but one are equal
        return bool(np.corrcoef(logs[:-1], logs[1:])[0, 1] < _ALIKE)
