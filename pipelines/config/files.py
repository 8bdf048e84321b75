"""The files of the data: found, put in order of their spans, and as ExampleGen is told of them."""

from __future__ import annotations

import datetime
import glob
import os
import re
from collections.abc import Callable
from typing import Any

from embedding_core.errors import ConfigError
from pipelines.config.data import Data, DataFormat, Spans
from pipelines.config.paths import FORMATS, format_of, is_remote

__all__ = ["data_files", "data_location"]

_PARTS = {"{YYYY}": r"(?P<YYYY>\d{4})", "{MM}": r"(?P<MM>\d\d)", "{DD}": r"(?P<DD>\d\d)", "{SPAN}": r"(?P<SPAN>\d+)"}
_MAGIC = re.compile(r"[*?\[{]")


def data_files(data: Data) -> tuple[str, ...]:
    """The files of the data in a fixed order (of their spans, then of their names); the path must be absolute.

    A remote path is given back as it is: whoever reads it lists it.

    Raises:
      ConfigError: there is no such file.
    """
    if is_remote(data.path):
        return (data.path,)
    files = _span_files(data) if data.has_spans else _plain_files(data)
    if not files:
        where = " in the spans asked for" if data.spans else ""
        raise ConfigError(
            f"is {data.path!r}: there is no such file{where}; give a file, a folder with files, or a glob."
        )
    return tuple(files)


def _plain_files(data: Data) -> list[str]:
    if os.path.isfile(data.path):
        return [data.path]
    folder = os.path.isdir(data.path)
    pattern = os.path.join(glob.escape(data.path), "*") if folder else data.path
    # Names that start with "_" are marks of other programs, such as _SUCCESS, unless they are asked for.
    marks = os.path.basename(pattern).startswith("_")
    found = sorted(file for file in glob.glob(pattern) if os.path.isfile(file))
    found = [file for file in found if marks or not os.path.basename(file).startswith("_")]
    named = [file for file in found if format_of(file) in _wanted(data)]
    return named or found if folder else found


def _wanted(data: Data) -> tuple[DataFormat, ...]:
    """The formats that a file of a folder may have; the others, such as a README, are not data."""
    return (data.format,) if data.format else tuple(name for name, _ in FORMATS)


def _span_files(data: Data) -> list[str]:
    pattern = re.escape(data.path).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    for part, expression in _PARTS.items():
        head, found, tail = pattern.partition(re.escape(part))
        # A part that stands twice must be the same twice.
        same = tail.replace(re.escape(part), f"(?P={part[1:-1]})")
        pattern = head + expression + same if found else pattern
    dated = []
    for file in glob.glob(_wild(data.path)):
        match = re.fullmatch(pattern, file)
        span = _span_of(match.groupdict()) if match else None
        if span is not None and _inside(span, data.spans):
            dated.append((span, file))
    return [file for _, file in sorted(dated)]


def _span_of(parts: dict[str, str]) -> Any:
    if "SPAN" in parts:
        return int(parts["SPAN"])
    try:
        return datetime.date(int(parts["YYYY"]), int(parts["MM"]), int(parts["DD"]))
    except ValueError:  # 2011-02-31 is a file's name, and no day
        return None


def _inside(span: Any, spans: Spans | None) -> bool:
    if spans is None:
        return True
    read: Callable[[Any], Any] = int if isinstance(span, int) else lambda text: datetime.date.fromisoformat(str(text))
    return (spans.first is None or read(spans.first) <= span) and (spans.last is None or span <= read(spans.last))


def data_location(data: Data) -> tuple[str, str]:
    """The folder and the pattern below it by which ExampleGen finds the same files; placeholders of spans stay.

    Args:
      data: the data, its path absolute.
    """
    if os.path.isdir(data.path):
        return data.path, "*"  # ExampleGen takes what is named like the format
    if os.path.isfile(data.path):
        return os.path.dirname(data.path), glob.escape(os.path.basename(data.path))
    parts = data.path.split("/")
    first = next((index for index, part in enumerate(parts[:-1]) if _MAGIC.search(part)), len(parts) - 1)
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _wild(path: str) -> str:
    for part in _PARTS:
        path = path.replace(part, "*")
    return path
