"""Reads one value of the data as a number, a text or a point in time. No TFX, no TensorFlow."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import re
from collections.abc import Iterator
from typing import TypeAlias

from embedding_core.display import shown_token

Value: TypeAlias = str | int | float | datetime.date  # a datetime is a date

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
TRUE, FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})
# Texts that programs write for a missing value, to suggest the remedy; only those configured count as missing.
_MARKS = frozenset({"?", "na", "n/a", "#n/a", "null", "none", "nil", "-", "--", ".", "missing", "unknown", r"\n"})
_COMMA = re.compile(r"[+-]?\d*,\d+\Z")
_DIGITS = re.compile(r"-?\d+(\.\d+)?\Z")
_FRACTION = re.compile(r"(:\d\d)\.(\d+)")
# Unix times from 1973 to 2100 in seconds, milli-, micro- and nanoseconds (the ranges do not meet), to microseconds.
_UNITS = ((1e8, 4.1e9, 10**6, 1), (1e11, 4.1e12, 10**3, 1), (1e14, 4.1e15, 1, 1), (1e17, 4.1e18, 1, 10**3))

_hides_texts = contextvars.ContextVar("hides_texts", default=False)


def number(value: Value, decimal: str = ".") -> float:
    """Return the value as a number; whole numbers stay exact.

    Args:
      value: a number, or text that means one.
      decimal: sign before the fraction in text.

    Raises:
      ValueError: it is a text that is not a number, or a time; the message holds the remedy if one is likely.
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
    return int(text) if text.isdecimal() else float(text)


def _cure(text: str, decimal: str) -> str:
    if decimal == "." and _COMMA.match(text.strip()):
        return '; if the comma starts the fraction, set `data: {decimal: ","}`'
    if decimal == "," and "." in text:
        return ": a point in it, and `data.decimal` is ','; write it without signs between thousands"
    if stands_for_missing(text):
        return f"; if it means a missing value, set `data: {{missing: [{json.dumps(text)}]}}`"
    return ""


def stands_for_missing(text: str) -> bool:
    """Whether programs often write the text for a missing value."""
    return text.strip().casefold() in _MARKS


def instant(value: Value) -> int:
    """Return the point in time that a value means, in microseconds since 1970 UTC; without a zone it is UTC.

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


def _from_iso(text: str) -> datetime.datetime:
    # Python 3.10 reads neither a trailing Z nor a fraction of other than 3 or 6 digits.
    plain = re.sub(r"[zZ]\Z", "+00:00", _FRACTION.sub(lambda m: f"{m[1]}.{m[2][:6]:0<6}", text))
    try:
        return datetime.datetime.fromisoformat(plain)
    except ValueError:
        raise ValueError(f"{_quoted(text)} is neither an ISO date or time nor a Unix time") from None


def _from_unix(value: str | int | float) -> int:
    amount = number(value.strip() if isinstance(value, str) else value)
    for low, high, multiply, divide in _UNITS:
        if low <= amount < high:
            return int(amount * multiply // divide)
    raise ValueError(f"{_quoted(value)} is neither an ISO date or time nor a Unix time between 1973 and 2100")


def same(value: Value, given: str | int | float | bool, decimal: str = ".") -> bool:
    """Whether a value of the data is the given one: numbers as numbers, text as text.

    A given true is also yes, and a false no: YAML reads the words so, if they are not in quotes.
    """
    if isinstance(given, bool):
        return str(value).casefold() in (TRUE if given else FALSE)
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
    """Show digests of texts in the messages of the block: in a shifted row, they are another column's."""
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
    """Return the value as a message shows it, cut off at 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
