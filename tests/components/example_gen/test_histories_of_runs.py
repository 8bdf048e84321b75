"""Tests histories in ExampleGen's executor: any workers, files and formats give the same rows and true counts."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from components.example_gen import histories
from components.example_gen.rows import examples

pytestmark = pytest.mark.tfx

COLUMNS = {"item": "token", "price": "float", "history": "token"}
HISTORIES = {"user": "user", "time": "time", "columns": {"history": "item"}, "max_length": 3}
SETTINGS = {"columns": COLUMNS, "histories": HISTORIES, "split": {"by": "leave_one_out"}}
NAMES = ("user", "item", "time", "price")


@pytest.fixture(scope="module")
def events():
    """Return events of user, item, time and price, each at a different time."""
    draw = random.Random(0)
    times = draw.sample(range(1000), 300)
    return [(f"u{draw.randrange(12)}", 100 + row, time, row * 0.5) for row, time in enumerate(times)]


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(histories, "_PART_BYTES", 600)
    monkeypatch.setattr(histories, "_CHUNK_BYTES", 2000)


def csv_of(folder, events, files):
    folder.mkdir()
    for number in range(files):
        lines = [",".join(map(str, event)) for event in events[number::files]]
        (folder / f"{number}.csv").write_text("\n".join([",".join(NAMES), *lines]) + "\n")
    return folder


def rows_of(output):
    """Item, price, history and split of each row."""
    return sorted(
        (int(row["item"][0]), row["price"][0], [int(item) for item in row.get("history", ())], split)
        for split in ("train", "eval")
        for row in output.rows(split)
    )


def expected(events):
    """The rows by the definition: up to three earlier items of the user, and the user's last row for evaluation."""
    rows = []
    for user, item, time, price in events:
        mine = sorted((event[2], event[1]) for event in events if event[0] == user)
        history = [other for at, other in mine if at < time][-3:]
        rows.append((item, price, history, "eval" if (time, item) == mine[-1] else "train"))
    return sorted(rows)


def test_any_files_and_workers_give_the_same_rows(ingest, events, tmp_path, small_parts):
    first = ingest(csv_of(tmp_path / "one", events, 1), out=tmp_path / "o1", **SETTINGS)
    assert rows_of(first) == expected(events)
    assert len(first.files()) > 8  # the events fill several parts
    shuffled = random.Random(2).sample(events, len(events))
    many = csv_of(tmp_path / "many", shuffled, 4)
    two = ingest(many, out=tmp_path / "o2", mode="multi_threading", **SETTINGS)
    assert rows_of(two) == expected(events)
    (many / "1.csv").rename(many / "9.csv")
    assert ingest(many, out=tmp_path / "o3", **SETTINGS).files() == two.files()
    assert ingest(many, out=tmp_path / "o4", **SETTINGS, seed=1).files() != two.files()


def test_parquet_and_tfrecord_give_the_rows_of_csv(ingest, events, tmp_path, small_parts):
    import tensorflow as tf

    columns = dict(zip(NAMES, map(list, zip(*events, strict=True)), strict=True))
    (tmp_path / "data").mkdir()
    for start in (0, 150):
        part = {name: values[start : start + 150] for name, values in columns.items()}
        parquet.write_table(pa.table(part), str(tmp_path / f"data/{start}.parquet"))
        with tf.io.TFRecordWriter(str(tmp_path / f"data/{start}.tfrecord")) as writer:
            arrays = {name: pa.array(values) for name, values in part.items()}
            for row in examples({**arrays, "price": arrays["price"].cast(pa.float32())}):
                writer.write(row)
    for data_format in ("parquet", "tfrecord"):
        output = ingest(
            tmp_path / "data",
            data_format=data_format,
            pattern=f"*.{data_format}",
            out=tmp_path / data_format,
            **SETTINGS,
        )
        assert rows_of(output) == expected(events)
        assert output.facts["columns"]["history"]["kind"] == "int64"


def test_counts_of_all_rows_are_recorded(ingest, events, tmp_path):
    folder = csv_of(tmp_path / "data", [*events, ("", 1, 5, 0.0), ("u1", 2, "soon", 0.0), ("u2", "", 5000, 0.0)], 2)
    histories = {**HISTORIES, "min_length": 2}
    filters = [{"column": "price", "max": 140}]
    output = ingest(folder, **{**SETTINGS, "histories": histories, "row_filters": filters}, allowed_bad_rate=0.1)
    facts = output.facts
    every = expected([*(event for event in events if event[3] <= 140), ("u2", 0, 5000, 0.0)])
    kept = [row for row in every if len(row[2]) >= 2]
    assert facts["rows_read"] == len(events) + 3
    assert facts["filtered"][0]["rows"] == sum(event[3] > 140 for event in events)
    assert facts["set_aside"]["rows"] == 2
    assert facts["history_too_short"] == len(every) - len(kept)
    assert facts["in_no_history"] == 1
    assert facts["rows_kept"] == len(kept)
    assert facts["splits"] == {split: sum(row[3] == split for row in kept) for split in ("train", "eval")}
    assert facts["columns"]["history"]["present"] == facts["splits"]
    summary = json.loads(output.artifact.get_string_custom_property("column_summaries"))
    assert "history" in json.dumps(summary)
