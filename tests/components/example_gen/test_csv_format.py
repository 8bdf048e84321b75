import bz2
import gzip
import lzma
import re

import pyarrow as pa
import pytest

from components.example_gen.readers import csv_batches
from components.example_gen.rows import BadRows
from components.example_gen.settings import CsvFormat, Settings
from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import bounds


def zst(data):
    return pa.compress(data, "zstd", asbytes=True)


def streamed_zst(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def read(write):
    """Return a function that reads CSV content and returns the needed columns and the reasons of the first bad rows."""

    def of(content, *, name="data.csv", needed=("id", "x"), **form):
        bad = BadRows()
        settings = Settings(columns=dict.fromkeys(needed, "token"), csv=CsvFormat(**form))
        batches = list(csv_batches(str(write(content, name)), settings, bad))
        return {name: [value for b in batches for value in b.columns[name].to_pylist()] for name in needed}, bad.first

    return of


def values(read, content, **form):
    return read(content, **form)[0]


def test_delimiter_and_missing(read):
    found = values(read, "id;x\n1;?\nNA;2\n;a,b\n", delimiter=";", missing=("?", "NA"))
    assert found == {"id": ["1", None, None], "x": [None, "2", "a,b"]}


def test_delimiter_of_several_characters(read):
    found = values(read, "1::a:b\n2::\n", delimiter="::", columns=("id", "x"))
    assert found == {"id": ["1", "2"], "x": ["a:b", None]}
    assert values(read, 'id::x\n1::"a::b"\n', delimiter="::")["x"] == ["a::b"]
    with pytest.raises(DataError, match=r"holds the character '\\x1f'"):
        read("id::x\n1::a\x1fb\n", delimiter="::")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8", "UTF8", "utf-8-sig"])
def test_encoding(read, encoding):
    assert values(read, "id,x\ncaffè,1\n".encode(encoding), encoding=encoding)["id"] == ["caffè"]


def test_byte_order_mark_and_line_ends_are_in_no_name_or_value(read):
    assert values(read, b"\xef\xbb\xbfid,x\r\n1,a\r\n\r\n2,b\r\n") == {"id": ["1", "2"], "x": ["a", "b"]}


@pytest.mark.parametrize(
    ("extension", "pack"),
    [
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("xz", lzma.compress),
        ("zst", streamed_zst),
        ("zst", zst),
    ],
)
def test_compression(read, extension, pack):
    content = pack(b"id,x\n" + b"1,a\n" * 999)
    assert len(values(read, content, name=f"a.csv.{extension}", compression=extension)["id"]) == 999
    assert len(values(read, content)["id"]) == 999  # recognized by its first bytes
    with pytest.raises(DataError, match=r"data.csv is truncated or damaged"):
        read(content[:-9])
    with pytest.raises(DataError, match=f"`data.compression` is '.*', and .* the file is compressed as {extension}"):
        read(content, compression="gz" if extension != "gz" else "zst")


def test_concatenated_members_are_one_file(read):
    for pack in (gzip.compress, bz2.compress, lzma.compress, streamed_zst):
        assert values(read, pack(b"id,x\n1,a\n") + pack(b"2,b\n"))["id"] == ["1", "2"]


def test_file_without_header(read):
    assert values(read, "1,a,9\n2,b,9\n", columns=("id", "x", "rest"))["id"] == ["1", "2"]
    with pytest.raises(DataError, match=r"data.csv:1: the first line is a header .*: leave `columns` out"):
        read("id,x\n1,a\n", columns=("id", "x"))
    assert read("1,a\n2\n", columns=("id", "x"))[1][0].endswith("data.csv:2: 1 field, `data.columns` has 2")


def test_quotes_may_be_ordinary_characters(read):
    content = 'id,x\n1,"A" and B\n2,5" disk\n'
    assert "malformed CSV" in read(content)[1][0]
    assert 'data: {quote: ""}' in read(content)[1][0]
    assert values(read, content, quote="")["x"] == ['"A" and B', '5" disk']


CURES = {
    "semicolons": (b"id;x\n1;2\n", {}, r'one column, \'id;x\', with \';\' in it: set `data: {delimiter: ";"}`'),
    "tabs": (b"id\tx\n1\t2\n", {}, r'set `data: {delimiter: "\\t"}`'),
    "double colons": (b"id::x\n", {"delimiter": ";"}, r'set `data: {delimiter: "::"}` \(it is \';\'\)'),
    "commas": (b"id,x\n1,2\n", {"delimiter": ";"}, r'set `data: {delimiter: ","}`'),
    "latin-1 header": ("id,x,è\n".encode("latin-1"), {}, r"not UTF-8 .*`data: {encoding: latin-1}`"),
    "utf-16": ("id,x\n1,2\n".encode("utf-16"), {}, r"set `data: {encoding: utf-16}`"),
    "no utf-16": (b"id,x\n1,2\n3", {"encoding": "utf-16"}, r"cannot be decoded as utf-16 .*encoding: latin-1"),
    "no header": (b"1,2.5\n2,3\n", {}, r"the first line holds numbers and no names .*`data: {columns: \[...\]}`"),
    "empty": (b"", {}, r"has no header: .*`data: {columns: \[...\]}`"),
    "twice": (b"id,id,x\n", {}, r"column 'id' occurs 2 times in the header"),
    "columns without": (b"1,2\n", {"columns": ("id", "y")}, r"column 'x' is missing"),
}


@pytest.mark.parametrize("case", CURES)
def test_mistake_names_its_cure(read, case):
    content, form, expected = CURES[case]
    with pytest.raises(DataError, match=expected):
        read(content, **form)


def test_undecodable_row_names_the_encoding(read):
    rows, first = read(b"id,x\n\xff,1\n2,b\n")
    assert rows["id"] == ["2"]
    assert "data.csv:2: bytes that are not UTF-8 in column 'id'; if the whole file is" in first[0]


def test_row_with_a_nul_is_bad(read):
    rows, (first,) = read(b"id,x\n1,a\n2,\0\n3,c\n")
    assert rows["id"] == ["1", "3"]
    assert "data.csv:3: malformed CSV: line contains NUL" in first


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": "\n"}, "delimiter"),
        ({"delimiter": r"\t"}, "double quotes"),
        ({"quote": "''"}, "one character"),
        ({"quote": ";", "delimiter": ";"}, "must not be in `delimiter`"),
        ({"decimal": ","}, "as `delimiter` is"),
        ({"encoding": "latin-11"}, "not an encoding that Python knows"),
        ({"encoding": "base64"}, "not an encoding that Python knows"),
        ({"columns": ()}, "name every column"),
        ({"columns": ("a", "a")}, "'a' occurs twice"),
    ],
)
def test_format_that_cannot_be_is_refused(form, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        CsvFormat(**form)


def test_value_beyond_the_limit_of_the_csv_module_is_read(read):
    found, bad = read(f"id,x\n{'a' * 200_000},1\n")
    assert (len(found["id"][0]), found["x"], bad) == (200_000, ["1"], [])


def test_quote_that_is_not_closed_loses_rows_up_to_the_bound(read):
    found, bad = read('id,x\n"1,a\n' + "2,b\n" * 300_000)
    assert len(found["x"]) == 300_001 - bounds.CELL_CHARACTERS // 4 - 1
    assert "data.csv:2: malformed CSV: a value has more than 1,048,576 characters" in bad[0]


LINE, QUOTED = f"{'a' * 60_000},1\n", f'"{"a" * 90}\n{"a" * 90}",' * 300 + "1\n"


@pytest.mark.parametrize(
    ("before", "row", "line"),
    [("id,x\n1,a\n2,b\n", LINE, 4), ("id,x\n1,a\n2,b\n", QUOTED, 4), ("", f"id,x,{LINE}", 1)],
    ids=["line", "lines", "header"],
)
def test_row_beyond_the_bound_is_named_by_its_first_line(read, monkeypatch, before, row, line):
    monkeypatch.setattr(bounds, "ROW_BYTES", 20_000)
    with pytest.raises(DataError, match=rf"data\.csv:{line}: the row that begins here has more than 20,000 bytes"):
        read(f"{before}{row}3,c\n")
    assert values(read, "id,x\n" + "1,a\n" * 20_000)["x"] == ["a"] * 20_000


def test_more_columns_than_the_bound_are_an_error(read):
    names = ",".join(["id", "x", *(f"c{number}" for number in range(bounds.COLUMNS - 1))])
    with pytest.raises(DataError, match="has 16,385 columns, and 16,384 is the most"):
        read(f"{names}\n")


def test_long_rows_make_shorter_batches(write, monkeypatch):
    monkeypatch.setattr(bounds, "BATCH_BYTES", 20_000)
    path = str(write("id,x\n" + f"{'a' * 998},1\n" * 100, "data.csv"))
    batches = list(csv_batches(path, Settings(columns={"x": "token"}), BadRows()))
    assert sum(map(len, batches)) == 100
    assert 3 < len(batches) < 8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("SECRET-1,SECRET-2\na,b\n", "column 'id' is missing: choose from sha256:"),
        ("SECRET-1,2\na,3\n", "column 'id' is missing: choose from sha256:"),
        ("id,SECRET-1,SECRET-1\na,b,c\n", r"column 'sha256:.*' occurs 2 times in the header, first as columns 2 and 3"),
        ("SECRET-1;SECRET-2\na;b\n", "the header is one column, 'sha256:.*', with ';' in it"),
        (b"SECRET-\xff,id\na,b\n", r"bytes that are not UTF-8 \(sha256:"),
    ],
)
@pytest.mark.parametrize("passthrough", [False, True])
def test_a_line_of_tokens_in_place_of_a_header_is_hidden(write, content, words, passthrough):
    needed = {} if passthrough and "id" not in words else {"id": "token", "x": "token"}
    settings = Settings(columns=needed, passthrough=passthrough, private=True)
    path = str(write(content, "data.csv"))
    with pytest.raises(DataError, match=words) as error:
        list(csv_batches(path, settings, BadRows()))
    assert "SECRET" not in str(error.value)
    with pytest.raises(DataError, match="SECRET"):
        list(csv_batches(path, settings.replace(private=False), BadRows()))
