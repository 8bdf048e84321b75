"""Tests histories of random events against a slow, direct implementation of their definition."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from components.example_gen.histories import event_tables, joined, rows_with_histories
from components.example_gen.prepared_rows import read_rows
from components.example_gen.readers import typed_batch
from components.example_gen.rows import BadRows, normal
from components.example_gen.settings import Settings
from components.example_gen.splits import SPLITS, EqualRows, assign_splits, keys_of
from components.example_gen.tally import Tally
from embedding_core.errors import DataError

pytestmark = pytest.mark.light

COLUMNS = dict.fromkeys(("item", "kind", "history", "kinds"), "token")
HISTORIES = {"user": "user", "time": "time", "columns": {"history": "item", "kinds": "kind"}, "max_length": 4}
LAST = {"by": "leave_one_out"}
CUT = "2001-09-09T01:47:00"  # Unix time 1,000,000,020, within the events
RULES = {
    "last": LAST,
    "second last": {**LAST, "held_out": "second_last"},
    "gap": {**LAST, "gap": 1},
    "column": {"by": "column", "column": "part", "train": ["train"], "eval": ["test"]},
    "time": {"by": "time", "column": "time", "before": CUT},
}


def drawn(rows=600, users=40, times=40, seed=0):
    """Draw events. Each has a unique item, which identifies the event; some have no kind."""
    draw = random.Random(seed)
    return [
        {
            "user": f"u{int(users * draw.random() ** 2)}",
            "item": f"i{number}",
            "kind": draw.choice(["a", "b", "c", ""]),
            "time": str(10**9 + draw.randrange(times)),
            "clicked": str(draw.randrange(2)),
            "part": draw.choice(["train", "train", "valid", "test"]),
        }
        for number in range(rows)
    ]


def written(folder, events, files=1):
    """Write the events to files, in order; return their paths."""
    folder.mkdir(parents=True)
    each = -(-len(events) // files)
    for number, rows in enumerate(itertools.zip_longest(*[iter(events)] * each)):
        lines = [",".join(event.values()) for event in rows if event]
        (folder / f"{number}.csv").write_text("\n".join([",".join(events[0]), *lines]) + "\n")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def made(tmp_path):
    """Return a function that makes rows from files, and returns their splits and histories by item, and the counts."""

    def make(files, **changes):
        given = {"columns": COLUMNS, "histories": HISTORIES, "split": LAST, **changes}
        settings, tally = Settings.from_mapping(given), Tally()
        tally.filtered = [0] * len(settings.conditions)
        tables = list(
            event_tables(read_rows(files, files[0].rpartition(".")[2], settings, tally), settings.histories, 0, tally)
        )
        found = {}
        for columns, sides in rows_with_histories(joined(tables), settings, settings.histories, 0, tally):
            tally.add_rows(columns, sides)
            values = zip(*(columns[name].to_pylist() for name in columns), strict=True)
            for row, side in zip(values, sides.tolist(), strict=True):
                event = dict(zip(columns, row, strict=True))
                texts = {name: [text.decode() for text in event[name]] for name in settings.made}
                found[(event["item"] or b"").decode()] = {"side": SPLITS[side], **texts}
        return found, tally

    return make


def side_of(event, mine, split):
    """Return the split of an event by definition; `mine` holds the events of its user in order of time."""
    if split["by"] == "column":
        return next((side for side in SPLITS if event["part"] in split[side]), None)
    if split["by"] == "time":
        return "train" if int(event["time"]) < 10**9 + 20 else "eval"
    after, held_out = len(mine) - 1 - mine.index(event), int(split.get("held_out") == "second_last")
    if after == held_out:
        return "eval"
    return "train" if after > held_out + split.get("gap", 0) else None


def expected(events, split, *, remember=lambda event: True, max_length=4):
    """Return the rows by item from the definition; events of the same time keep their order in the data."""
    found = {}
    for user in {event["user"] for event in events}:
        mine = sorted((other for other in events if other["user"] == user), key=lambda other: int(other["time"]))
        sides = [side_of(event, mine, split) for event in mine]
        for position, (event, side) in enumerate(zip(mine, sides, strict=True)):
            before = [
                other
                for other, its_side in zip(mine[:position], sides, strict=False)
                if other["kind"] and remember(other) and (side == "eval" or its_side == "train")
            ][-max_length:]
            histories = {"history": [other["item"] for other in before], "kinds": [other["kind"] for other in before]}
            if side is not None:
                found[event["item"]] = {"side": side, **histories}
    return found


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("files", [1, 3])
def test_histories_are_those_of_the_definition(made, tmp_path, name, files):
    events, split = drawn(seed=files), RULES[name]
    histories = {**HISTORIES, "ties": "in_order"}
    found, tally = made(written(tmp_path / "data", events, files), histories=histories, split=split)
    assert found == expected(events, split)
    assert tally.read == len(events)
    assert tally.outside == len(events) - len(found)
    assert tally.unlisted == sum(not event["kind"] for event in events)
    assert tally.waiting == 0


@pytest.mark.parametrize("name", ["last", "time"])
def test_history_holds_the_latest_events_before_its_time(made, tmp_path, name):
    events = drawn(times=12)
    by_item = {event["item"]: event for event in events}
    found, _ = made(written(tmp_path / "data", events), split=RULES[name])
    for item, row in found.items():
        mine = by_item[item]
        may_see = [
            int(other["time"])
            for other in events
            if other["user"] == mine["user"]
            and other["kind"]
            and int(other["time"]) < int(mine["time"])
            and (row["side"] == "eval" or found[other["item"]]["side"] == "train")
        ]
        assert [int(by_item[seen]["time"]) for seen in row["history"]] == sorted(may_see)[-4:]
        assert all(by_item[seen]["user"] == mine["user"] for seen in row["history"])


def test_events_of_one_time_do_not_depend_on_order_or_files(made, tmp_path):
    events = drawn(times=5)
    found, _ = made(written(tmp_path / "one", events))
    random.Random(1).shuffle(events)
    again, _ = made(written(tmp_path / "two", events, files=4))
    assert again == found


def test_filters_memory_and_least_length_apply_in_this_order(made, tmp_path):
    events = drawn()
    histories = {**HISTORIES, "ties": "in_order", "min_length": 2, "remember": [{"column": "clicked", "equals": 1}]}
    filters = [{"column": "part", "not_equals": "valid"}]
    found, tally = made(written(tmp_path / "data", events), histories=histories, row_filters=filters)
    left = [event for event in events if event["part"] != "valid"]
    every = expected(left, LAST, remember=lambda event: event["clicked"] == "1")
    assert found == {item: row for item, row in every.items() if len(row["history"]) >= 2}
    assert tally.short == len(every) - len(found)
    assert tally.filtered == [len(events) - len(left)]
    assert tally.read == len(events)


def sides_of_keys(*columns):
    """Return for each column of keys the splits of its rows, as text, and the bad rows."""
    split = {"by": "hash", "key": "key", "eval_fraction": 0.5}
    settings = Settings.from_mapping({"columns": {"row": "token"}, "split": split})
    bad, sides = BadRows(), []
    for keys in columns:
        rows = pa.record_batch([keys, pa.array(range(len(keys)))], ["key", "row"])
        batch = typed_batch("file, row", rows, settings, 1)
        sides.append("".join(map(str, assign_splits(batch, settings, bad, EqualRows())[1].tolist())))
    return sides, bad


NUMBERS = list(range(-4, 28))
DAYS = [datetime.datetime(2024, 1, 1) + datetime.timedelta(days=day) for day in range(32)]


@pytest.mark.parametrize(
    ("keys", "sides"),
    [
        (pa.array(NUMBERS), "01111100011111101101100110000101"),
        (pa.array(NUMBERS, pa.int8()), "01111100011111101101100110000101"),
        (pa.array([f"u{row}" for row in range(32)]), "10000100001010101110101101000101"),
        (pa.array([bytes([200 + row, 65]) for row in range(32)]), "01111110001100101011100101001101"),
        (pa.array([row / 7 for row in (1, 2, 3, 4, 5, 6, 8, 9, 10)]), "011100011"),
        (pa.array([day.date() for day in DAYS]), "11110011001000000000101011000101"),
        (pa.array([day.replace(minute=1) for day in DAYS]), "10000100010001001001110111111010"),
    ],
)
def test_hash_of_a_key_stays_as_in_release_0_1(keys, sides):
    assert sides_of_keys(keys)[0] == [sides]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(map(float, NUMBERS)),
        pa.array(map(float, NUMBERS), pa.float32()),
        pa.array(NUMBERS, pa.int16()).dictionary_encode(),
        pa.array(map(decimal.Decimal, NUMBERS), pa.decimal128(10, 2)),
        pa.array(map(decimal.Decimal, NUMBERS), pa.decimal128(10, 0)),
        pa.array(map(str, NUMBERS)),
        pa.array(map(str, NUMBERS), pa.large_string()).dictionary_encode(),
        pa.array([f"{number}.0" for number in NUMBERS]),
        pa.array([[number] for number in NUMBERS], pa.list_(pa.float64())),
    ],
    ids=lambda keys: str(keys.type),
)
def test_whole_number_is_one_key_in_any_type(keys):
    first, second = sides_of_keys(pa.array(NUMBERS), keys)[0]
    assert first == second


@pytest.mark.parametrize(
    ("left", "other"),
    [
        (pa.array([0.1, 1e-7, 0.5, 2.5]), pa.array([0.1, 1e-7, 0.5, 2.5], pa.float32())),
        (pa.array([day.date() for day in DAYS]), pa.array(DAYS, pa.timestamp("ns"))),
        (pa.array([day.date() for day in DAYS]), pa.array([str(day.date()) for day in DAYS])),
        (pa.array(DAYS, pa.timestamp("ms")), pa.array(DAYS, pa.timestamp("us", "UTC"))),
        (pa.array([0, 0]), pa.array([0.0, -0.0])),
    ],
)
def test_fraction_or_date_is_one_key_in_any_type(left, other):
    first, second = (keys_of(normal(keys))[0] for keys in (left, other))
    assert first == second


def test_text_of_a_number_is_its_key():
    assert keys_of(pa.array(["+3.0", "-3.0", "-0.0", "+0.0"])) == keys_of(pa.array([3.0, -3.0, -0.0, 0.0]))
    assert keys_of(pa.array(["+-3.0", "+3"]))[0].to_pylist() == [b"+-3.0", b"+3"]  # not written as floats are
    with_comma = keys_of(pa.array(["3,0", "3.0", "3", "3,50", None, ""]), ",")[0]
    assert with_comma.to_pylist() == [b"3", b"3", b"3", b"3,50", None, None]


def test_missing_key_is_split_by_its_row():
    keys = pa.array(["a", None, "", None, ""] * 8)
    (sides,), bad = sides_of_keys(keys)
    assert bad.count == 0
    assert len(set(sides[0::5])) == 1
    assert set(sides[1::5]) == set(sides[2::5]) == {"0", "1"}


@pytest.mark.parametrize(("kind", "limit"), [(pa.float64(), 2.0**53), (pa.float32(), 2.0**24)])
def test_key_that_a_float_cannot_tell_apart_is_a_bad_row(kind, limit):
    for number in (limit, -limit, 4 * limit, float("inf")):
        (sides,), bad = sides_of_keys(pa.array([1.5, number, limit - 1, 2.5], kind))
        assert len(sides) == 3
        assert "file, row 2: column 'key', the key of the split: a whole number that a float" in bad.first[0]
    assert sides_of_keys(pa.array([limit - 1], kind))[0] == sides_of_keys(pa.array([int(limit) - 1]))[0]


@pytest.mark.parametrize("other", [pa.float64(), pa.float32(), pa.string(), "3.0"])
def test_user_has_one_history_in_any_type(made, tmp_path, other):
    users = [7, 10**7 if other == pa.float32() else 10**12]
    later = pa.array([f"{user}.0" for user in users]) if other == "3.0" else pa.array(users).cast(other)
    for at, keys in enumerate((pa.array(users), later)):
        items = [f"{at}{user}" for user in users]
        table = pa.table({"user": keys, "time": [at, at], "item": items, "kind": items})
        parquet.write_table(table, tmp_path / f"{at}.parquet")
    found, tally = made(sorted(str(path) for path in tmp_path.iterdir()))
    assert tally.bad.count == 0
    assert [found[f"1{user}"]["history"] for user in users] == [[f"0{user}"] for user in users]


def test_lists_of_one_value_are_values_and_longer_ones_bad_rows(made, tmp_path):
    items = [["i0"], ["i1"], ["i2", "x"], [], ["i4"]]
    columns = {"user": ["u"] * 5, "time": range(5), "item": items, "kind": ["a"] * 5}
    parquet.write_table(pa.table(columns), str(tmp_path / "events.parquet"))
    histories = {**HISTORIES, "columns": {"history": "item"}}
    columns = dict.fromkeys(("item", "history"), "token")
    found, tally = made([str(tmp_path / "events.parquet")], histories=histories, columns=columns)
    assert found["i4"] == {"side": "eval", "history": ["i0", "i1"]}
    assert tally.bad.count == 1
    assert "column 'item' holds 2 values" in tally.bad.first[0]
    assert tally.unlisted == 1


@pytest.mark.parametrize(
    "times",
    [
        ["-3", "1", "20"],
        ["0.5", "1.25", "9"],
        ["1.5e9", "1600000000", "1600000000.5"],
        ["99999999", "100000000", "4100000001"],
        ["1700000000000000001", "1700000000000000002", "1700000000000000003"],
        ["9007199254740992", "9007199254740993", "1e17"],
        ["2024-01-01", "2024-01-01T00:00:01", "2024-01-01T02:00:00+01:00"],
        ["1700000001", "1700000002000", "1700000003000000"],
        ["1700000001000000000", "1700000002.5", "2023-11-14T22:13:23.0Z"],
    ],
)
def test_times_may_be_numbers_or_dates(made, tmp_path, times):
    event = {**drawn(rows=1)[0], "kind": "a"}
    events = [{**event, "item": f"i{at}", "time": time} for at, time in enumerate(times)]
    found, _ = made(written(tmp_path / "data", [events[2], events[0], events[1]], files=2))
    assert [found[f"i{at}"]["history"] for at in range(3)] == [[], ["i0"], ["i0", "i1"]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"time": ""}, "column 'time' (`data.histories.time`): it is empty"),
        ({"time": "soon"}, "column 'time' (`data.histories.time`): 'soon' is neither an ISO date or time nor"),
        ({"time": "inf"}, "column 'time' (`data.histories.time`): 'inf' is not a finite number"),
        ({"time": "1e30"}, "column 'time' (`data.histories.time`): '1e30' is not a finite number within 64 bits"),
        ({"user": ""}, "column 'user' (`data.histories.user`): it is empty"),
    ],
)
def test_rows_without_user_or_time_are_bad(made, tmp_path, changes, reason):
    events = drawn(rows=50, users=4)
    files = written(tmp_path / "data", [*events, {**events[0], **changes}])
    found, tally = made(files)
    assert reason in tally.bad.first[0]
    assert tally.bad.first[0].startswith(f"{files[0]}:52")
    assert tally.bad.count == 1
    assert tally.read == 51
    assert made(written(tmp_path / "good", events))[0] == found


def test_moments_of_typed_files_are_in_one_order(made, tmp_path):
    for at, time in enumerate(
        (
            pa.array([1_700_000_003_000_000_000]).cast(pa.timestamp("ns")),
            pa.array([1_700_000_002_500]),
            pa.array([1_700_000_002.25]),
            pa.array([1_700_000_002]),
            pa.array([datetime.date(2023, 11, 14)]),
        )
    ):
        table = pa.table({"user": ["u"], "time": time, "item": [f"i{at}"], "kind": ["a"]})
        parquet.write_table(table, tmp_path / f"{at}.parquet")
    found, tally = made(sorted(str(path) for path in tmp_path.iterdir()))
    assert found["i0"]["history"] == ["i4", "i3", "i2", "i1"]
    settings = Settings.from_mapping({"columns": COLUMNS, "histories": HISTORIES, "split": LAST})
    assert not [problem for problem in tally.problems(settings, "data") if "'time'" in str(problem)]


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (["7", "2024-01-01"], r"in .*0.csv:2, a date in .*0.csv:3: write all"),
        (["1700000000", "1700000000000", "0"], r"in .*0.csv:4, a Unix time in seconds in .*:2, a Unix time in mill"),
    ],
)
def test_numbers_and_moments_in_one_column_are_an_error(made, tmp_path, times, text):
    events = [{**drawn(rows=1)[0], "item": time, "time": time} for time in times]
    _, tally = made(written(tmp_path / "data", events))
    settings = Settings.from_mapping({"columns": COLUMNS, "histories": HISTORIES, "split": LAST})
    words = rf"column 'time', .* is a number that is not a Unix time of 1973 to 2100 {text}"
    with pytest.raises(DataError, match=words):
        tally.check(settings, "data")


def test_data_that_has_a_column_of_the_new_name_is_an_error(made, tmp_path):
    files = written(tmp_path / "data", [{**event, "kinds": "x"} for event in drawn(rows=20)])
    with pytest.raises(DataError, match=r"there is a column 'kinds', and `data.histories.columns` makes one"):
        made(files)
