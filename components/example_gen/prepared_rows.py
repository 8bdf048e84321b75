"""Reads rows and prepares them for examples: filters, splits and converts them, and sets bad rows aside."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.example_gen.arrays import floats, kind_of, tokens
from components.example_gen.event_columns import Events, events_of, without_lists
from components.example_gen.filters import filter_rows
from components.example_gen.labels import count_labels, label_values, several_values, weight_reasons, without_any
from components.example_gen.readers import read_batches
from components.example_gen.rows import SHOWN, Batch, flat_values, values_per_row
from components.example_gen.settings import Settings
from components.example_gen.splits import assign_splits
from components.example_gen.tally import Labels, Tally
from components.example_gen.values import hiding_texts
from components.example_gen.whole_numbers import count_whole_numbers, with_whole_numbers
from components.progress import report


class Rows(NamedTuple):
    """Rows that become examples.

    Attributes:
      batch: the rows as they were read.
      columns: the kept columns, as they go into the examples.
      sides: split of each row, as a position in `SPLITS`; with histories also -1 for neither.
      events: the rows as events of histories; None without histories.
    """

    batch: Batch
    columns: Mapping[str, pa.Array]
    sides: npt.NDArray[np.int8]
    events: Events | None


def read_rows(files: Sequence[str], data_format: str, settings: Settings, tally: Tally) -> Iterator[Rows]:
    """Yield the rows of files, and count the rows that are left out; the caller counts those that are yielded.

    Args:
      files: the files, in order.
      data_format: one of `components.example_gen.readers.DATA_FORMATS`.
      settings: rows and columns to read.
      tally: collects the counts.

    Raises:
      DataError: the data is not what the settings require.
    """
    for path in files:
        before = tally.read
        for rows in prepared(read_batches(path, data_format, settings, tally.bad), settings, tally):
            yield rows
            report("ExampleGen", tally.read, detail=posixpath.basename(path))
        tally.files += 1
        if tally.read == before:
            tally.files_without_rows = [*tally.files_without_rows, path][:SHOWN]


def prepared(batches: Iterable[Batch], settings: Settings, tally: Tally) -> Iterator[Rows]:
    """Yield the rows of each batch; see `read_rows`."""
    for batch in batches:
        whole = with_whole_numbers(batch, settings, tally.bad)
        with hiding_texts(settings.private):
            rows = _prepared(whole, settings, tally)
        yield rows


def _prepared(batch: Batch, settings: Settings, tally: Tally) -> Rows:
    occurring = (name for name, column in batch.columns.items() if _occurs(batch, column))
    tally.seen = sorted({*tally.seen, *occurring, *settings.made})
    batch = filter_rows(batch, settings.conditions, tally.filtered, tally.bad)
    if settings.histories is not None:
        batch = without_lists(batch, settings.histories, tally.bad)
    batch, sides = assign_splits(batch, settings, tally.bad)
    if settings.histories is None:  # otherwise rows of neither split may be in histories
        tally.outside += int((sides < 0).sum())
        batch, sides = batch.keep(sides >= 0), sides[sides >= 0]
    columns, reasons = _convert(batch, settings)
    events = None
    if settings.histories is not None:
        events, wrong = events_of(batch, settings.histories)
        reasons = dict(sorted({**wrong, **reasons}.items()))
    good = np.ones(len(batch), dtype=bool)
    good[list(reasons)] = False
    for name, label in settings.labels.items():
        count_labels(label, batch, columns[label.data_column], good, tally.labels.setdefault(name, Labels()))
    batch, sides = batch.set_aside(tally.bad, reasons), sides[good]
    columns = {name: column.filter(pa.array(good)) for name, column in columns.items()}
    events = None if events is None else events.keep(good)
    _count_kinds(batch, columns, events, settings, tally)
    return Rows(batch, columns, sides, events)


def _occurs(batch: Batch, column: pa.Array) -> bool:
    return batch.is_text or column.null_count < len(column)


def _convert(batch: Batch, settings: Settings) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the kept columns, as they go into the examples, and why each bad row is bad."""
    columns: dict[str, pa.Array] = {}
    reasons: dict[int, str] = {}
    for name in settings.single_valued:
        reasons = {**several_values(name, batch.columns[name]), **reasons}
    others = [name for name in batch.columns if name not in settings.columns] if settings.passthrough else []
    labels = {label.data_column: label for label in settings.labels.values()}
    for name in (*settings.from_data, *others):
        if name in labels:
            columns[name], bad = label_values(labels[name], batch, may_lack=len(labels) > 1 or settings.other_labels)
            reasons = {**bad, **reasons}
        elif settings.columns.get(name) == "float":
            columns[name], bad = floats(name, batch)
            reasons = {**{row: f"column {name!r}: {reason}" for row, reason in bad.items()}, **reasons}
        else:
            columns[name] = tokens(name, batch, kept_as_is=name not in settings.columns)
    if len(labels) > 1 and not settings.other_labels:
        reasons = {**without_any([columns[name] for name in labels if name in columns], list(labels)), **reasons}
    if settings.weight is not None:
        reasons = {**weight_reasons(settings.weight, columns[settings.weight]), **reasons}
    return columns, dict(sorted(reasons.items()))


def _count_kinds(
    batch: Batch, columns: Mapping[str, pa.Array], events: Events | None, settings: Settings, tally: Tally
) -> None:
    """Note what kind of values each column holds, and the first place of each kind."""
    histories, values = settings.histories, {} if events is None else events.values
    for name, column in {**values, **columns}.items():
        if settings.columns.get(name, "token" if name in values else "") == "token":
            tally.add_numbered(name, *count_whole_numbers(column))
        has = values_per_row(column) > 0
        if not has.any():
            continue
        place = batch.place(int(batch.index[int(np.argmax(has))]))
        made = [] if histories is None else [new for new, source in histories.columns.items() if source == name]
        for one in (name, *made):
            tally.kinds.setdefault(one, {}).setdefault(kind_of(column), place)
        moments = flat_values(batch.columns[name]).type
        if pa.types.is_temporal(moments) and kind_of(column) == "bytes":
            kind = "date" if pa.types.is_date(moments) else "time"
            tally.moments.setdefault(name, {}).setdefault(kind, place)
    if events is not None:
        for kind, row in events.first_of_each_kind().items():
            tally.times.setdefault(kind, batch.place(int(batch.index[row])))
