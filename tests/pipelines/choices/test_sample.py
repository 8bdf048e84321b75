import csv
import gzip
import os

import pyarrow as pa
import pytest
from pyarrow import parquet

from embedding_core.errors import DataError
from pipelines.choices.sample import sample_rows
from pipelines.config import config_from_mapping
from pipelines.pipeline.component_inputs import example_settings

pytestmark = pytest.mark.light

ROWS = 3000


def sampled(folder, rows, say=print, **config):
    given = {"label": "bought", "features": {"categorical": ["item"]}, "name": "my", **config}
    checked = config_from_mapping(given, folder)
    return checked, sample_rows(checked, example_settings(checked), rows, str(folder / "rows"), say)


@pytest.fixture
def rows_file(tmp_path):
    """Write rows in a dialect: no header, semicolons, latin-1, gzip, "?" for a missing value."""
    with gzip.open(tmp_path / "rows.csv.gz", "wt", encoding="latin-1", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        for row in range(ROWS):
            writer.writerow([row, "?" if row % 10 == 0 else f"caf\xe9;{row}", "x", row % 2])
    dialect = {"columns": ["id", "item", "unused", "bought"], "delimiter": ";", "encoding": "latin-1", "missing": ["?"]}
    return {"path": str(tmp_path / "rows.csv.gz"), **dialect}


def test_rows_of_a_dialect_are_read_as_before(tmp_path, rows_file):
    checked, sample = sampled(tmp_path, 500, data=rows_file)
    assert (sample.rows, sample.of, sample.whole) == (500, ROWS, False)
    small = config_from_mapping({**checked.to_mapping(), "data": sample.data.to_mapping()}, tmp_path)
    with open(small.data.path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 500
    assert set(rows[0]) == {"item", "bought"}
    items = [int(row["item"].removeprefix("caf\xe9;")) for row in rows if row["item"]]
    assert items == sorted(items)  # the order of the data
    assert items[0] < 300
    assert items[-1] > 2700
    assert 20 < sum(row["item"] == "" for row in rows) < 90


def test_small_data_is_used_as_it_is(tmp_path, rows_file):
    checked, sample = sampled(tmp_path, ROWS, data=rows_file)
    assert sample.whole
    assert sample.data == checked.data
    with gzip.open(rows_file["path"], "at", encoding="latin-1") as file:
        file.write("1;new;x;1\n")
    _, other = sampled(tmp_path, ROWS + 1, data=rows_file)
    assert other.whole
    assert other.digest != sample.digest


def test_sample_is_drawn_once_until_the_data_changes(tmp_path, rows_file):
    _, first = sampled(tmp_path, 500, data=rows_file)
    _, again = sampled(tmp_path, 500, data=rows_file)
    assert again == first
    with gzip.open(rows_file["path"], "at", encoding="latin-1") as file:
        file.write("1;new;x;1\n")
    _, other = sampled(tmp_path, 500, data=rows_file)
    assert other.data.path != first.data.path
    assert other.of == ROWS + 1


@pytest.mark.parametrize(
    ("suffix", "damaged"),
    [("csv", lambda text: None), ("csv", lambda text: text[:-9]), ("json", lambda text: text[:9]),
     ("json", lambda text: "[]"), ("json", lambda text: text.replace("500", '"500"'))],
)  # fmt: skip
def test_damaged_sample_is_drawn_again_and_said(tmp_path, rows_file, suffix, damaged):
    _, first = sampled(tmp_path, 500, data=rows_file)
    (file,) = (tmp_path / "rows").glob(f"*.{suffix}")
    with open(first.data.path, encoding="utf-8") as read:
        rows = read.read()
    text = damaged(file.read_text())
    file.unlink() if text is None else file.write_text(text)
    said = []
    _, again = sampled(tmp_path, 500, said.append, data=rows_file)
    assert again == first
    with open(first.data.path, encoding="utf-8") as read:
        assert read.read() == rows
    (line,) = said
    assert "drawn again" in line


def test_files_without_times_are_read_again(tmp_path, rows_file):
    _, first = sampled(tmp_path, ROWS, data=rows_file)
    os.utime(rows_file["path"], ns=(0, 0))  # as of a storage that records no times
    said = []
    digests = {sampled(tmp_path, ROWS, said.append, data=rows_file)[1].digest for _ in range(2)}
    assert len(digests - {first.digest}) == 2
    assert len(said) == 2


def test_users_that_were_dropped_do_not_come_back_in_later_files(tmp_path):
    for part, rows in enumerate((1200, 20)):  # 20 users with 60 rows, and then one more of each
        users = [f"u{row % 20}" for row in range(rows)]
        table = pa.table({"user": users, "item": users, "bought": [row % 2 for row in range(rows)], "at": range(rows)})
        parquet.write_table(table, tmp_path / f"part-{part}.parquet")
    data = {"path": "part-*.parquet", "histories": {"user": "user", "time": "at", "columns": {"before": "item"}}}
    features = {"categorical": [{"name": "before", "multivalent": True, "vocabulary": "item"}, "item"]}
    _, sample = sampled(tmp_path, 200, data=data, features=features, split={"by": "leave_one_out"})
    counts = parquet.read_table(sample.data.path).column("user").value_counts().to_pylist()
    assert [one["counts"] for one in counts] == [61] * 3


def test_histories_keep_all_rows_of_a_user(tmp_path):
    users = [f"u{row % 200}" for row in range(ROWS)]
    table = pa.table({"user": users, "item": users, "bought": [row % 2 for row in range(ROWS)], "at": range(ROWS)})
    parquet.write_table(table, tmp_path / "rows.parquet")
    histories = {"user": "user", "time": "at", "columns": {"before": "item"}}
    data = {"path": "rows.parquet", "histories": histories}
    features = {"categorical": [{"name": "before", "multivalent": True, "vocabulary": "item"}, "item"]}
    _, sample = sampled(tmp_path, 600, data=data, features=features, split={"by": "leave_one_out"})
    kept = parquet.read_table(sample.data.path)
    counts = kept.column("user").value_counts().to_pylist()
    assert 400 < kept.num_rows <= 600
    assert {one["counts"] for one in counts} == {ROWS // 200}
    assert sample.data.histories is not None


def test_sample_has_all_rows_of_a_user_of_two_types(tmp_path):
    users = [row % 200 for row in range(ROWS)]
    for part, kind in enumerate((pa.int64(), pa.float64())):  # as pandas writes a column without and with gaps
        columns = {"user": pa.array(users).cast(kind), "item": list(map(str, users)), "bought": [part] * ROWS}
        parquet.write_table(pa.table({**columns, "at": range(ROWS)}), tmp_path / f"part-{part}.parquet")
    data = {"path": "part-*.parquet", "histories": {"user": "user", "time": "at", "columns": {"before": "item"}}}
    features = {"categorical": [{"name": "before", "multivalent": True, "vocabulary": "item"}, "item"]}
    _, sample = sampled(tmp_path, 600, data=data, features=features, split={"by": "leave_one_out"})
    counts = parquet.read_table(sample.data.path).column("user").value_counts().to_pylist()
    assert [one["counts"] for one in counts] == [2 * ROWS // 200] * len(counts)
    assert counts


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_number_may_be_of_another_type_in_each_file(tmp_path, kind):
    for part, one in enumerate((pa.int64(), kind)):
        columns = {"price": pa.array([0.5 * part] * 400).cast(one, safe=False), "item": ["a"] * 400}
        parquet.write_table(pa.table({**columns, "bought": [part] * 400}), tmp_path / f"part-{part}.parquet")
    features = {"dense": ["price"], "categorical": ["item"]}
    _, sample = sampled(tmp_path, 700, data={"path": "part-*.parquet"}, features=features)
    assert set(parquet.read_table(sample.data.path)["price"].to_pylist()) == {0.0, 0.5}


def test_token_of_two_types_is_one_error(tmp_path):
    for part, kind in enumerate((pa.int64(), pa.float64())):
        table = pa.table({"item": pa.array(range(400)).cast(kind), "bought": [part] * 400})
        parquet.write_table(table, tmp_path / f"part-{part}.parquet")
    with pytest.raises(DataError, match="column 'item' is double and int64 in different files: store it as one type"):
        sampled(tmp_path, 700, data={"path": "part-*.parquet"})
    _, sample = sampled(tmp_path, 700, data={"path": "part-*.parquet", "whole_numbers": ["item"]})
    assert parquet.read_table(sample.data.path).schema.field("item").type == pa.int64()


def test_lists_may_have_one_value_throughout_a_file(tmp_path):
    for part, items in enumerate((["a"], ["a", "b"])):
        table = pa.table({"item": [items] * 400, "bought": [part] * 400})
        parquet.write_table(table, tmp_path / f"part-{part}.parquet")
    features = {"categorical": [{"name": "item", "multivalent": True}]}
    _, sample = sampled(tmp_path, 700, data={"path": "part-*.parquet"}, features=features)
    lists = parquet.read_table(sample.data.path)["item"].to_pylist()
    assert {tuple(one) for one in lists} == {(b"a",), (b"a", b"b")}


def test_spans_become_one_file(tmp_path):
    for day in (1, 2):
        parquet.write_table(pa.table({"item": ["a"] * 400, "bought": [0, 1] * 200}), tmp_path / f"day-{day}.parquet")
    _, sample = sampled(tmp_path, 300, data={"path": "day-{SPAN}.parquet", "spans": {"first": 2}})
    assert (sample.rows, sample.of, sample.data.spans) == (300, 400, None)
