"""What one value of the data is as a number, as a text and as a point in time. No TFX, no TensorFlow."""

from __future__ import annotations

import datetime
import re
from typing import TypeAlias

__all__ = ["Value", "instant", "number", "same"]

Value: TypeAlias = str | int | float | datetime.date  # a datetime is a date

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_DIGITS = re.compile(r"-?\d+(\.\d+)?\Z")
_FRACTION = re.compile(r"(:\d\d)\.(\d+)")
# Unix times from 1973 to 2100 in seconds, milli-, micro- and nanoseconds (the ranges do not meet), to microseconds.
_UNITS = ((1e8, 4.1e9, 10**6, 1), (1e11, 4.1e12, 10**3, 1), (1e14, 4.1e15, 1, 1), (1e17, 4.1e18, 1, 10**3))


def number(value: Value) -> float:
    """The value as a number; whole numbers stay exact.

    Raises:
      ValueError: it is a text that is no number, or a time.
    """
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, str) or "_" in value:
        raise ValueError(f"{_short(value)} is no number")
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise ValueError(f"{_short(value)} is no number") from None


def instant(value: Value) -> int:
    """The point in time that a value means, in microseconds since 1970 UTC; without a zone it is UTC.

    Args:
      value: a date or datetime, an ISO date or time, or a Unix time in seconds, milli-, micro- or nanoseconds.

    Raises:
      ValueError: it is none of these.
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
        raise ValueError(f"{_short(text)} is no ISO date or time and no Unix time") from None


def _from_unix(value: str | int | float) -> int:
    amount = number(value.strip() if isinstance(value, str) else value)
    for low, high, multiply, divide in _UNITS:
        if low <= amount < high:
            return int(amount * multiply // divide)
    raise ValueError(f"{_short(value)} is no ISO date or time, and no Unix time between 1973 and 2100")


def same(value: Value, given: str | int | float | bool) -> bool:
    """Whether a value of the data is the given one: numbers as numbers, text as text."""
    if isinstance(given, bool):
        return str(value).casefold() in ({"true", "1"} if given else {"false", "0"})
    if isinstance(value, str) and isinstance(given, str):
        return value == given
    try:
        if isinstance(value, datetime.date):
            return instant(value) == instant(given)
        return number(value) == number(given)
    except ValueError:
        return False


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
