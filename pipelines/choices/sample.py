"""Writes a sample of the user's rows into a file that the pipeline reads with the same settings."""

from __future__ import annotations

import csv
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that a Parquet file holds (CVE-2023-47248)
from pyarrow import parquet

from components.example_gen.csv_format import CsvFormat
from components.example_gen.data_files import file_state, find_files, without_spans
from components.example_gen.event_columns import without_lists
from components.example_gen.event_tables import joined
from components.example_gen.readers import read_batches
from components.example_gen.row_selection import SplitByHash
from components.example_gen.rows import BadRows, Batch, flat_values, is_list, map_values, widened
from components.example_gen.settings import Settings
from components.example_gen.whole_numbers import keys_of, with_whole_numbers
from embedding_core.errors import DataError
from embedding_core.schema import Json
from embedding_core.storage import file_digest, json_digest, read_json, whole_file
from pipelines.choices.kept import has_types
from pipelines.config import PipelineConfig
from pipelines.config.data import Data
from pipelines.pipeline import component_inputs

_SEED = 0
_KEPT = {"rows": (int,), "of": (int,), "sha256": (str,)}


class Sample(NamedTuple):
    """Rows for short runs.

    Attributes:
      data: where they are and how they are written.
      rows: number of rows.
      of: number of rows of the whole data that can be read.
      digest: of names, sizes and times of the files, the settings, and the number of rows: other rows have another one.
    """

    data: Data
    rows: int
    of: int
    digest: str

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        return self.rows == self.of


class _Kept(NamedTuple):
    draws: npt.NDArray[np.float64]  # [rows], a random number of each row or, with histories, of each row's user
    columns: pa.Table


def sample_rows(
    config: PipelineConfig, settings: Settings, rows: int, folder: str, say: Callable[[str], None]
) -> Sample:
    """Draw rows at random, in one pass over the data, and keep their order; with histories, draw users.

    Args:
      config: the configuration.
      settings: ExampleGen's settings, made from it.
      rows: the largest number of rows.
      folder: folder for the sample; one that is there for the same data and settings is used again.
      say: shows a line to the user.

    Raises:
      DataError: the files do not exist, cannot be read, or hold no rows.
    """
    base, pattern = component_inputs.input_location(config)
    data_format = component_inputs.data_format(config)
    files = find_files(base, without_spans(pattern), data_format, settings.spans).files
    stats = [file_state(one) for one in files]
    digest = json_digest({"files": list(files), "stats": stats, "settings": settings.to_mapping(), "rows": rows})
    path = os.path.join(folder, f"{digest[:16]}.{'csv' if data_format == 'csv' else 'parquet'}")
    counted = os.path.join(folder, f"{digest[:16]}.json")
    if all(all(times) for _, *times in stats):
        found = _kept_counts(path, counted, say)
    else:
        say("the storage of the data does not say when files changed: previous rows and short runs are not used again")
        found, digest = None, uuid.uuid4().hex
    if found is None:
        os.makedirs(folder, exist_ok=True)
        kept, total = _drawn(_batches(files, data_format, settings), settings, rows)
        if not total:
            raise DataError(f"{config.data.path!r} has no rows that can be read: check it with `validate --data`.")
        found = _keep(path, counted, kept, total)
    sample = Sample(config.data, found["rows"], found["of"], digest)
    return sample if sample.whole else sample._replace(data=_data(config.data, path, data_format))


def _kept_counts(path: str, counted: str, say: Callable[[str], None]) -> Json | None:
    """Return the numbers of rows of the sample that is there; None if there is none, or a file of it is damaged."""
    if not os.path.exists(counted):
        return None
    try:
        found: Json = read_json(counted)
        if has_types(found, _KEPT) and found["sha256"] == _digest_of(path, whole=found["rows"] == found["of"]):
            return found
    except (OSError, ValueError):  # cut, or not JSON
        pass
    say(f"the rows in {path!r} are gone or damaged: they are drawn again")
    return None


def _keep(path: str, counted: str, rows: pa.Table, total: int) -> Json:
    """Write the rows, unless they are all of them, and then their numbers with the digest of the file."""
    if rows.num_rows < total:
        _write(path, rows)
    found = {"rows": rows.num_rows, "of": total, "sha256": _digest_of(path, whole=rows.num_rows == total)}
    with whole_file(counted) as new, open(new, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return found


def _digest_of(path: str, *, whole: bool) -> str:
    return "" if whole else file_digest(path)["sha256"]


def _batches(files: list[str], data_format: str, settings: Settings) -> Iterator[Batch]:
    """Yield the rows, with one type in all files for keys that the examples do not hold and for `whole_numbers`."""
    split = settings.split.columns if isinstance(settings.split, SplitByHash) else ()
    users = () if settings.histories is None else (settings.histories.user,)
    for file in files:
        for batch in read_batches(file, data_format, settings, BadRows()):
            one = with_whole_numbers(batch, settings, BadRows())
            one = one if settings.histories is None else without_lists(one, settings.histories, BadRows())
            for name in {*split, *users} - settings.columns.keys():
                one = one.with_column(name, keys_of(one.column(name), one.decimal)[0])
            yield one


def _drawn(batches: Iterator[Batch], settings: Settings, rows: int) -> tuple[pa.Table, int]:
    """Return the rows with the smallest random numbers, in order, and the number of all rows.

    The bound on the numbers never grows: a user who was dropped stays dropped, with all later rows.
    """
    generator = np.random.default_rng(_SEED)
    kept: list[_Kept] = []
    held, total, bound = 0, 0, np.inf
    for batch in batches:
        histories = settings.histories
        draws = generator.random(len(batch)) if histories is None else _draws_of_users(batch, histories.user)
        columns = pa.table({name: batch.columns[name] for name in settings.needed})
        kept.append(_below(bound, _Kept(draws, columns)))
        held, total = held + len(kept[-1].draws), total + len(batch)
        if held > 4 * rows:
            bound = _bound(kept, rows)
            kept = [_below(bound, one) for one in kept]
            held = sum(len(one.draws) for one in kept)
    if held > rows:
        bound = _bound(kept, rows)
    return _joined([_below(bound, one).columns for one in kept], settings), total


def _joined(tables: Sequence[pa.Table], settings: Settings) -> pa.Table:
    """Concatenate the rows of all files; a column of numbers may be of another type in each file.

    Raises:
      DataError: a column is of types that a run does not join either.
    """
    if not tables:
        return pa.table({})
    for name in settings.needed:
        chunks = [chunk for table in tables for chunk in table[name].chunks]
        kinds = {flat_values(chunk).type for chunk in chunks if chunk.null_count < len(chunk)}
        if len(kinds) < 2:
            continue
        is_number = pa.types.is_floating if settings.columns.get(name) == "token" else _is_number
        if not all(map(is_number, kinds)):
            raise DataError(
                f"column {name!r} is {' and '.join(sorted(map(str, kinds)))} in different files: store it as one type "
                "throughout; `validate --data` names a file of each."
            )
        at = tables[0].column_names.index(name)
        tables = [table.set_column(at, name, _as_floats(table[name])) for table in tables]
    return joined(tables)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _as_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    chunks = [_with_floats(chunk) for chunk in column.chunks]
    return pa.chunked_array(chunks, chunks[0].type if chunks else pa.float64())


def _with_floats(chunk: pa.Array) -> pa.Array:
    if chunk.null_count == len(chunk):
        return pa.nulls(len(chunk), pa.float64())
    values = widened(flat_values(chunk)).cast(pa.float64(), safe=False)
    return pa.LargeListArray.from_arrays(chunk.offsets, values) if is_list(chunk.type) else values


def _bound(kept: list[_Kept], rows: int) -> float:
    """Return the number that at most `rows` rows are below, or else one user's; equal numbers are on one side of it."""
    draws = np.sort(np.concatenate([one.draws for one in kept]))
    return float(max(draws[rows], np.nextafter(draws[0], 1.0)))


def _below(bound: float, rows: _Kept) -> _Kept:
    inside = rows.draws < bound
    return rows if inside.all() else _Kept(rows.draws[inside], rows.columns.filter(pa.array(inside)))


def _draws_of_users(batch: Batch, user: str) -> npt.NDArray[np.float64]:
    keys, _ = keys_of(batch.column(user), batch.decimal)
    return map_values(keys, _draw_of_user, 1.0)[0]


def _draw_of_user(user: object) -> float:
    return zlib.crc32(str(user).encode("utf-8", "surrogateescape")) / 2**32


def _write(path: str, rows: pa.Table) -> None:
    with whole_file(path) as new:
        if path.endswith(".parquet"):
            parquet.write_table(rows, new)
            return
        columns = (column.fill_null("").to_pylist() for column in rows.columns)
        with open(new, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([rows.column_names, *zip(*columns, strict=True)])


def _data(data: Data, path: str, data_format: str) -> Data:
    """Return the section `data` for the file of the sample: CSV in the default dialect, anything else as Parquet."""
    dialect = {name: value for name, value in CsvFormat() if name not in ("missing", "decimal")}
    kept = "csv" if data_format == "csv" else "parquet"
    return data.replace(path=path, format=kept, spans=None, workers=1, **dialect)
