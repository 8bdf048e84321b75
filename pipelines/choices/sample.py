"""Writes a sample of the user's rows into a file that the pipeline reads with the same settings."""

from __future__ import annotations

import csv
import json
import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that a Parquet file holds (CVE-2023-47248)
from pyarrow import parquet

from components.example_gen.csv_format import CsvFormat
from components.example_gen.data_files import find_files, without_spans
from components.example_gen.readers import read_batches
from components.example_gen.rows import BadRows, Batch, map_values
from components.example_gen.settings import Settings
from embedding_core.errors import DataError
from embedding_core.storage import is_remote, json_digest, whole_file
from pipelines.config import PipelineConfig
from pipelines.config.data import Data
from pipelines.pipeline import component_inputs

_SEED = 0


class Sample(NamedTuple):
    """Rows for short runs.

    Attributes:
      data: where they are and how they are written.
      rows: number of rows.
      of: number of rows of the whole data that can be read.
    """

    data: Data
    rows: int
    of: int

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        return self.rows == self.of


class _Kept(NamedTuple):
    draws: npt.NDArray[np.float64]  # [rows], a random number of each row or, with histories, of each row's user
    columns: pa.Table


def sample_rows(config: PipelineConfig, settings: Settings, rows: int, folder: str) -> Sample:
    """Draw rows at random, in one pass over the data, and keep their order; with histories, draw users.

    Args:
      config: the configuration.
      settings: ExampleGen's settings, made from it.
      rows: the largest number of rows.
      folder: folder for the sample; one that is there for the same data and settings is used again.

    Raises:
      DataError: the files do not exist, cannot be read, or hold no rows.
    """
    base, pattern = component_inputs.input_location(config)
    data_format = component_inputs.data_format(config)
    files = find_files(base, without_spans(pattern), data_format, settings.spans).files
    stats = [] if any(map(is_remote, files)) else [[os.stat(one).st_size, os.stat(one).st_mtime_ns] for one in files]
    key = json_digest({"files": list(files), "stats": stats, "settings": settings.to_mapping(), "rows": rows})[:16]
    path = os.path.join(folder, f"{key}.{'csv' if data_format == 'csv' else 'parquet'}")
    counted = os.path.join(folder, f"{key}.json")
    if not os.path.exists(counted):
        os.makedirs(folder, exist_ok=True)
        kept, total = _drawn(_batches(files, data_format, settings), settings, rows)
        if not total:
            raise DataError(f"{config.data.path!r} has no rows that can be read: check it with `validate --data`.")
        if kept.num_rows < total:
            _write(path, kept)
        with whole_file(counted) as new, open(new, "w", encoding="utf-8") as file:
            json.dump({"rows": kept.num_rows, "of": total}, file)
    with open(counted, encoding="utf-8") as read:
        sample = Sample(config.data, **json.load(read))
    return sample if sample.whole else sample._replace(data=_data(config.data, path, data_format))


def _batches(files: list[str], data_format: str, settings: Settings) -> Iterator[Batch]:
    for file in files:
        yield from read_batches(file, data_format, settings, BadRows())


def _drawn(batches: Iterator[Batch], settings: Settings, rows: int) -> tuple[pa.Table, int]:
    """Return the rows with the smallest random numbers, in order, and the number of all rows."""
    generator = np.random.default_rng(_SEED)
    kept: list[_Kept] = []
    held, total = 0, 0
    for batch in batches:
        columns = pa.table({name: batch.columns[name] for name in settings.needed})
        user = None if settings.histories is None else batch.columns[settings.histories.user]
        draws = generator.random(len(batch)) if user is None else map_values(user, _draw_of_user, 1.0)[0]
        kept.append(_Kept(draws, columns))
        held, total = held + len(batch), total + len(batch)
        if held > 4 * rows:
            kept = _smallest(kept, rows)
            held = sum(len(one.draws) for one in kept)
    tables = [one.columns for one in (_smallest(kept, rows) if held > rows else kept)]
    return (pa.concat_tables(tables, promote=True) if tables else pa.table({})), total


def _smallest(kept: list[_Kept], rows: int) -> list[_Kept]:
    """Keep at most `rows` rows: those with the smallest numbers; rows of equal numbers stay together."""
    draws = np.sort(np.concatenate([one.draws for one in kept]))
    bound = max(draws[rows], np.nextafter(draws[0], 1.0))  # at least one user
    return [_Kept(one.draws[one.draws < bound], one.columns.filter(pa.array(one.draws < bound))) for one in kept]


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
