import datetime
import decimal
import gzip
import os
import pickle
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from components.artifact_files import _checksum
from components.column_summary import COLUMNS_FACT, summaries_from_json
from components.example_gen.readers import parquet_batches
from components.example_gen.rows import BadRows
from components.example_gen.settings import Settings
from components.example_gen.tfrecord_rows import tfrecord_batches
from embedding_core.errors import DataError
from embedding_core.storage import bounds

pytestmark = pytest.mark.tfx


class RunsCode:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


SIDES = {"by": "column", "column": "side"}


@pytest.fixture
def write_parquet(tmp_path):
    def put(name="data.parquet", **columns):
        parquet.write_table(pa.table(columns), tmp_path / name)

    return put


def test_parquet_column_of_pickled_objects_runs_no_code(ingest, tmp_path):
    marker = tmp_path / "ran"
    hidden = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(RunsCode(marker)),
    }
    fields = [pa.field("x", pa.int64(), metadata=hidden), pa.field("side", pa.string())]
    parquet.write_table(
        pa.table([pa.array([1, 2]), pa.array(["train", "eval"])], schema=pa.schema(fields)), tmp_path / "data.parquet"
    )
    with pytest.raises(DataError, match=r"data.parquet has a column of pickled Python objects"):
        ingest(data_format="parquet", columns={"x": "token"}, split=SIDES)
    assert not marker.exists()


@pytest.fixture
def write_records(tmp_path):
    """Write tf.Examples (dicts of lists) or raw bytes as one TFRecord file."""
    from tests.support.tf_examples import write_rows

    def put(rows, name="data.tfrecord.gz"):
        write_rows(tmp_path / name, rows, "GZIP" if name.endswith("gz") else "")
        return tmp_path / name

    return put


def test_parquet_types(ingest, write_parquet):
    day = datetime.datetime(2011, 11, 1, 8, 26)
    write_parquet(
        side=pa.array(["train", "eval"]).dictionary_encode(),
        text=["a", None],
        whole=pa.array([1 << 40, None]),
        real=[17850.0, float("nan")],
        flag=[True, None],
        words=[["x", None, "y"], []],
        moment=[day, None],
        day=[day.date(), None],
        price=[decimal.Decimal("1.50"), None],
        dense=pa.array([7, None]),
    )
    names = ["side", "text", "whole", "real", "flag", "words", "moment", "day", "price"]
    columns = {**dict.fromkeys(names, "token"), "dense": "float"}
    output = ingest(data_format="parquet", columns=columns, split=SIDES)
    assert output.rows("train") == [
        {
            "side": [b"train"],
            "text": [b"a"],
            "whole": [1 << 40],
            "real": [17850.0],
            "flag": [1],
            "words": [b"x", b"y"],
            "moment": [b"2011-11-01 08:26:00"],
            "day": [b"2011-11-01"],
            "price": [1.5],
            "dense": [7.0],
        }
    ]
    assert output.rows("eval") == [{"side": [b"eval"]}]


def test_parquet_filters_and_splits_by_type(ingest, write_parquet):
    days = [datetime.datetime(2011, 10, 31), datetime.datetime(2011, 11, 1), None]
    write_parquet(t=days[:2] * 2, id=[1, 2, 3, 4], x=[0.5, 1.5, 2.5, 3.5])
    filters = [{"column": "id", "in": [1, 2, "3"]}, {"column": "x", "max": 2.5}]
    split = {"by": "time", "column": "t", "before": "2011-11-01"}
    output = ingest(data_format="parquet", columns={"id": "token"}, row_filters=filters, split=split)
    assert sorted(row["id"] for row in output.rows("train")) == [[1], [3]]
    assert output.rows("eval") == [{"id": [2]}]


def test_least_int64_of_parquet_is_counted_as_missing(ingest, write_parquet):
    least = -(2**63)
    write_parquet(id=[least, least + 1, 3], ids=[[least], [1, least, 2], [3]], side=["train", "train", "eval"])
    output = ingest(data_format="parquet", columns={"id": "token", "ids": "token"}, split=SIDES)
    assert output.values("id") == [None, [least + 1], [3]]
    _, summaries = summaries_from_json(output.artifact.get_string_custom_property(COLUMNS_FACT))
    assert (summaries["train"]["id"].rows, summaries["train"]["ids"].values) == (1, 2)


def test_column_of_two_types_is_refused(ingest, write_parquet):
    write_parquet("1.parquet", id=[1, 2], side=["train", "eval"])
    write_parquet("2.parquet", id=["1", "2"], side=["train", "eval"])
    with pytest.raises(DataError, match=r"column 'id' is int64 in .*1.parquet, row 1 and bytes in .*2.parquet, row 1"):
        ingest(data_format="parquet", columns={"id": "token"}, split=SIDES)


def test_token_column_of_dates_and_times_is_refused(ingest, write_parquet):
    day = datetime.datetime(2011, 11, 1)
    write_parquet("1.parquet", t=pa.array([day] * 2, pa.timestamp("ms")), side=["train", "eval"])
    write_parquet("2.parquet", t=pa.array([day, None], pa.timestamp("ns")), side=["train", "eval"])
    output = ingest(data_format="parquet", columns={"t": "token"}, split=SIDES)
    assert output.values("t").count([b"2011-11-01 00:00:00"]) == 3
    write_parquet("3.parquet", t=[None, day.date()], side=["train", "eval"])
    words = r"column 't' holds dates in .*3.parquet, row 2 and times in .*1.parquet, row 1: .*; store it as one type"
    with pytest.raises(DataError, match=words):
        ingest(data_format="parquet", columns={"t": "token"}, split=SIDES)
    ingest(data_format="parquet", columns={"t": "float"}, split=SIDES)


TINY = [0.0, -0.0, 1.2e-38, 1e-40]


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (["a", "b"], "float", "row 1: column 'x' holds text, and the configuration reads it as float"),
        ([{"a": 1}, {"a": 2}], "token", "row 1: column 'x' is of type struct"),
        ([[[1]], [[2]]], "token", "row 1: column 'x' is of type list"),
        (np.array([1, 2**63], np.uint64), "token", r"type uint64, with a value that int64 cannot hold .*ids as text"),
        (pa.array([0, 2**63 - 1], pa.timestamp("us")), "token", "'x' is of type timestamp.* the years 1 to 9999"),
        (pa.array([0, 2**31 - 1], pa.date32()), "token", "'x' is of type date32.* the years 1 to 9999"),
        ([1.0, 16777217.0], "token", r"data.parquet, row 2: a value of token column 'x' needs a float64"),
        (pa.array(TINY, pa.float32()), "token", r"row 4: a value of token column 'x' .* below 1\.2e-38 as 0: store"),
        (pa.array(TINY, pa.float64()), "token", r"row 4: a value of token column 'x' .* below 1\.2e-38 as 0: store"),
    ],
)
def test_parquet_value_that_does_not_fit_is_refused(ingest, write_parquet, column, kind, expected):
    write_parquet(x=column, side=["train", "eval"] * (len(column) // 2))
    with pytest.raises(DataError, match=expected):
        ingest(data_format="parquet", columns={"x": kind}, split=SIDES)


def test_tiny_numbers_of_parquet_may_be_floats(ingest, write_parquet):
    write_parquet(x=TINY, side=["train", "eval"] * 2)
    assert ingest(data_format="parquet", columns={"x": "float"}, split=SIDES).facts["rows_kept"] == 4


@pytest.mark.parametrize("content", [b"", b"PAR1", b"id,side\n1,train\n"])
def test_file_that_is_no_parquet_is_named(ingest, write, content):
    write(content, "data.parquet")
    with pytest.raises(DataError, match=r"data.parquet is not a Parquet file, or is damaged"):
        ingest(data_format="parquet", columns={"id": "token"}, split=SIDES)


@pytest.mark.parametrize("name", ["data.tfrecord", "data.tfrecord.gz"])
def test_records_keep_their_kinds(ingest, write_records, name):
    rows = [{"id": [b"a", b"b"], "n": [-5], "x": [0.5], "side": [side]} for side in (b"train", b"eval")]
    write_records([*rows, {"side": [b"eval"]}], name)
    output = ingest(data_format="tfrecord", columns=dict.fromkeys(("id", "n"), "token") | {"x": "float"}, split=SIDES)
    assert output.rows("train") == [{"id": [b"a", b"b"], "n": [-5], "x": [0.5]}]
    assert {} in output.rows("eval")


def test_passthrough_keeps_all_columns(ingest, write_records, write):
    rows = [{"side": [side], "other": [1, 2]} for side in (b"train", b"eval")]
    write_records(rows)
    output = ingest(data_format="tfrecord", columns={}, passthrough=True, split=SIDES)
    assert output.rows("train") == rows[:1]
    write("side,other\ntrain,1\neval,2\n")
    assert ingest(columns={}, passthrough=True, split=SIDES).rows("train") == [{"side": [b"train"], "other": [b"1"]}]


def test_split_of_records_is_independent_of_feature_order(ingest, write_records, tmp_path):
    rows = [{"a": [i], "b": [b"%d" % i], "c": [i / 2]} for i in range(200)]
    evals = []
    for name, order in (("x", "abc"), ("y", "cba")):
        (tmp_path / name).mkdir()
        write_records([{key: row[key] for key in order} for row in rows], f"{name}/data.tfrecord.gz")
        output = ingest(tmp_path / name, out=tmp_path / f"out{name}", data_format="tfrecord", columns={"a": "token"})
        evals.append({row["a"][0] for row in output.rows("eval")})
    assert evals[0] == evals[1]


def test_records_that_are_no_examples_are_named(ingest, write_records):
    path = write_records([{"side": [b"train"]}, b"abc", {"side": [b"eval"]}])
    with pytest.raises(DataError, match=f"1 of 3 rows.* The first: {path}, record 2: is not a tf.Example"):
        ingest(data_format="tfrecord", columns={"side": "token"}, split=SIDES)
    output = ingest(data_format="tfrecord", columns={"side": "token"}, split=SIDES, allowed_bad_rate=0.4)
    assert output.facts["set_aside"]["rows"] == 1


def test_feature_of_two_kinds_is_refused(ingest, write_records):
    write_records([{"side": [b"train"], "id": [1]}, {"side": [b"eval"], "id": [b"1"]}])
    with pytest.raises(DataError, match=r'a feature is of different kinds .*feature "id"'):
        ingest(data_format="tfrecord", columns={"id": "token"}, split=SIDES)


def test_record_length_that_looks_like_gzip_is_read(ingest, write_records):
    rows = [{"side": [side], "id": [b"x" * size]} for side, size in ((b"train", 35572), (b"eval", 1))]
    assert write_records(rows, "data.tfrecord").read_bytes().startswith(b"\x1f\x8b\0")
    assert ingest(data_format="tfrecord", columns={"id": "token"}, split=SIDES).facts["rows_kept"] == 2


def test_feature_that_is_in_no_record_is_refused(ingest, write_records):
    write_records([{"side": [b"train"], "Id": [1]}, {"side": [b"eval"]}])
    with pytest.raises(DataError, match="no row has a column 'id': did you mean 'Id'"):
        ingest(data_format="tfrecord", columns={"id": "token"}, split=SIDES)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:-6], "is cut off within record 2"),
        (lambda data: data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :], "is damaged at record 2"),
        (lambda data: b"id,side\n1,train\n2,eval\n", "is not a TFRecord file, or is damaged at record 1"),
    ],
)
def test_damaged_record_file_is_named(ingest, write_records, damage, expected, packed):
    path = write_records([{"side": [b"train"]}, {"side": [b"eval"], "id": [b"x" * 99]}], "data.tfrecord")
    data = damage(path.read_bytes())
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=f"data.tfrecord {expected}"):
        ingest(data_format="tfrecord", columns={"side": "token"}, split=SIDES)


def test_gzip_cut_off_between_records_is_named(ingest, write_records):
    path = write_records([{"side": [b"train"]}, {"side": [b"eval"]}], "data.tfrecord")
    whole = zlib.compressobj(wbits=31)
    path.write_bytes(whole.compress(path.read_bytes()) + whole.flush(zlib.Z_SYNC_FLUSH))
    with pytest.raises(DataError, match=r"data.tfrecord is truncated or damaged"):
        ingest(data_format="tfrecord", columns={"side": "token"}, split=SIDES)


def test_record_beyond_the_bound_is_named(ingest, write_records):
    path = write_records([{"side": [b"train"]}], "data.tfrecord")
    content, length = path.read_bytes(), struct.pack("<Q", 2**40)
    path.write_bytes(content + length + _checksum(length) + b"rest")
    with pytest.raises(DataError, match=r"record 2: it has 1,099,511,627,776 bytes, and 67,108,864 is the most"):
        ingest(data_format="tfrecord", columns={"side": "token"}, split=SIDES)


def test_large_records_make_shorter_batches(write_records, monkeypatch):
    monkeypatch.setattr(bounds, "BATCH_BYTES", 1_000)
    path = str(write_records([{"side": [b"x" * 300]}] * 20))
    batches = list(tfrecord_batches(path, Settings(columns={"side": "token"}), BadRows()))
    assert [len(batch) for batch in batches] == [4] * 5


def test_bounds_hold_for_parquet(ingest, write_parquet, tmp_path, monkeypatch):
    write_parquet(a=[f"{row:0300}" for row in range(100)], b=["y"] * 100, side=["train"] * 100)
    monkeypatch.setattr(bounds, "BATCH_BYTES", 10_000)
    batches = list(parquet_batches(str(tmp_path / "data.parquet"), Settings(columns={"a": "token"})))
    assert sum(map(len, batches)) == 100
    assert 3 <= len(batches) <= 5
    monkeypatch.setattr(bounds, "COLUMNS", 2)
    with pytest.raises(DataError, match=r"data.parquet has 3 columns, and 2 is the most"):
        ingest(data_format="parquet", columns={"a": "token"}, split=SIDES)
