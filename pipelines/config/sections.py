"""Declares the YAML sections `data`, `features` and `vocabularies`."""

from __future__ import annotations

import functools
import glob
import importlib.util
import itertools
import os
import re
from typing import Annotated, Any, Literal

from pydantic import ValidationError, WrapValidator

from components.example_gen.data_files import DataFiles, NoMatchError, find_files
from components.example_gen.settings import CsvFormat, DataFormat, Histories, Rate
from components.example_gen.spans import Gaps, PatternSpans, Spans, is_dated
from components.vocabulary_gen.counting_plan import Evolution, VocabularyRule
from embedding_core.errors import ConfigError
from embedding_core.schema import NAME_RULE, Count, Listed, Mistakes, Name, Positive, Rule, Section, Text
from embedding_core.storage import is_remote


class Data(CsvFormat):
    """Files that the rows are read from, and how CSV files are written (the keys of `CsvFormat`).

    Attributes:
      path: a file, a folder, or a glob (an existing path of exactly that name is literal);
        `package:<package>/<path>` for a file inside an installed package;
        {YYYY}, {MM}, {DD} and {SPAN} in it are placeholders for the parts of a span.
      eval_path: a file, a folder, or a glob, whose rows are the eval split; all rows of `path` are then for training.
        Null holds out rows of `path` by `split`.
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
    PATHS = ("path", "eval_path")

    path: Text
    eval_path: Text | None = None
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
        return _has_spans(self.path)

    @functools.cached_property
    def found(self) -> DataFiles:
        """The files, listed once; the path must be absolute and local.

        Raises:
          NoFilesError: no file matches.
        """
        base, pattern = data_location(self)
        try:
            return find_files(base, pattern, self.format, data_spans(self))
        except NoMatchError as error:
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
        if self.eval_path is not None:
            yield from self._eval_mistakes(self.eval_path)
        if self.spans is None:
            return
        if not self.has_spans:
            yield (
                "spans",
                f"is given, but `path` {self.path!r} has no {{YYYY}}-{{MM}}-{{DD}} or {{SPAN}}; put it there.",
            )
            return
        yield from ((f"spans.{key}", text) for key, text in self.spans.bound_mistakes(self.path))

    def _eval_mistakes(self, path: str) -> Mistakes:
        if _has_spans(path):
            rule = "each run is judged on all of its files, so it has no placeholders; give a file, a folder or a glob."
            yield "eval_path", f"is {path!r}: {rule}"
        if _storage(path) != _storage(self.path):
            rule = f"it must be where `path` is, {self.path!r}: on this machine, or in the same bucket; copy the files."
            yield "eval_path", f"is {path!r}: {rule}"


# Finds the data files, and the folder and pattern that lead ExampleGen to the same files.
#
# A path is taken literally as far as it exists, even if it contains wildcards: this holds for an existing file, and for
# existing folders at the start of a pattern. Only the rest is a pattern.


def _has_spans(path: str) -> bool:
    return any(part in path for part in ("{YYYY}", "{MM}", "{DD}", "{SPAN}"))


def _storage(path: str) -> list[str]:
    """Return the parts of a bucket's address; none for a local path."""
    return path.split("/")[:3] if is_remote(path) else []


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
      data: the data, its paths absolute.
    """
    base, pattern = _location(data.path)
    common = _common_folder(data, base)
    return common, _below(common, base, pattern)


def eval_pattern(data: Data) -> str | None:
    """Return the pattern, below the folder of `data_location`, of the files of `eval_path`; None if it is null."""
    if data.eval_path is None:
        return None
    return _below(data_location(data)[0], *_location(data.eval_path))


def _common_folder(data: Data, base: str) -> str:
    """Return the deepest folder that holds the files of both paths: TFX's driver knows one folder."""
    if data.eval_path is None:
        return base
    parts, others = (folder.rstrip("/").split("/") for folder in (base, _location(data.eval_path)[0]))
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, others, strict=False))
    return "/".join(part for part, _ in same) or "/"


def _below(folder: str, base: str, pattern: str) -> str:
    """Return the pattern below a folder that holds its base, whose names are taken literally."""
    names = [name for name in base.removeprefix(folder).split("/") if name]
    return "/".join([*(glob.escape(name).replace("{", "[{]") for name in names), pattern])


def _location(path: str) -> tuple[str, str]:
    if os.path.isdir(path):
        return path, "*"  # of a whole folder, ExampleGen takes the files that are named like the format
    if os.path.isfile(path):
        return os.path.dirname(path), glob.escape(os.path.basename(path))
    parts = path.split("/")
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


def _feature_name(value: Any, handler: Any) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        remedy = f"A column of another name is written {{name: ..., column: {value!r}}}."
        raise ValueError(f"it must be {NAME_RULE}. {remedy}") from error


FeatureName = Annotated[Name, WrapValidator(_feature_name)]
Length = Annotated[
    Count | Literal["auto", "p50", "p90", "p95", "p99", "max"],
    Rule("a whole number of at least 0, or one of auto, p50, p90, p95, p99, max"),
]


class Dense(Section):
    """A number per row.

    Attributes:
      name: name of the feature, in the model's inputs and in Transform's output.
      column: column of the data; null is the name.
      log1p: whether sign(x) log(1 + |x|) is taken before scaling, for amounts with a long tail.
    """

    SHORT = "name"

    name: FeatureName
    column: Text | None = None
    log1p: bool = False

    @property
    def source(self) -> str:
        """The column of the data."""
        return self.column or self.name


class Categorical(Section):
    """Tokens per row, looked up in an embedding table.

    Attributes:
      name: name of the feature, in the model's inputs.
      column: column of the data or, with `after_transform`, of Transform's output; null is the name.
      separator: text between two tokens of one value; null does not split.
      multivalent: whether a row holds a list of values. CSV files have no lists: use a `separator`.
      vocabulary: name of the vocabulary; features of one vocabulary share its tokens. Null is the table's name if
        `table` is given, else the feature's name.
      table: name of the table; features of one table share its rows. Null is the vocabulary's name.
      private: whether tokens appear in reports and lineage only as digests; an evaluation slice then cannot name
        the column, and a row filter may only ask whether it is `present`.
      after_transform: whether tokens are read from the output of your `preprocessing_fn`.
      max_sequence_length: number of a row's first tokens that are kept, as a sequence of vectors; 0 combines all
        tokens into one vector. "p50", "p90", "p95" and "p99" take that percentile of the number of tokens per row,
        "max" the largest number; "auto" is "p95".
    """

    SHORT = "name"

    name: FeatureName
    column: Text | None = None
    separator: Text | None = None
    multivalent: bool = False
    vocabulary: Name | None = None
    table: Name | None = None
    private: bool = False
    after_transform: bool = False
    max_sequence_length: Length = 0

    @property
    def source(self) -> str:
        """The column that the tokens come from."""
        return self.column or self.name

    @property
    def vocabulary_name(self) -> str:
        """The vocabulary that the tokens are counted into."""
        return self.vocabulary or self.table or self.name

    @property
    def table_name(self) -> str:
        """The table that the tokens are looked up in."""
        return self.table or self.vocabulary_name


class Features(Section):
    """What the model sees.

    Attributes:
      categorical: features that are embedded; at least one.
      dense: features that are numbers.
    """

    categorical: Listed[Categorical]
    dense: Listed[Dense] = ()

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
        if not self.categorical:
            yield (
                "categorical",
                "is []: it must name at least one feature to embed.",
            )
        seen: set[str] = set()
        for kind, items in (("categorical", self.categorical), ("dense", self.dense)):
            for index, name in enumerate(item.name for item in items):
                if name in seen:
                    yield f"{kind}.{index}.name", f"is {name!r}, a duplicate: names of features must be unique."
                seen.add(name)
        yield from self._shared("table_name", "vocabulary_name", "table")
        yield from self._shared("vocabulary_name", "private", "vocabulary")

    def _shared(self, group: str, value: str, kind: str) -> Mistakes:
        first: dict[str, Categorical] = {}
        for index, feature in enumerate(self.categorical):
            other = first.setdefault(getattr(feature, group), feature)
            if getattr(other, value) != getattr(feature, value):
                key = "vocabulary" if kind == "table" else value
                here, there, shared = getattr(feature, value), getattr(other, value), getattr(feature, group)
                text = f"is {here!r}, but {there!r} for feature {other.name!r} of the same {kind} {shared!r}: "
                yield f"categorical.{index}.{key}", f"{text}features that share a {kind} must agree; make them equal."


ASSUMED_TOKENS = 1_000_000
"""Number of tokens that plans assume for a vocabulary without `max_size`."""


class VocabularyLimits(VocabularyRule):
    """Which tokens of a vocabulary get a row of their own, and how many rows the other tokens share.

    Attributes:
      oov_rows: number of rows that the other tokens share; 0 gives these tokens a zero vector.
    """

    oov_rows: Count = 1


class VocabularyEvolution(Evolution):
    """How vocabularies evolve from those of a previous run; `embedding_core.vocabulary.vocabulary` has the rule.

    Attributes:
      base: vocabularies to start from: "pushed", "served" or "trained" (those of the checkpoint that this word selects
        in `warm_start`), or the URI of a Vocabularies artifact. "latest" is the former name of "trained".
    """

    SHORT = "base"
    PATHS = ("base",)

    base: Text
