"""Paths of the configuration: relative, home, inside an installed package, remote; and the files of the data."""

from __future__ import annotations

import datetime
import glob
import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any

from embedding_core.errors import ConfigError
from pipelines.config.data import Data, DataFormat, Spans

__all__ = ["data_files", "format_of", "is_remote", "resolve"]

_PACKAGE = "package:"
_PARTS = {"{YYYY}": r"(?P<YYYY>\d{4})", "{MM}": r"(?P<MM>\d\d)", "{DD}": r"(?P<DD>\d\d)", "{SPAN}": r"(?P<SPAN>\d+)"}
_FORMATS: tuple[tuple[DataFormat, re.Pattern[str]], ...] = (
    ("csv", re.compile(r"\.csv(\.gz)?$")),
    ("tfrecord", re.compile(r"tfrecords?(\.gz)?(-\d+-of-\d+)?(\.gz)?$")),
    ("parquet", re.compile(r"\.parquet$")),
)


def is_remote(path: str) -> bool:
    """Whether the path names another file system, as gs:// does."""
    return "://" in path


def resolve(path: str, folder: str) -> str:
    """The absolute path: relative ones start at the folder, `package:` ones in the installed package.

    Raises:
      ConfigError: the package is not installed.
    """
    if is_remote(path):
        return path
    if path.startswith(_PACKAGE):
        return _in_package(path)
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _in_package(path: str) -> str:
    package, _, rest = path.removeprefix(_PACKAGE).partition("/")
    # find_spec of a name without dots looks for the package and does not import it.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"is {path!r}: there is no installed package {package!r}; install it, or give another path.")
    return os.path.join(next(iter(spec.submodule_search_locations)), *rest.split("/"))


def format_of(file: str) -> DataFormat | None:
    """The format that the file's name tells, or None."""
    name = os.path.basename(file).lower()
    return next((name_of for name_of, pattern in _FORMATS if pattern.search(name)), None)


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
    pattern = os.path.join(glob.escape(data.path), "*") if os.path.isdir(data.path) else data.path
    found = sorted(file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file))
    if os.path.isdir(data.path):
        found = [file for file in found if format_of(file) in _wanted(data)]
    return found


def _wanted(data: Data) -> tuple[DataFormat, ...]:
    """The formats that a file of a folder may have; the others, such as a README, are not data."""
    return (data.format,) if data.format else tuple(name for name, _ in _FORMATS)


def _span_files(data: Data) -> list[str]:
    pattern = re.escape(data.path).replace(r"\*", "[^/]*")
    wild = data.path
    for part, expression in _PARTS.items():
        head, found, tail = pattern.partition(re.escape(part))
        # A part that stands twice must be the same twice.
        same = tail.replace(re.escape(part), f"(?P={part[1:-1]})")
        pattern = head + expression + same if found else pattern
        wild = wild.replace(part, "*")
    dated = []
    for file in glob.glob(wild):
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
