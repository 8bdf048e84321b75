"""Reads the rows of one file of CSV or Parquet as batches, and reports bad rows with their line.

Local files are read without TensorFlow, TFX or Beam, so that a check of the configuration can look at rows.
"""

from __future__ import annotations

import contextlib
import csv
import io
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow_hotfix  # noqa: F401  # without it, pyarrow 10 runs code that a Parquet file holds (CVE-2023-47248)
from pyarrow import parquet

from components.example_gen.data_files import check_columns, check_number_of_columns, open_file, open_unpacked, reading
from components.example_gen.row_selection import SplitByHash
from components.example_gen.rows import BadRows, Batch, FirstRows, UnsupportedTypeError, examples, normal, plain
from components.example_gen.settings import COMMON_DELIMITERS, CsvFormat, DataFormat, Settings, allow_long_values
from components.installed import require_package
from embedding_core.errors import DataError
from embedding_core.schema import Json
from embedding_core.storage import bounds

# Reads rows of CSV files, with values as text, and reports bad rows with their line.

_Row: TypeAlias = tuple[int, list[str]]
"""The line at which a row begins, and its fields."""
_BATCH = 16_384
# Replaces a delimiter of several characters, which Python's csv module does not support.
_UNIT = "\x1f"
_BYTE_ORDER_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def csv_batches(path: str, settings: Settings, bad: BadRows, first: FirstRows | None = None) -> Iterator[Batch]:
    """Yield batches of a CSV file, compressed or not, in the format that `settings.csv` declares.

    Every value is text, exactly as it is in the file; "" and the `missing` texts are missing values. Empty lines are
    skipped. A row is bad if its number of fields differs from the header's, or if it has broken quotes, a NUL, or a
    value longer than `bounds.CELL_CHARACTERS`. It is also bad if a column that is read has bytes that are invalid in
    the encoding.

    Args:
      path: the file.
      settings: which columns are read, and how CSV is written.
      bad: collects the rows that cannot be read.
      first: the rows to read; None reads all.

    Raises:
      DataError: the file is empty or damaged, its header has a duplicate column, a needed column is missing, or a row
        is longer than `bounds.ROW_BYTES`.
    """
    form = settings.csv
    with reading(path), open_unpacked(path, form.compression) as stream:
        _check_byte_order(path, stream.peek(2)[:2], form)
        source = _Source(stream)
        try:
            reader = _Reader(path, source, form)
            header = _header(path, reader, settings)
            wanted = header if settings.passthrough else settings.needed
            for chunk in _chunks(path, source, reader, header, form, bad, first):
                yield _batch(path, header, wanted, form, chunk, bad)
        except UnicodeError as error:
            raise DataError(
                f"{path} cannot be decoded as {form.encoding} ({error}): say how it is written, such as "
                "`data: {encoding: latin-1}`."
            ) from error


def _check_byte_order(path: str, start: bytes, form: CsvFormat) -> None:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if start == mark and form.codec == "utf-8-sig":
            raise DataError(f"{path} starts as a file in {encoding} does: set `data: {{encoding: {encoding}}}`.")


class _TooLongError(Exception):
    """A row has more than `bounds.ROW_BYTES`."""


class _Source(io.BufferedIOBase):
    """Passes on the bytes of a file, and refuses more of them within one row than a row may have.

    It looks at every 8 KB, as `io.TextIOWrapper` reads them, and not at every row, which would take time.

    Attributes:
      taken: bytes passed on.
      full: whether there are more of them than the caller of `fill` wanted.
      has_nul: whether one of them is NUL.
    """

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self.taken = 0
        self.full = False
        self.has_nul = False
        self._stream = stream
        self._most = sys.maxsize
        self._row = 0  # bytes before the row that is being read, up to those of its first 8 KB
        self._rows: Sequence[object] = ()
        self._seen = 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        if len(self._rows) != self._seen:
            self._row, self._seen = self.taken, len(self._rows)
        if self.taken - self._row > bounds.ROW_BYTES:
            raise _TooLongError
        data = self._stream.read1(size)
        self.taken += len(data)
        self.has_nul = self.has_nul or b"\0" in data
        self.full = self.taken > self._most
        return data

    def fill(self, rows: Sequence[object], most: int) -> None:
        """Begin a list, to which every row is added that ends; `full` becomes true after so many bytes of the file."""
        self._rows, self._seen, self._row, self._most = rows, len(rows), self.taken, most
        self.full = self.taken > most

    def pass_over(self) -> None:
        """Take note of the end of a row that is not added to the list."""
        self._row = self.taken


class _Reader:
    """Splits lines into fields; a delimiter of several characters is replaced by one for the csv module.

    Attributes:
      rows: the rows, in which delimiters of several characters that are within quotes are still replaced.
    """

    def __init__(self, path: str, source: _Source, form: CsvFormat) -> None:
        text = io.TextIOWrapper(cast(BinaryIO, source), encoding=form.codec, errors="surrogateescape", newline="")
        self._path = path
        self._source = source
        self._text = text
        self._delimiter = form.delimiter if len(form.delimiter) > 1 else None
        quoting: Json = {"quotechar": form.quote} if form.quote else {"quoting": csv.QUOTE_NONE}
        lines = text if self._delimiter is None else self._replaced(self._delimiter)
        allow_long_values()
        self.rows = csv.reader(
            lines, delimiter=form.delimiter if self._delimiter is None else _UNIT, strict=True, **quoting
        )

    def _replaced(self, delimiter: str) -> Iterator[str]:
        for line in self._text:
            if _UNIT in line:
                raise DataError(
                    f"{self._path} holds the character {_UNIT!r}, which a file with a delimiter of several characters "
                    "must not contain: write the file with a delimiter of one character."
                )
            yield line.replace(delimiter, _UNIT)

    def next_row(self) -> list[str]:
        """Return the next row, in which delimiters within quotes are still replaced.

        Raises:
          StopIteration: there are no more rows.
          csv.Error: the row is not CSV, or has a NUL, which only Python 3.10 finds itself.
        """
        row: list[str] = next(self.rows)
        if self._source.has_nul and any("\0" in value for value in row):
            raise csv.Error("line contains NUL")
        return row

    def restored(self, row: list[str]) -> list[str]:
        """Return the row with the delimiters that are within quotes."""
        return row if self._delimiter is None else [value.replace(_UNIT, self._delimiter) for value in row]


def _header(path: str, reader: _Reader, settings: Settings) -> list[str]:
    form = settings.csv
    if form.columns is not None:
        check_columns(path, form.columns, settings)
        return list(form.columns)
    try:
        header = reader.restored(reader.next_row())
    except StopIteration:
        header = []
    except csv.Error as error:
        raise DataError(f"{path}:1: the header is not CSV ({_shown_error(error)}): {_QUOTE_CURE}.") from error
    except _TooLongError as error:
        raise _too_long(path, 1) from error
    if not header:
        raise DataError(
            f"{path} has no header: its first line is empty, and must name the columns; if the file has rows only, "
            "name them with `data: {columns: [...]}`."
        )
    header[0] = header[0].removeprefix("\ufeff")
    _check_header(path, header, settings)
    return header


def _check_header(path: str, header: list[str], settings: Settings) -> None:
    form = settings.csv
    for name in header:
        if not _is_decoded(name):
            raise DataError(
                f"{path}:1: the header holds bytes that are not {_shown(form)} "
                f"({_readable(settings.shown_name(name))}): say how the file is written, such as "
                "`data: {encoding: latin-1}`."
            )
    first = settings.shown_name(header[0])[:100]
    for delimiter in COMMON_DELIMITERS if len(header) == 1 else ():
        if delimiter in header[0] and header[0] not in settings.needed:
            raise DataError(
                f"{path}:1: the header is one column, {first!r}, with {delimiter!r} in it: set "
                f'`data: {{delimiter: "{_escaped(delimiter)}"}}` (it is {form.delimiter!r}).'
            )
    if settings.needed and not {*header} & {*settings.needed} and all(map(_is_number, header)):
        raise DataError(
            f"{path}:1: the first line holds numbers and no names of columns: if the file has no "
            "header, name all of its columns with `data: {columns: [...]}`."
        )
    check_columns(path, header, settings)


_QUOTE_CURE = 'correct the quotes, or set `data: {quote: ""}` if they are ordinary characters'


def _escaped(delimiter: str) -> str:
    return delimiter.replace("\t", r"\t")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown_error(error: csv.Error) -> str:
    if "field limit" not in str(error):
        return str(error)
    most = f"{csv.field_size_limit():,} characters"
    return f"a value has more than {most}, the most that is read from CSV (Parquet may have more)"


def _too_long(path: str, line: int) -> DataError:
    return DataError(
        f"{path}:{line}: the row that begins here has more than {bounds.ROW_BYTES:,} bytes, the most that a row may "
        f"have: end every row with a line break, {_QUOTE_CURE}, or write the data as Parquet."
    )


def _chunks(
    path: str,
    source: _Source,
    reader: _Reader,
    header: Sequence[str],
    form: CsvFormat,
    bad: BadRows,
    first: FirstRows | None,
) -> Iterator[list[_Row]]:
    """Yield the rows of the right width, as many at a time as a batch has; note in `first` whether the file ended."""
    names = "`data.columns`" if form.columns is not None else "the header"
    rows, width, several = reader.rows, len(header), len(form.delimiter) > 1
    left, most, end = (sys.maxsize,) * 3 if first is None else (first.rows, first.most, bounds.SAMPLE_BYTES)
    chunk: list[_Row] = []
    size = min(_BATCH, left)
    source.fill(chunk, min(bounds.BATCH_BYTES, end))
    for number in range(most):
        if len(chunk) == size or source.full:
            if chunk:
                yield chunk
            left -= len(chunk)
            if not left or source.taken > end:
                return
            chunk, size = [], min(_BATCH, left)
            source.fill(chunk, min(source.taken + bounds.BATCH_BYTES, end))
        line = rows.line_num + 1
        try:
            row = reader.next_row()
        except StopIteration:
            if first is not None:
                first.ended = True
            break
        except csv.Error as error:
            reason = f"malformed CSV: {_shown_error(error)}; {_QUOTE_CURE}"
            bad.add(f"{path}:{line}", reason, rows=max(1, rows.line_num - line + 1))
            source.pass_over()
            continue
        except _TooLongError as error:
            raise _too_long(path, line) from error
        if number == 0 and form.columns is not None and row == list(header):
            raise DataError(f"{path}:1: the first line is a header equal to `data.columns`: leave `columns` out.")
        if len(row) == width:
            chunk.append((line, reader.restored(row) if several else row))
            continue
        source.pass_over()
        if row:
            fields = f"{len(row)} field{'s' if len(row) > 1 else ''}"
            bad.add(f"{path}:{line}", f"{fields}, {names} has {width}", rows=rows.line_num - line + 1)
    if chunk:
        yield chunk


def _batch(
    path: str,
    header: Sequence[str],
    wanted: Sequence[str],
    form: CsvFormat,
    chunk: Sequence[tuple[int, list[str]]],
    bad: BadRows,
) -> Batch:
    lines, rows = zip(*chunk, strict=True)
    place_of = {name: place for place, name in enumerate(header)}
    places = [place_of[name] for name in wanted]
    missing = frozenset(("", *form.missing))
    try:
        columns = {name: _texts((row[at] for row in rows), missing) for name, at in zip(wanted, places, strict=True)}
    except UnicodeEncodeError:
        good = [pair for pair in chunk if _check_decoded(path, header, places, form, pair, bad)]
        if good:
            return _batch(path, header, wanted, form, good, bad)
        lines, rows, columns = (), (), {name: _texts([], missing) for name in wanted}
    return Batch(
        columns=columns,
        index=np.arange(len(rows)),
        place=lambda row: f"{path}:{lines[row]}",
        content=lambda index: _contents(header, rows, index),
        is_text=True,
        decimal=form.decimal,
    )


def _texts(values: Any, missing: frozenset[str]) -> pa.Array:
    return pa.array([None if value in missing else value for value in values], pa.string())


def _is_decoded(text: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


def _readable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(form: CsvFormat) -> str:
    return "UTF-8" if form.codec == "utf-8-sig" else form.encoding


def _check_decoded(
    path: str,
    header: Sequence[str],
    places: Sequence[int],
    form: CsvFormat,
    pair: tuple[int, list[str]],
    bad: BadRows,
) -> bool:
    line, row = pair
    for place in places:
        if not _is_decoded(row[place]):
            bad.add(
                f"{path}:{line}",
                f"bytes that are not {_shown(form)} in column {header[place]!r}; if the whole file is in another "
                "encoding, set it, such as `data: {encoding: latin-1}`",
            )
            return False
    return True


def _contents(header: Sequence[str], rows: Sequence[list[str]], index: npt.NDArray[np.int64]) -> list[bytes]:
    """Join the fields of each row, sorted by column name, with NUL between them: a field cannot contain NUL."""
    by_name = sorted(range(len(header)), key=header.__getitem__)
    pick = operator.itemgetter(*by_name) if len(by_name) > 1 else lambda row: (row[0],)
    return ["\0".join(pick(rows[row])).encode("utf-8", "surrogateescape") for row in index.tolist()]


# Reads the rows of Parquet files as batches of typed columns.


def parquet_batches(path: str, settings: Settings, first_rows: FirstRows | None = None) -> Iterator[Batch]:
    """Yield batches of a Parquet file; it has no bad rows: damage cannot be limited to single rows.

    Raises:
      DataError: the file is empty or damaged, has too many columns, or a needed column is absent or of a type that no
        example can hold.
    """
    with opened_parquet(path) as file:
        names = file.schema_arrow.names
        check_columns(path, names, settings)
        # A hash of the whole row needs all columns.
        whole = settings.passthrough or isinstance(settings.split, SplitByHash)
        size, first = _rows_at_once(file.metadata), 1
        if first_rows is not None:
            size = min(size, first_rows.rows)
        for records in file.iter_batches(size, columns=None if whole else list(settings.needed)):
            yield typed_batch(f"{path}, row", records, settings, first)
            first += len(records)
            if first_rows is not None and first > first_rows.rows:
                return
        if first_rows is not None:
            first_rows.ended = True


def _rows_at_once(metadata: parquet.FileMetaData) -> int:
    """Return the rows of a batch: fewer if, by the file's own account, so many would have more than a batch may."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(_BATCH, bounds.BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


@contextlib.contextmanager
def opened_parquet(path: str) -> Iterator[parquet.ParquetFile]:
    """Open a Parquet file; errors of reading it within the block become a DataError that names it.

    Raises:
      DataError: the file is empty or damaged, has too many columns, or holds pickled Python objects.
    """
    with reading(path), open_file(path) as stream:
        try:
            file = parquet.ParquetFile(stream)
            check_number_of_columns(path, file.metadata.num_columns)
            yield file
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"{path} is not a Parquet file, or is damaged ({error}): write it again.") from error
        except RuntimeError as error:
            if "arrow.py_extension_type" not in str(error):
                raise
            raise DataError(
                f"{path} has a column of pickled Python objects, and reading it would run code that the file holds: "
                "nothing was read; write the column as plain values."
            ) from None


def typed_batch(place: str, records: pa.RecordBatch, settings: Settings, first: int) -> Batch:
    """Make a batch of typed columns.

    Args:
      place: what precedes a row's number in errors: the file, and "row" (for TFRecord files "record").
      records: the columns that were read; needed columns that are absent become null in every row.
      settings: names the columns that are needed.
      first: number of the first row, counted from 1.

    Raises:
      DataError: a needed column, or with `passthrough` any column, is of a type that no example can hold.
    """
    columns: dict[str, pa.Array] = {name: pa.nulls(len(records), pa.large_binary()) for name in settings.needed}
    for name, column in zip(records.schema.names, records.columns, strict=True):
        try:
            columns[name] = normal(column)
        except UnsupportedTypeError as error:
            if name in settings.needed or settings.passthrough:
                raise DataError(
                    f"{place} {first}: column {settings.shown_name(name)!r} is of type {error}: an example holds text, "
                    "whole numbers, floats, times, and lists of these."
                ) from error
    return Batch(
        columns=columns,
        index=np.arange(len(records)),
        place=lambda row: f"{place} {first + row}",
        content=lambda index: _column_contents(columns, index),
    )


def _column_contents(columns: Mapping[str, pa.Array], index: npt.NDArray[np.int64]) -> list[bytes]:
    """Encode the rows, with all their columns, as tf.Examples."""
    chosen = pa.array(index)
    taken = {name: column.take(chosen) for name, column in columns.items()}
    return examples({name: plain(column) for name, column in taken.items()})


# Reads the rows of one file of any known format as batches.

DATA_FORMATS: tuple[str, ...] = get_args(DataFormat)


def read_batches(
    path: str, data_format: str, settings: Settings, bad: BadRows, first: FirstRows | None = None
) -> Iterator[Batch]:
    """Yield the file's rows in batches, in order.

    Args:
      path: the file.
      data_format: one of `DATA_FORMATS`.
      settings: which columns are read, and how CSV is written.
      bad: collects the rows that cannot be read.
      first: the rows to read; None reads all.

    Raises:
      DataError: the file is empty, damaged, beyond a bound, or without a needed column.
    """
    if data_format == "csv":
        yield from csv_batches(path, settings, bad, first)
    elif data_format == "parquet":
        yield from parquet_batches(path, settings, first)
    else:
        require_package("tfx_bsl", f"{path!r} is a TFRecord file: give CSV or Parquet, or for TFRecord files")
        from components.example_gen.tfrecord_rows import tfrecord_batches  # loads TFX's decoder

        yield from tfrecord_batches(path, settings, bad, first)
