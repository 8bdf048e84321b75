"""Samples the first rows of some files and counts them as a run would. Loads no TensorFlow or TFX for local files."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.example_gen.data_files import DataFiles, size_of
from components.example_gen.histories import event_tables, joined, rows_with_histories
from components.example_gen.prepared_rows import prepared
from components.example_gen.readers import opened_parquet, read_batches
from components.example_gen.row_selection import AnySplit, SplitByHash, SplitLeaveOneOut
from components.example_gen.rows import BadRows, Batch, FirstRows, flat_values, is_list, values_per_row
from components.example_gen.settings import COMMON_DELIMITERS, Histories, Settings
from components.example_gen.splits import SPLITS, count_whole_numbers, with_whole_numbers
from components.example_gen.tally import Tally
from embedding_core.errors import DataError
from embedding_core.storage import bounds

_FILES = 5
_EXAMPLES = 3
_FREQUENT = 50
_EXACT = 2.0**53  # from here on, neighbouring whole numbers are one float
_TEXT_KINDS = (
    ("whole numbers", r"^\s*[+-]?\d+\s*$"),
    ("numbers", r"^\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*$"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """What the sample's rows hold in one column.

    Attributes:
      kind: "text", "whole numbers", "numbers", "floats", "times" or "empty"; a kind of lists begins with "lists of ".
      rows: how many rows were looked at.
      missing: number of rows without a value; an empty text counts as missing.
      distinct: how many distinct values there are.
      first: the first few values, as bytes.
      with_point: how many values are whole numbers written with a decimal point, such as 3.0; of floats, all or none.
      several: for each delimiter (";", "|", ...) the share of the values that it would split.
      frequent: the most frequent values, as bytes, with their numbers of occurrences.
      extent: the least, the median and the largest of the distinct numbers; None if the values are not numbers.
      pieces: the rows as they were read, in order; those of all columns of a sample have equal lengths.
    """

    kind: str
    rows: int
    missing: int
    distinct: int
    first: tuple[bytes, ...]
    with_point: int
    several: dict[str, float]
    frequent: tuple[tuple[bytes, int], ...]
    extent: tuple[float, float, float] | None
    pieces: tuple[pa.Array, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """What the first rows of some files hold.

    Attributes:
      files: the files looked at.
      whole: whether the sample holds all rows of the data.
      names: the columns that all of these files have; a CSV or TFRecord file without rows does not count.
      lacking: for each column that only some of these files have, the first file without the column.
      columns: the columns that were asked for and found.
      tally: what a run would count in these rows; None if a column is absent.
      repeated: share of the rows for the eval split that are equal to a row to train on, if these are in other files.
      unknown: the columns whose values in these files are all different from those to train on.
    """

    files: tuple[str, ...]
    whole: bool
    names: tuple[str, ...]
    lacking: dict[str, str]
    columns: dict[str, Column]
    tally: Tally | None
    repeated: float = 0.0
    unknown: tuple[str, ...] = ()


def sample(
    files: Sequence[str], data_format: str, settings: Settings, rows: int | None = None, for_eval: Sequence[str] = ()
) -> Sample:
    """Look at the first rows of up to five files, and of as many for the eval split, spread over all of them.

    Bad rows are looked at in addition, until they and the others are `bounds.SAMPLE_ROWS` of a file.

    Args:
      files: all files of the data, in order.
      data_format: one of `components.example_gen.readers.DATA_FORMATS`.
      settings: which rows and columns a run reads.
      rows: approximate number of rows to look at; None is `bounds.SAMPLE_ROWS`.
      for_eval: files whose rows are all for the eval split, if there are any.

    Raises:
      DataError: a file cannot be read, or no file has any of the columns.
    """
    chosen = [*_spread(files), *_spread(for_eval)]
    columns_of = {path: names for path in chosen if (names := _names(path, data_format, settings))}
    common = set.intersection(*map(set, columns_of.values())) if columns_of else set()
    present = _restricted(settings, common) if set(settings.needed) & common else settings
    each = max(1, (bounds.SAMPLE_ROWS if rows is None else rows) // len(chosen))
    tally = Tally(filtered=[0] * len(settings.conditions))
    batches: list[Batch] = []
    judged: list[Batch] = []  # of the files for the eval split
    events: list[pa.Table] = []
    ended = len(chosen) == len(files) + len(for_eval)
    for number, path in enumerate(chosen):
        rows_of_file, file_ended = _first_rows(path, data_format, present, tally.bad, each)
        taken = [with_whole_numbers(batch, present, BadRows()) for batch in rows_of_file]
        batches += taken
        judged += taken if path in for_eval else []
        ended = ended and file_ended
        if present == settings:
            settings_of_file = settings.of_eval_files if path in for_eval else settings
            events += _count(rows_of_file, settings_of_file, tally, first=number * each)
    if settings.histories is not None and events and not tally.kinds_differ:
        for made, sides in rows_with_histories(joined(events), settings, settings.histories, 0, tally):
            tally.add_rows(made, sides)
    columns = {name: _column([batch.columns[name] for batch in batches]) for name in present.needed} if batches else {}
    lacking = {
        name: next(path for path, there in columns_of.items() if name not in there)
        for name in itertools.chain.from_iterable(columns_of.values())
        if name not in common
    }
    trained = batches[: len(batches) - len(judged)]
    return Sample(
        files=tuple(chosen),
        whole=ended,
        names=tuple(name for name in next(iter(columns_of.values()), ()) if name in common),
        lacking=lacking,
        columns=columns,
        tally=tally if present == settings else None,
        repeated=_repeated(trained, judged),
        unknown=tuple(name for name in present.needed if judged and _are_apart(name, trained, judged)),
    )


def _repeated(trained: Sequence[Batch], judged: Sequence[Batch]) -> float:
    """Return the share of the rows of `judged` that are equal to a row of `trained`."""
    if not judged:
        return 0.0
    seen, contents = ([row for batch in part for row in batch.content(batch.index)] for part in (trained, judged))
    return sum(map(set(seen).__contains__, contents)) / max(1, len(contents))


def _are_apart(name: str, trained: Sequence[Batch], judged: Sequence[Batch]) -> bool:
    """Return whether both have values in a column, and none in common."""
    seen, given = (
        {value for batch in part for value in pc.unique(value_texts(batch.columns[name]).drop_null()).to_pylist()}
        for part in (trained, judged)
    )
    return bool(seen and given) and seen.isdisjoint(given)


def copies(
    data: DataFiles, data_format: str, settings: Settings, digest_of: Callable[[str], object]
) -> Iterator[DataError]:
    """Find the files for the eval split that have the rows of a file for the train split, under another name.

    Args:
      data: the files.
      data_format: one of `components.example_gen.readers.DATA_FORMATS`.
      settings: how CSV files are written.
      digest_of: returns a digest of a file's content; called for files of equal sizes only.

    Yields:
      An error for each of them, except for files without rows, which programs write that split data into parts.
    """
    trained: dict[int, list[str]] = {}
    for path in data.files if data.eval else ():
        trained.setdefault(size_of(path), []).append(path)
    for path in data.eval:
        same = (other for other in trained.get(size_of(path), ()) if digest_of(path) == digest_of(other))
        other = next(same, None)
        if other is not None and _has_rows(path, data_format, settings):
            yield DataError(
                f"{path}, a file of `data.eval_path`, has the same content as {other}, which is trained on: a model "
                "cannot be judged by rows that it has seen; give other rows."
            )


def _has_rows(path: str, data_format: str, settings: Settings) -> bool:
    if data_format != "parquet":
        return bool(_names(path, data_format, settings))
    with opened_parquet(path) as file:
        return int(file.metadata.num_rows) > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """The tokens of the rows that a run would train on.

    Attributes:
      tokens: for each column and separator, how often each token occurs.
      rows: how many rows were read.
      whole: whether these are all rows of the data.
    """

    tokens: Mapping[tuple[str, str | None], Counter[bytes]]
    rows: int
    whole: bool


def count_tokens(
    files: Sequence[str], data_format: str, settings: Settings, sources: Iterable[tuple[str, str | None]]
) -> TokenCounts:
    """Count the tokens of the first `bounds.COUNTED_ROWS` rows that are not for evaluation.

    Args:
      files: all files of the data, in order; of each, at most `bounds.SAMPLE_BYTES` are read.
      data_format: one of `components.example_gen.readers.DATA_FORMATS`.
      settings: which rows and columns a run reads.
      sources: the columns to count, each with the separator of its tokens or None.

    Raises:
      DataError: a file cannot be read, or does not have a column.
    """
    tokens: dict[tuple[str, str | None], Counter[bytes]] = {source: Counter() for source in sources}
    tally = Tally(filtered=[0] * len(settings.conditions))
    listed = {} if settings.histories is None else settings.histories.columns
    rows, whole = 0, True
    for path in files:
        if rows >= bounds.COUNTED_ROWS:
            whole = False
            break
        first = FirstRows(bounds.COUNTED_ROWS - rows)
        sizes: list[int] = []
        batches = _noting_sizes(read_batches(path, data_format, settings, tally.bad, first), sizes)
        for ready in prepared(batches, settings, tally):
            trained = pa.array(ready.sides != SPLITS.index("eval"))
            events = {} if ready.events is None else ready.events.values
            columns = {**ready.columns, **{name: events[source] for name, source in listed.items()}}
            for source, counter in tokens.items():
                _add_tokens(counter, columns[source[0]].filter(trained), source[1])
        rows += sum(sizes)
        whole = whole and first.ended
    return TokenCounts(tokens=tokens, rows=rows, whole=whole)


def _noting_sizes(batches: Iterable[Batch], sizes: list[int]) -> Iterator[Batch]:
    for batch in batches:
        sizes.append(len(batch))
        yield batch


def _add_tokens(counter: Counter[bytes], column: pa.Array, separator: str | None) -> None:
    for entry in pc.value_counts(value_texts(column).drop_null()).to_pylist():
        value = entry["values"]
        for token in [value] if separator is None else value.split(separator.encode()):
            if token:
                counter[token] += entry["counts"]


def _spread(files: Sequence[str]) -> list[str]:
    if len(files) <= _FILES:
        return list(files)
    return [files[round(at * (len(files) - 1) / (_FILES - 1))] for at in range(_FILES)]


def _count(batches: Iterable[Batch], settings: Settings, tally: Tally, *, first: int) -> list[pa.Table]:
    """Count the first rows of a file as a run would; return their events if the settings have histories."""
    tally.files += 1
    rows = prepared(batches, settings, tally)
    if settings.histories is not None:
        return list(event_tables(rows, settings.histories, first, tally))
    for batch in rows:
        tally.add_rows(batch.columns, batch.sides)
    return []


def _names(path: str, data_format: str, settings: Settings) -> list[str]:
    if data_format == "parquet":
        with opened_parquet(path) as file:
            return list(file.schema_arrow.names)
    everything = Settings(columns={}, passthrough=True, csv=settings.csv, private=settings.private)
    batches = read_batches(path, data_format, everything, BadRows(), FirstRows(bounds.SAMPLE_ROWS))
    batch = next(iter(batches), None)
    return [] if batch is None else list(batch.columns)


def _restricted(settings: Settings, names: Set[str]) -> Settings:
    """Return the settings without the parts that refer to columns that the files do not have."""
    histories = settings.histories
    histories = histories if histories is not None and all(name in names for name in histories.read) else None
    made, events = ((), ()) if histories is None else (settings.made, histories.read)
    columns = {name: kind for name, kind in settings.columns.items() if name in names or name in made}
    return settings.replace(
        columns=columns,
        row_filters=tuple(filter_ for filter_ in settings.row_filters if filter_.column in names),
        split=_restricted_split(settings, histories, names),
        labels={name: label for name, label in settings.labels.items() if label.column in names},
        weight=settings.weight if settings.weight in names else None,
        single_valued=tuple(name for name in settings.single_valued if name in names),
        whole_numbers=tuple(name for name in settings.whole_numbers if name in names and name in {*columns, *events}),
        passthrough=settings.passthrough or not columns,
        histories=histories,
    )


def _restricted_split(settings: Settings, histories: Histories | None, names: Set[str]) -> AnySplit:
    split = settings.split
    known = all(name in names for name in split.columns)
    if known and not (isinstance(split, SplitLeaveOneOut) and histories is None):
        return split
    return SplitByHash() if histories is None else SplitByHash(key=histories.user)


def _first_rows(path: str, data_format: str, settings: Settings, bad: BadRows, rows: int) -> tuple[list[Batch], bool]:
    """Return at most `rows` rows of a file, and whether these are all."""
    first = FirstRows(rows + 1)  # the row beyond shows that there are more
    taken: list[Batch] = []
    left = rows
    for batch in read_batches(path, data_format, settings, bad, first):
        if left or not taken:
            taken.append(batch.keep(np.arange(len(batch)) < left))
        left -= len(batch)
    return taken, first.ended and left >= 0


def _column(pieces: Sequence[pa.Array]) -> Column:
    counts: dict[bytes, int] = {}
    missing = 0
    several = dict.fromkeys(COMMON_DELIMITERS, 0)
    for piece in pieces:
        missing += int((values_per_row(piece) == 0).sum())
        for entry in pc.value_counts(value_texts(piece).drop_null()).to_pylist():
            if entry["values"] or is_list(piece.type):
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
            else:
                missing += entry["counts"]
    total = sum(counts.values())
    for sign in several:
        # In a column of lists, most values have the sign between texts; in other columns, a few have it in their text.
        several[sign] = sum(count for value, count in counts.items() if _is_split(value, sign.encode()))
    kinds = dict.fromkeys(_kind(piece) for piece in pieces)
    if len(kinds) > 1:
        kinds.pop("empty", None)
    kind = " or ".join(kinds)
    with_point = sum(count_whole_numbers(piece)[1] for piece in pieces)
    return Column(
        kind=kind,
        rows=sum(map(len, pieces)),
        missing=missing,
        distinct=len(counts),
        first=tuple(itertools.islice(counts, _EXAMPLES)),
        with_point=total if kind == "floats" and _are_whole(counts) else with_point,
        several={sign: count / total for sign, count in several.items() if count},
        frequent=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_FREQUENT]),
        extent=_extent(counts) if all(kind.endswith(("numbers", "floats")) for kind in kinds) else None,
        pieces=tuple(pieces),
    )


def _are_whole(floats: Iterable[bytes]) -> bool:
    numbers = [float(value) for value in floats]
    return bool(numbers) and all(number.is_integer() and abs(number) < _EXACT for number in numbers)


def _extent(values: Iterable[bytes]) -> tuple[float, float, float] | None:
    """Return the least, the median and the largest number; texts may have a decimal comma."""
    numbers = sorted(number for value in values if math.isfinite(number := float(value.replace(b",", b"."))))
    return (numbers[0], numbers[len(numbers) // 2], numbers[-1]) if numbers else None


def value_texts(piece: pa.Array) -> pa.Array:
    """Return the values, flattened, as bytes."""
    values = flat_values(piece)
    return values if pa.types.is_large_binary(values.type) else values.cast(pa.string()).cast(pa.large_binary())


def _is_split(value: bytes, sign: bytes) -> bool:
    parts = value.split(sign)
    return len(parts) > 1 and all(part.strip() for part in parts)


def _kind(piece: pa.Array) -> str:
    values = flat_values(piece)
    prefix = "lists of " if is_list(piece.type) else ""
    if values.null_count == len(values):
        return "empty"
    if pa.types.is_integer(values.type):
        return f"{prefix}whole numbers"
    if pa.types.is_floating(values.type):
        return f"{prefix}floats"
    if pa.types.is_temporal(values.type):
        return f"{prefix}times"
    return f"{prefix}{_kind_of_text(values)}"


def _kind_of_text(values: pa.Array) -> str:
    """Return the kind of values that texts hold, from CSV or from a text column."""
    texts = values.drop_null().cast(pa.large_binary())
    for kind, expression in _TEXT_KINDS:
        if pc.all(pc.match_substring_regex(texts, expression)).as_py():
            return kind
    return "text"
