"""Reads and prepares rows (filters, splits, converts, sets bad ones aside), and writes them as shards of examples."""

from __future__ import annotations

import math
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.artifact_files import write_records
from components.example_gen.data_files import PROGRESS_BYTES, bytes_read, size_of
from components.example_gen.labels import count_labels, label_values, several_values, weight_reasons, without_any
from components.example_gen.readers import read_batches
from components.example_gen.rows import (
    SHOWN,
    BadRows,
    Batch,
    Mask,
    examples,
    flat_values,
    floats,
    kind_of,
    map_values,
    tokens,
    values_per_row,
)
from components.example_gen.settings import Histories, Settings
from components.example_gen.splits import (
    SPLITS,
    EqualRows,
    Sides,
    assign_splits,
    count_whole_numbers,
    filter_rows,
    keys_of,
    meets,
    with_whole_numbers,
)
from components.example_gen.tally import Labels, Tally
from components.example_gen.values import NOT_A_MOMENT, UNITS, Value, hiding_texts, instant, number
from components.progress import advance
from embedding_core.errors import DataError

# Reads the columns that histories are made of: user, time, and the values that histories list.

_DATE = len(UNITS) - 1
_INT64 = 1 << 63
_WHOLE = r"^-?\d{1,18}$"  # texts that are surely an int64


Units: TypeAlias = npt.NDArray[np.int8]


class Events(NamedTuple):
    """The rows as events.

    Attributes:
      user: the user's key (`keys_of`).
      whole: floor of the time if it is a number; microseconds since 1970 if it is a date.
      fraction: fractional part of the time if it is a number, in [0, 1); 0 if it is a date.
      unit: unit of the time, as a position in `UNITS`; -1 for a number that is not a Unix time. int8.
      remembered: whether later histories hold the event.
      values: the tokens that histories list, by source column.
    """

    user: pa.Array
    whole: npt.NDArray[np.int64]
    fraction: npt.NDArray[np.float64]
    unit: Units
    remembered: Mask
    values: Mapping[str, pa.Array]

    def keep(self, mask: Mask) -> Events:
        """Keep the rows whose mask is true."""
        chosen = pa.array(mask)
        values = {name: column.filter(chosen) for name, column in self.values.items()}
        arrays = (self.whole[mask], self.fraction[mask], self.unit[mask], self.remembered[mask])
        return Events(self.user.filter(chosen), *arrays, values)

    def first_of_each_kind(self) -> dict[str, int]:
        """Return the position of the first time in each unit, by the unit's name or `NOT_A_MOMENT`."""
        units, rows = np.unique(self.unit, return_index=True)
        names = [NOT_A_MOMENT if unit < 0 else UNITS[unit].name for unit in units.tolist()]
        return dict(zip(names, rows.tolist(), strict=True))


def without_lists(batch: Batch, histories: Histories, bad: BadRows) -> Batch:
    """Set aside the rows that hold several values in a column that histories read."""
    reasons: dict[int, str] = {}
    for name in histories.read:
        reasons = {**several_values(name, batch.columns[name]), **reasons}
    return batch.set_aside(bad, dict(sorted(reasons.items()))) if reasons else batch


def events_of(batch: Batch, histories: Histories) -> tuple[Events, dict[int, str]]:
    """Read user, time and values of rows that hold at most one of each.

    Returns:
      The events, one for each row; and the reason why each bad row is bad, by position.

    Raises:
      DataError: a column whose values are listed holds floats.
    """
    reasons: dict[int, str] = {}
    remembered = np.ones(len(batch), dtype=bool)
    for condition in histories.conditions:
        met, wrong = meets(batch, condition)
        remembered &= met
        reasons = {**wrong, **reasons}
    values = {name: _listed(name, batch) for name in histories.sources}
    whole, fraction, unit, wrong = _times(batch.column(histories.time), batch.decimal)
    reasons = {
        **{row: f"column {histories.time!r} (`data.histories.time`): {text}" for row, text in wrong.items()},
        **reasons,
    }
    user, wrong = keys_of(batch.column(histories.user), batch.decimal)
    reasons |= {row: f"column {histories.user!r} (`data.histories.user`): {text}" for row, text in wrong.items()}
    for row in np.flatnonzero(user.is_null().to_numpy(zero_copy_only=False)).tolist():
        reasons[row] = f"column {histories.user!r} (`data.histories.user`): it is empty"
    return Events(user, whole, fraction, unit, remembered, values), reasons


def _listed(name: str, batch: Batch) -> pa.Array:
    column = tokens(name, batch.with_column(name, batch.column(name)))
    if kind_of(column) == "float" and column.null_count < len(column):
        raise DataError(
            f"{batch.place(int(batch.index[0]))}: column {name!r} holds floats, and histories list tokens: store "
            "them as text or whole numbers."
        )
    return column.cast(pa.large_binary()) if kind_of(column) == "bytes" else column


def _times(
    column: pa.Array, decimal: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], Units, dict[int, str]]:
    """Return `whole`, `fraction` and `unit` of `Events`; and the reason for each bad row, by position."""
    rows = len(column)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    reasons = dict.fromkeys(np.flatnonzero(missing).tolist(), "it is empty")
    if pa.types.is_temporal(column.type):
        return _int64(column.cast(pa.timestamp("us"))), np.zeros(rows), np.full(rows, _DATE, np.int8), reasons
    if pa.types.is_integer(column.type):
        whole = _int64(column)
        return whole, np.zeros(rows), _units(whole), reasons
    is_text = kind_of(column) == "bytes"
    if is_text and pc.all(pc.match_substring_regex(column.cast(pa.large_binary()), _WHOLE)).as_py():
        whole = _int64(column.cast(pa.large_binary()).cast(pa.string()))
        return whole, np.zeros(rows), _units(whole), reasons
    known: list[tuple[int, float, bool]] = [(0, 0.0, False)]

    def position(value: Value) -> np.int64:
        known.append(_time(value, decimal))
        return np.int64(len(known) - 1)

    positions, wrong = map_values(column, position, np.int64(0))
    whole, fraction, dated = (np.array(part)[positions] for part in zip(*known, strict=True))
    whole = whole.astype(np.int64)
    units = np.where(dated, np.int8(_DATE), _units(whole))
    return whole, fraction.astype(np.float64), units, {**reasons, **wrong}


def _units(whole: npt.NDArray[np.int64]) -> Units:
    units = np.full(len(whole), -1, np.int8)
    for position, unit in enumerate(UNITS):
        units[(unit.low <= whole) & (whole < unit.high)] = position
    return units


def moments(
    whole: npt.NDArray[np.int64], fraction: npt.NDArray[np.float64], units: Units
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Convert times to microseconds if rows use several units; otherwise return them unchanged.

    Times in one unit may be sequence numbers.

    Args:
      whole: `whole` of `Events`, `[rows]`.
      fraction: `fraction` of `Events`, `[rows]`.
      units: `unit` of `Events`, `[rows]`.

    Returns:
      The times as `whole` and `fraction` of one unit.
    """
    present = np.unique(units[units >= 0]).tolist()
    if len(present) < 2:
        return whole, fraction
    whole, fraction = whole.copy(), fraction.copy()
    for position in present:
        unit, rows = UNITS[position], units == position
        exact, rest = np.divmod(whole[rows] * unit.multiply, unit.divide)
        rounded = np.floor_divide((whole[rows] + fraction[rows]) * unit.multiply, unit.divide)
        is_whole = fraction[rows] == 0
        whole[rows] = np.where(is_whole, exact, rounded.astype(np.int64))
        fraction[rows] = np.where(is_whole, rest / unit.divide, 0.0)
    return whole, fraction


def _int64(column: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


def _time(value: Value, decimal: str) -> tuple[int, float, bool]:
    try:
        amount = number(value, decimal)
    except ValueError:
        return instant(value), 0.0, True
    if not math.isfinite(amount) or not -_INT64 <= amount < _INT64:
        raise ValueError(f"{value!r} is not a finite number within 64 bits")
    return math.floor(amount), amount - math.floor(amount), False


# Reads rows and prepares them for examples: filters, splits and converts them, and sets bad rows aside.


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
    sides: Sides
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
        before, start, counted = tally.read, bytes_read(), 0
        for rows in prepared(read_batches(path, data_format, settings, tally.bad), settings, tally):
            yield rows
            read = min(bytes_read() - start, size_of(path)) // PROGRESS_BYTES
            advance("ExampleGen", read - counted, posixpath.basename(path))
            counted = read
        advance("ExampleGen", size_of(path) // PROGRESS_BYTES - counted)
        tally.files += 1
        if tally.read == before:
            tally.files_without_rows = [*tally.files_without_rows, path][:SHOWN]


def prepared(batches: Iterable[Batch], settings: Settings, tally: Tally) -> Iterator[Rows]:
    """Yield the rows of each batch of a file that has some left; see `read_rows`."""
    equal_rows = EqualRows()
    for batch in batches:
        whole = with_whole_numbers(batch, settings, tally.bad)
        with hiding_texts(settings.private):
            rows = _prepared(whole, settings, tally, equal_rows)
        if len(rows.sides):
            yield rows


def _prepared(batch: Batch, settings: Settings, tally: Tally, equal_rows: EqualRows) -> Rows:
    occurring = (name for name, column in batch.columns.items() if _occurs(batch, column))
    tally.seen = sorted({*tally.seen, *occurring, *settings.made})
    batch = filter_rows(batch, settings.conditions, tally.filtered, tally.bad)
    if settings.histories is not None:
        batch = without_lists(batch, settings.histories, tally.bad)
    batch, sides = assign_splits(batch, settings, tally.bad, equal_rows)
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
        for of_kind in (name, *made):
            tally.kinds.setdefault(of_kind, {}).setdefault(kind_of(column), place)
        moments = flat_values(batch.columns[name]).type
        if pa.types.is_temporal(moments) and kind_of(column) == "bytes":
            kind = "date" if pa.types.is_date(moments) else "time"
            tally.moments.setdefault(name, {}).setdefault(kind, place)
    if events is not None:
        for kind, row in events.first_of_each_kind().items():
            tally.times.setdefault(kind, batch.place(int(batch.index[row])))


# Writes rows as shards of examples: gzipped TFRecord files in an order drawn from the seed.

_SHARD_ROWS = 100_000


class Shards:
    """Writes rows into files of at most 100,000 rows, and shuffles the rows of each file by the seed."""

    def __init__(self, folder: str, group: int, seed: int, names: dict[str, list[str]]) -> None:
        """Prepare to write.

        Args:
          folder: output folder; names contain a random id, so a retry never overwrites.
          group: number of the group; part of the shards' names and of the seed that shuffles their rows.
          seed: seed of the order of rows.
          names: per split, the names of the files written; extended here.
        """
        self._folder = folder
        self._group = group
        self._seed = seed & 0xFFFFFFFF
        self._names = names
        self._attempt = uuid.uuid4().hex
        self._rows: dict[str, list[bytes]] = {split: [] for split in SPLITS}

    def add(self, columns: Mapping[str, pa.Array], sides: Sides, records: Sequence[bytes] | None = None) -> None:
        """Add rows to their splits.

        Args:
          columns: the columns of the examples.
          sides: the split of each row, as a position in `SPLITS`.
          records: the serialized examples; None encodes the columns.
        """
        rows = examples(columns) if records is None else records
        for position, split in enumerate(SPLITS):
            waiting = self._rows[split]
            waiting.extend(rows[row] for row in np.flatnonzero(sides == position).tolist())
            while len(waiting) >= _SHARD_ROWS:
                self._write(split, waiting[:_SHARD_ROWS])
                del waiting[:_SHARD_ROWS]

    def flush(self) -> None:
        """Write the rows that are left."""
        for split, waiting in self._rows.items():
            if waiting:
                self._write(split, waiting)

    def _write(self, split: str, rows: Sequence[bytes]) -> None:
        # Data is often sorted (by time, by label). Without shuffling here, only training's shuffle buffer would mix it.
        piece = len(self._names[split])
        order: Any = np.random.RandomState([self._seed, self._group, SPLITS.index(split), piece])
        name = f"{split}-{self._group:05d}-{piece:05d}-{self._attempt}.gz"
        write_records(posixpath.join(self._folder, name), [rows[row] for row in order.permutation(len(rows)).tolist()])
        self._names[split].append(name)


# Reads one group of files and writes their rows as shards of examples: the work of one worker.


def ingest(files: Sequence[str], group: int, data_format: str, settings: Settings, folder: str) -> Tally:
    """Read files, and write their rows as shards of examples into the folder.

    Args:
      files: the files of one group, in order.
      group: number of the group; part of the shards' names and of the seed that shuffles their rows.
      data_format: one of `components.example_gen.readers.DATA_FORMATS`.
      settings: rows and columns to read.
      folder: output folder; names contain a random id, so a retry never overwrites.

    Raises:
      DataError: the data is not what the settings require.
    """
    tally = Tally(filtered=[0] * len(settings.conditions))
    shards = Shards(folder, group, settings.seed, tally.shards)
    for rows in read_rows(files, data_format, settings, tally):
        tally.add_rows(rows.columns, rows.sides)
        record = rows.batch.record if settings.passthrough else None
        records = [record(row) for row in rows.batch.index.tolist()] if record else None
        shards.add(rows.columns, rows.sides, records)
    shards.flush()
    return tally
