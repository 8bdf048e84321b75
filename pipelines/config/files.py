"""The files of the data: found, put in order of their spans, and as ExampleGen is told of them."""

from __future__ import annotations

import datetime
import glob
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from embedding_core.errors import ConfigError
from pipelines.config.data import Data, DataFormat, Spans
from pipelines.config.paths import FORMATS, format_of, is_remote

__all__ = ["data_files", "data_location", "link_spans"]

_PARTS = {"{YYYY}": r"(?P<YYYY>\d{4})", "{MM}": r"(?P<MM>\d\d)", "{DD}": r"(?P<DD>\d\d)", "{SPAN}": r"(?P<SPAN>\d+)"}
_MAGIC = re.compile(r"[*?\[]")


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
    found = sorted(file for file in glob.glob(pattern) if os.path.isfile(file))
    if os.path.isdir(data.path):
        found = [file for file in found if format_of(file) in _wanted(data)]
    return found


def _wanted(data: Data) -> tuple[DataFormat, ...]:
    """The formats that a file of a folder may have; the others, such as a README, are not data."""
    return (data.format,) if data.format else tuple(name for name, _ in FORMATS)


def _span_files(data: Data) -> list[str]:
    pattern = re.escape(data.path).replace(r"\*", "[^/]*")
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


def data_location(data: Data, work_dir: str) -> tuple[str, str]:
    """The folder and the glob below it that match the files of the data, and no other.

    Where the spans are bounded no glob says so; then it is the folder of links that `link_spans` makes.

    Args:
      data: the data, its path absolute.
      work_dir: the pipeline's folder.
    """
    if is_remote(data.path):
        return _split(data.path)
    if _needs_links(data):
        root = _root(data)
        files = data_files(data)
        return _links_folder(files, work_dir), "/".join("*" for _ in os.path.relpath(files[0], root).split(os.sep))
    if os.path.isdir(data.path):
        return data.path, _glob_of(data_files(data))
    if os.path.isfile(data.path):
        return os.path.dirname(data.path), glob.escape(os.path.basename(data.path))
    return _split(_wild(data.path))


def link_spans(data: Data, work_dir: str) -> None:
    """Make the folder that `data_location` names where the spans are bounded: a link to each of their files.

    Does nothing where it is there already, or is not needed.
    """
    if not _needs_links(data):
        return
    files, root = data_files(data), _root(data)
    folder = _links_folder(files, work_dir)
    for file in files:
        link = os.path.join(folder, os.path.relpath(file, root))
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(file, link)


def _needs_links(data: Data) -> bool:
    return data.has_spans and data.spans is not None and data.spans != Spans()


def _links_folder(files: Sequence[str], work_dir: str) -> str:
    """A folder of its own for every set of files, so that links of another run are never read."""
    digest = hashlib.sha256("\0".join(files).encode(errors="surrogateescape")).hexdigest()[:16]
    return os.path.join(work_dir, "spans", digest)


def _root(data: Data) -> str:
    return _split(_wild(data.path))[0]


def _wild(path: str) -> str:
    for part in _PARTS:
        path = path.replace(part, "*")
    return path


def _split(path: str) -> tuple[str, str]:
    """The folders without wild cards, and the rest."""
    parts = path.split("/")
    first = next((index for index, part in enumerate(parts[:-1]) if _MAGIC.search(part)), len(parts) - 1)
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _glob_of(files: Sequence[str]) -> str:
    """The narrowest of a few globs that matches the data files of a folder and no other file.

    Raises:
      ConfigError: none does.
    """
    folder = os.path.dirname(files[0])
    for pattern in ("*.csv", "*.csv.gz", "*.csv*", "*.parquet", "*.tfrecord", "*.tfrecord.gz", "*tfrecord*", "*"):
        if sorted(glob.glob(os.path.join(glob.escape(folder), pattern))) == list(files):
            return pattern
    raise ConfigError(f"is {folder!r}: other files lie among its data; give a glob such as {folder}/*.csv.")
