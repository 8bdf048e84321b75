"""Parses and compares values of the data: numbers, text and times. Imports neither TFX nor TensorFlow."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from embedding_core.display import shown_token

Value: TypeAlias = str | int | float | datetime.date  # includes datetime, a subclass of date

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
TRUE, FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})
# Texts that programs often write for a missing value. They are only used in messages: a value counts as missing only
# if the configuration lists it.
_MARKS = frozenset({"?", "na", "n/a", "#n/a", "null", "none", "nil", "-", "--", ".", "missing", "unknown", r"\n"})
_COMMA = re.compile(r"[+-]?\d*,\d+\Z")
_DIGITS = re.compile(r"-?\d+(\.\d+)?\Z")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ZONE = r"[+-]\d\d:\d\d(:\d\d(\.\d{6})?)?"
_MOMENT = re.compile(rf"{_DAY.pattern}(.\d\d(:\d\d(:\d\d(\.\d{{6}})?)?)?({_ZONE})?)?", re.ASCII | re.DOTALL)
_FRACTION = re.compile(r"(:\d\d)\.(\d+)")
DATE, NOT_A_MOMENT = "date", "number that is not a Unix time"


class Unit(NamedTuple):
    """A unit of moments.

    Attributes:
      name: what a moment in this unit is called in messages.
      low, high: the numbers that are Unix times in this unit: from `low` to below `high`.
      multiply, divide: factor and divisor that convert to microseconds since 1970.
    """

    name: str
    low: float
    high: float
    multiply: int
    divide: int


# Unix times from 1973 to 2100; the ranges do not overlap. The last unit is that of dates, which are not numbers.
UNITS = (
    Unit("Unix time in seconds", 1e8, 4.1e9, 10**6, 1),
    Unit("Unix time in milliseconds", 1e11, 4.1e12, 10**3, 1),
    Unit("Unix time in microseconds", 1e14, 4.1e15, 1, 1),
    Unit("Unix time in nanoseconds", 1e17, 4.1e18, 1, 10**3),
    Unit(DATE, math.inf, math.inf, 1, 1),
)

_hides_texts = contextvars.ContextVar("hides_texts", default=False)


def number(value: Value, decimal: str = ".") -> float:
    """Return the value as a number; text of digits alone becomes an int, other text a float.

    Args:
      value: a number, or the text of one.
      decimal: decimal separator of text.

    Raises:
      ValueError: the value is a date or time, or text that is not a number; the message suggests a likely remedy.
    """
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, str) or "_" in value:
        raise ValueError(f"{_quoted(value)} is not a number")
    try:
        return _from_text(value, decimal)
    except ValueError:
        raise ValueError(f"{_quoted(value)} is not a number{_cure(value, decimal)}") from None


def _from_text(text: str, decimal: str) -> float:
    if decimal != ".":
        if "." in text:  # with a decimal comma, 1.234 may mean 1234
            raise ValueError
        text = text.replace(decimal, ".")
    amount = float(text)  # infinite for too many digits, as 1e400 is
    return int(text) if text.isdecimal() and math.isfinite(amount) else amount


def _cure(text: str, decimal: str) -> str:
    if decimal == "." and _COMMA.match(text.strip()):
        return '; if the comma starts the fraction, set `data: {decimal: ","}`'
    if decimal == "," and "." in text:
        return ": a point in it, and `data.decimal` is ','; write it without signs between thousands"
    if stands_for_missing(text):
        return f"; if it means a missing value, set `data: {{missing: [{json.dumps(text)}]}}`"
    return ""


def text_of(value: Value) -> str:
    """Return the text of a value; that of a whole number is its digits, also if the number is a float."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def stands_for_missing(text: str) -> bool:
    """Return whether programs often write this text for a missing value."""
    return text.strip().casefold() in _MARKS


def instant(value: Value) -> int:
    """Return the time that a value stands for, in microseconds since 1970 UTC; a time without a zone is in UTC.

    Args:
      value: a date or datetime, an ISO date or time, or a Unix time in seconds, milli-, micro- or nanoseconds.

    Raises:
      ValueError: the value has none of these forms.
    """
    if isinstance(value, str) and not _DIGITS.match(value.strip()):
        value = _from_iso(value.strip())
    if isinstance(value, datetime.date):
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.timezone.utc)
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    return _from_unix(value)


def day_of(text: str) -> datetime.date:
    """Parse a date such as 2011-10-31; later versions of Python than 3.10 would also read 20111031 and 2011-W44-1.

    Raises:
      ValueError: it is not one.
    """
    if not _DAY.fullmatch(text):
        raise ValueError(f"{text!r} is not a date such as 2011-10-31")
    return datetime.date.fromisoformat(text)


def _from_iso(text: str) -> datetime.datetime:
    # Python 3.10 reads neither a trailing Z nor a fraction of other than 3 or 6 digits.
    plain = re.sub(r"[zZ]\Z", "+00:00", _FRACTION.sub(lambda m: f"{m[1]}.{m[2][:6]:0<6}", text))
    try:
        if not _MOMENT.fullmatch(plain):
            raise ValueError
        return datetime.datetime.fromisoformat(plain)
    except ValueError:
        raise ValueError(f"{_quoted(text)} is neither an ISO date or time nor a Unix time") from None


def _from_unix(value: str | int | float) -> int:
    amount = number(value.strip() if isinstance(value, str) else value)
    for unit in UNITS:
        if unit.low <= amount < unit.high:
            return int(amount * unit.multiply // unit.divide)
    raise ValueError(f"{_quoted(value)} is neither an ISO date or time nor a Unix time between 1973 and 2100")


def same(value: Value, given: str | int | float | bool, decimal: str = ".") -> bool:
    """Return whether a value of the data equals a value of the configuration.

    Two texts are compared as text, dates as points in time, and all else as numbers. YAML reads an unquoted
    yes or no as a boolean, so True equals "true" and "yes" in any case and the number 1, and False equals "false", "no"
    and 0.
    """
    if isinstance(given, bool) and str(value).casefold() in (TRUE if given else FALSE):
        return True
    if isinstance(value, str) and isinstance(given, str):
        return value == given
    try:
        if isinstance(value, datetime.date):
            return instant(value) == instant(given)
        return number(value, decimal) == number(given)
    except ValueError:
        return False


@contextlib.contextmanager
def hiding_texts(wanted: bool) -> Iterator[None]:
    """Show digests in place of texts in the error messages of the block, if `wanted`.

    If the fields of a row are shifted, the text in a public column may belong to a private one.
    """
    token = _hides_texts.set(wanted)
    try:
        yield
    finally:
        _hides_texts.reset(token)


def _quoted(value: Value) -> str:
    if _hides_texts.get() and isinstance(value, str) and not stands_for_missing(value):
        return f"a text ({shown_token(value.encode('utf-8', 'surrogatepass'), private=True)})"
    return short(value)


def short(value: object) -> str:
    """Return the repr of a value for a message, shortened to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
