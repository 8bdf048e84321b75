"""Defines the section `data`, resolves its paths, and finds the files that ExampleGen will read."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
from typing import Literal

from components.example_gen.data_files import DataFiles, find_files
from components.example_gen.settings import CsvFormat, DataFormat, Histories, Rate
from components.example_gen.spans import Gaps, PatternSpans, Spans, is_dated
from embedding_core.errors import ConfigError, DataError
from embedding_core.schema import Listed, Mistakes, Positive, Text
from embedding_core.storage import is_remote


class Data(CsvFormat):
    """Files that the rows are read from, and how CSV files are written (the keys of `CsvFormat`).

    Attributes:
      path: a file, a folder, or a glob (an existing path of exactly that name is literal);
        `package:<package>/<path>` for a file inside an installed package;
        {YYYY}, {MM}, {DD} and {SPAN} in it are placeholders for the parts of a span.
      format: "csv", "tfrecord" (of tf.Example) or "parquet"; null infers it from the extension.
      spans: spans to read, if the path has placeholders; null reads all.
      allowed_bad_rate: largest share of rows that may be malformed, without a label, or with several values in a
        single-valued column; such rows are set aside and counted.
      whole_numbers: columns of tokens in which 3.0 is read as 3 (pandas writes 3 as 3.0 if a column has missing
        values); in other columns 3 and 3.0 are two tokens, and the report counts a mix of them.
      empty_columns: what to do with a column that no row of the train split has a value of: "error" refuses the data;
        "allow" trains on it, as small spans need, if `vocabulary_evolution` has a vocabulary of the column's tokens.
      histories: new columns with what the row's user did before; null makes none.
      statistics: "sample" takes histograms, quantiles and frequent values of the columns from a sample, at least
        10,000 rows of each split; counts, missing values and ranges are exact. "exact" takes them from all rows, with
        TFX's StatisticsGen.
      workers: number of processes that read the data of a run on this machine. Each process loads TensorFlow, so more
        than one pays off only for large data. On a cluster, `beam` or
        `kubeflow.beam_args` applies.
    """

    SHORT = "path"
    PATHS = ("path",)

    path: Text
    format: DataFormat | None = None
    spans: Spans | None = None
    allowed_bad_rate: Rate = 0.0
    whole_numbers: Listed[Text] = ()
    empty_columns: Literal["error", "allow"] = "error"
    histories: Histories | None = None
    statistics: Literal["sample", "exact"] = "sample"
    workers: Positive = 1

    @property
    def has_spans(self) -> bool:
        """Whether the path has placeholders for spans."""
        return any(part in self.path for part in ("{YYYY}", "{MM}", "{DD}", "{SPAN}"))

    @functools.cached_property
    def found(self) -> DataFiles:
        """The files, listed once; the path must be absolute and local.

        Raises:
          NoFilesError: no file matches.
        """
        base, pattern = data_location(self)
        try:
            return find_files(base, pattern, self.format, data_spans(self))
        except DataError as error:
            spans_given = " in the spans asked for" if self.spans else ""
            raise NoFilesError(
                f"is {self.path!r}: no file has this name{spans_given}; give a file, a folder with files, or a glob."
            ) from error

    def mistakes(self) -> Mistakes:
        """Yield the mistakes that involve several fields."""
        yield from super().mistakes()
        if self.format not in ("csv", None) and self.changed:
            yield self.changed[0], f"is given, and `data.format` is {self.format!r}: it is for CSV files; leave it out."
        if self.has_spans and not is_dated(self.path) and "{SPAN}" not in self.path:
            yield "path", f"is {self.path!r}: a date needs all of {{YYYY}}, {{MM}} and {{DD}}; or use {{SPAN}}."
        if is_dated(self.path) and "{SPAN}" in self.path:
            yield "path", f"is {self.path!r}: spans are dates or numbers; use {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}} alone."
        if self.spans is None:
            return
        if not self.has_spans:
            yield (
                "spans",
                f"is given, but `path` {self.path!r} has no {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}}; put it there.",
            )
            return
        yield from ((f"spans.{key}", text) for key, text in self.spans.bound_mistakes(self.path))


# Finds the data files, and the folder and pattern that lead ExampleGen to the same files.
#
# A path is taken literally as far as it exists, even if it contains wildcards: this holds for an existing file, and for
# existing folders at the start of a pattern. Only the rest is a pattern.


class NoFilesError(ConfigError):
    """No file matches `data.path`."""


_MAGIC = re.compile(r"[*?\[{]")


def data_files(data: Data) -> tuple[str, ...]:
    """List the data files in a fixed order (by span, then by name); the path must be absolute.

    A remote path is returned as it is: the reader lists its files.

    Raises:
      ConfigError: no file matches.
    """
    return (data.path,) if is_remote(data.path) else tuple(data.found.files)


def missing_spans(data: Data) -> Gaps:
    """Find the spans without a file, between the first and the last span; none if the path is remote.

    If `data.spans` leaves a bound open, the first or last span with a file is the bound.

    Raises:
      ConfigError: no file matches.
    """
    return Gaps() if is_remote(data.path) else data.found.gaps


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


# Resolves the paths of the configuration: relative, home, inside an installed package, remote.

_PACKAGE = "package:"
_ADDRESS = re.compile(r"\w[\w+.-]*://[^/]")


def is_address(path: str) -> bool:
    """Return whether every machine of a cluster can reach the path: `gs://bucket/x`, not `gs://` alone."""
    return bool(_ADDRESS.match(path))


_PATTERN_SIGNS = "*?[\\"


def literal_mistakes(key: str, value: str | None) -> Mistakes:
    """Refuse an address that TFX, or TensorFlow when it loads a model, would take for a pattern of files."""
    sign = next((sign for sign in _PATTERN_SIGNS if sign in (value or "")), None)
    if sign is not None:
        rule = f"TFX and TensorFlow take its {sign!r} for a pattern, and would read other files"
        yield key, f"is {value!r}: {rule}; give a folder without any of * ? [ and backslash."


def resolve(path: str, folder: str) -> str:
    """Return the absolute path: relative ones start at the folder, `package:` ones in the installed package.

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
        raise ConfigError(f"is {path!r}: package {package!r} is not installed; install it, or give another path.")
    return os.path.join(next(iter(spec.submodule_search_locations)), *rest.split("/"))
