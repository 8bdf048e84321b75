"""Decides whether the whole numbers of a column are codes or quantities: by its name, then by its rows."""

from __future__ import annotations

import os
import re
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
_UNEVEN = 4.0  # variance of the counts over their mean; 1 is chance
_ALIKE = 0.3  # correlation of the counts of neighbours, from which on the order says how often a number occurs
_ROUND = 5  # people round quantities to multiples of 5, so these occur more often than their neighbours


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
    "id ids code cd zip zipcode postal postcode sku tract region district type category cat class kind version nr no "
    "country county state city airport airline carrier station shop store seller vendor merchant brand genre author "
    "publisher advertiser site domain app device os browser channel platform ip resource mgr manager dept department "
    "role title job occupation employee employer company query keyword group cluster segment"
)
_CODES = _CODE | USER | ITEM
_QUANTITY = word_set(
    "age amount price cost fare fee tip toll total sum balance income salary wage revenue sales budget tax gain loss "
    "count cnt counts qty quantity times visits views clicks minutes seconds hours days months years duration length "
    "distance miles km meters width height depth size weight volume rate ratio percent pct score points rank avg mean "
    "median min max std lat latitude lon lng longitude temperature speed delay"
)
_COUNTED = word_set("num number n nb no count total sum avg mean min max days hours")  # of what follows


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case: `userId` and `user_id` give user and id."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", os.path.basename(name))
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def names_in(name: str) -> frozenset[str]:
    """Return the words of a column's name, in other spellings too: `userid` gives user, `StockCode` stockcode."""
    words = words_of(name)
    return frozenset({*words, *(word.removesuffix("id") for word in words), "".join(words)})


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
    return words[0] == "id" or any(_CODES & {word, word.removesuffix("id")} for word in (words[-1], "".join(words)))


def _is_count(words: list[str]) -> bool:
    return len(words) > 1 and (words[0] in _COUNTED or bool({"per", "since"} & {*words}))


def why_codes(name: str, column: Column, label: Column | None = None) -> str | None:
    """Say why whole numbers are codes, whose order says nothing; None if they do not look like codes.

    Args:
      name: the column's name, which decides if it has a word for codes or for quantities.
      column: the column.
      label: the label's column of the same rows.
    """
    if not is_whole(column) or column.extent is None or column.extent[0] < -1:
        return None
    if is_code_by_name(name):
        return "named like a code"
    if is_quantity_by_name(name) or is_once(column) or column.distinct < _LEAST:
        return None
    numbers = _row_numbers(column)
    ordered = None if label is None or label is column else _follows(numbers, label)
    if ordered is None:
        uneven = _is_uneven(*np.unique(numbers[np.isfinite(numbers)], return_counts=True))
        return "some numbers are frequent and those next to them are not, as with codes" if uneven else None
    return None if ordered else "the label differs from number to number and follows no trend, as with codes"


def has_trend(column: Column, label: Column) -> bool:
    """Return whether the label follows the order of the column's numbers."""
    return column.distinct >= _LEAST and _follows(_row_numbers(column), label) is True


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
    """Compare the label's mean by number with a smooth trend over the numbers: the F test for lack of fit.

    Returns:
      True if the trend says more of the label than the single numbers add to it, False if they add more, None if
      neither is more than chance.
    """
    known = np.isfinite(numbers) & np.isfinite(label)
    distinct, inverse, counts = np.unique(numbers[known], return_inverse=True, return_counts=True)
    values, groups = label[known], len(distinct)
    trend = _trend(counts)
    free = len(values) - groups
    if groups <= trend.shape[1] + 1 or free < _ENOUGH:
        return None
    values = values - values.mean()
    means = np.bincount(inverse, values) / counts
    weights = np.sqrt(counts)
    fitted = trend @ np.linalg.lstsq(trend * weights[:, None], means * weights, rcond=None)[0]
    noise = float(((values - means[inverse]) ** 2).sum()) / free
    beyond = _beyond_chance(float((counts * (means - fitted) ** 2).sum()), groups - trend.shape[1], noise, free)
    along = _beyond_chance(float((counts * fitted**2).sum()), trend.shape[1] - 1, noise, free)
    if beyond[1] < _SURE and along[1] < _SURE:
        return None
    return along[1] >= _SURE and along[0] >= (beyond[0] if beyond[1] >= _SURE else 0.0)


def _trend(counts: npt.NDArray[np.int64]) -> Numbers:
    """Return curves over the distinct numbers, [numbers, curves]: by their order, and by the share of rows below."""
    order = np.linspace(-1, 1, len(counts))
    below = 2 * (np.cumsum(counts) - counts / 2) / max(1, counts.sum()) - 1
    return np.stack([np.ones(len(counts)), order, order**2, order**3, below, below**2], axis=1)


def _beyond_chance(squares: float, free: int, noise: float, noise_free: int) -> tuple[float, float]:
    """Return the sum of squares without what noise adds to it, and by how many deviations it is beyond chance."""
    extra = squares - free * noise
    deviation = free * noise * float(np.sqrt(2 / free + 2 / noise_free))
    return extra, extra / deviation if deviation > 0 else (np.inf if extra > 1e-12 else 0.0)


def _is_uneven(distinct: Numbers, counts: npt.NDArray[np.int64]) -> bool:
    """Return whether some numbers are frequent, not because they are round, and their neighbours are not."""
    counts = counts[distinct % _ROUND != 0]
    if len(counts) < len(distinct) / 2 or len(counts) < _LEAST or counts.var() < _UNEVEN * counts.mean():
        return False
    logs = np.log(counts)
    with np.errstate(invalid="ignore"):  # NaN if all counts but one are equal
        return bool(np.corrcoef(logs[:-1], logs[1:])[0, 1] < _ALIKE)
