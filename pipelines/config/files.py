"""Finds the data files, and the folder and pattern that lead ExampleGen to the same files.

A path is taken literally as far as it exists, even if it contains wildcards: this holds for an existing file, and
for existing folders at the start of a pattern. Only the rest is a pattern.
"""

from __future__ import annotations

import glob
import os
import re

from components.example_gen.data_files import Found, find_files, without_spans
from components.example_gen.spans import Gaps, PatternSpans, Spans
from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import is_remote
from pipelines.config.data import Data


class NoFilesError(ConfigError):
    """No file matches `data.path`."""


_MAGIC = re.compile(r"[*?\[{]")


def data_files(data: Data) -> tuple[str, ...]:
    """List the data files in a fixed order (by span, then by name); the path must be absolute.

    A remote path is returned as it is: the reader lists its files.

    Raises:
      ConfigError: no file matches.
    """
    return (data.path,) if is_remote(data.path) else tuple(_found(data).files)


def missing_spans(data: Data) -> Gaps:
    """Find the spans without a file, between the first and the last span; none if the path is remote.

    If `data.spans` leaves a bound open, the first or last span with a file is the bound.

    Raises:
      ConfigError: no file matches.
    """
    return Gaps(0, ()) if is_remote(data.path) else _found(data).gaps


def _found(data: Data) -> Found:
    base, pattern = data_location(data)
    try:
        return find_files(base, without_spans(pattern), data.format, data_spans(data))
    except DataError as error:
        spans_given = " in the spans asked for" if data.spans else ""
        raise NoFilesError(
            f"is {data.path!r}: no file has this name{spans_given}; give a file, a folder with files, or a glob."
        ) from error


def data_spans(data: Data) -> PatternSpans | None:
    """Return the spans that are read, with the pattern of their files; None if the path has no placeholders."""
    if not data.has_spans:
        return None
    return PatternSpans(pattern=data_location(data)[1], **(data.spans or Spans()).to_mapping())


def data_location(data: Data) -> tuple[str, str]:
    """Return the literal folder and the pattern below it, with placeholders; ExampleGen finds the files by them.

    Args:
      data: the data, its path absolute.
    """
    if os.path.isdir(data.path):
        return data.path, "*"  # of a whole folder, ExampleGen takes the files that are named like the format
    if os.path.isfile(data.path):
        return os.path.dirname(data.path), glob.escape(os.path.basename(data.path))
    parts = data.path.split("/")
    first = next((index for index in range(len(parts) - 1) if _is_pattern(parts, index)), len(parts) - 1)
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _is_pattern(parts: list[str], index: int) -> bool:
    return bool(_MAGIC.search(parts[index])) and not os.path.isdir("/".join(parts[: index + 1]))
