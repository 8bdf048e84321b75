import collections
import csv
import gzip
import hashlib
import json

import pytest

from embedding_core.errors import DataError

pytestmark = pytest.mark.tfx
HALF = {"by": "hash", "eval_fraction": 0.5}
SIDES = {"by": "column", "column": "side", "train": ["train"], "eval": ["eval"]}


def test_seed_orders_the_rows_alike_each_time(ingest, write, tmp_path):
    write("id,side\n" + "".join(f"{row},{side}\n" for row in range(99) for side in ("train", "eval")))
    settings = {"pattern": "data.csv", "columns": {"id": "token"}, "split": SIDES}
    first, again = (ingest(out=tmp_path / name, mode="multi_threading", **settings).files() for name in "ab")
    assert first == again
    assert first != ingest(out=tmp_path / "c", seed=1, **settings).files()


def test_split_does_not_depend_on_files_order_or_columns_kept(ingest, write, tmp_path):
    rows = [(str(i), str(i % 7)) for i in range(400)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write("\n".join(map(",".join, [("id", "x"), *rows])), "one/a.csv")
    write(gzip.compress("\n".join(f"{x},{i}" for i, x in [("id", "x"), *rows[300:]]).encode()), "two/1.csv.gz")
    write("\n".join(map(",".join, [("id", "x"), *rows[:300]])), "two/2.csv")
    first = ingest(tmp_path / "one", out=tmp_path / "o1", columns={"id": "token"}, split=HALF)
    two = ingest(tmp_path / "two", out=tmp_path / "o2", columns={"id": "token", "x": "float"}, split=HALF)
    assert {row["id"][0] for row in first.rows("eval")} == {row["id"][0] for row in two.rows("eval")}
    assert first.facts["splits"]["eval"] == pytest.approx(200, abs=40)
    assert two.facts["rows_read"] == two.facts["rows_kept"] == 400


def test_equal_rows_are_divided_whatever_their_order(ingest, write, tmp_path):
    """Else one split would have all rows of a token with one label, and the model of the other one."""
    rows, counts = [f"i{n % 5},{n // 5 % 2}" for n in range(1000)], []
    for order in (rows, rows[::-1]):
        write("\n".join(["item,label", *order]))
        output = ingest(out=tmp_path / str(len(counts)), columns={"item": "token", "label": "float"}, split=HALF)
        counts.append(collections.Counter((row["item"][0], row["label"][0]) for row in output.rows("eval")))
    assert len(counts[0]) == 10
    assert all(25 < count < 75 for count in counts[0].values())
    assert counts[0] == counts[1]


def test_rows_of_one_key_stay_together(ingest, write):
    write("user,item\n" + "\n".join(f"{i % 20},{i}" for i in range(200)))
    output = ingest(columns={"user": "token"}, split={**HALF, "key": "user"})
    users = [{row["user"][0] for row in output.rows(split)} for split in ("train", "eval")]
    assert len(users[0] | users[1]) == 20
    assert not users[0] & users[1]


def test_text_stays_as_it_is(ingest, write):
    texts = ["0017", "17850.0", " x ", "caffè", "NA", "1e3", 'a,b\nc "d"']
    with open(write(""), "w", newline="") as file:
        csv.writer(file).writerows([("id", "side"), *((text, side) for text in texts for side in ("train", "eval"))])
    output = ingest(columns={"id": "token"}, split=SIDES)
    assert {row["id"][0].decode() for row in output.rows("train")} == set(texts)


def test_missing_values_are_no_feature(ingest, write):
    write("a,b,side\n,nan,train\nx,1.5,train\ny,2,eval\n")
    output = ingest(columns={"a": "token", "b": "float"}, split=SIDES)
    assert sorted(output.rows("train"), key=len) == [{}, {"a": [b"x"], "b": [1.5]}]
    assert output.facts["columns"]["a"] == {"kind": "bytes", "present": {"train": 1, "eval": 1}}


def test_filters_leave_out_and_count(ingest, write):
    write("id,x,side\nC1,5,train\n2,5,train\n3,-1,train\n4,7,eval\n,7,eval\n")
    filters = [{"column": "id", "present": True, "not_matches": "^C"}, {"column": "x", "min": 0, "max": 7}]
    output = ingest(columns={"id": "token"}, row_filters=filters, split=SIDES)
    assert output.values("id") == [[b"2"], [b"4"]]
    assert [entry["rows"] for entry in output.facts["filtered"]] == [1, 1, 1, 0]


@pytest.mark.parametrize("name", ["{}.csv", "{}.csv.gz"])
def test_progress_counts_the_bytes_of_all_files(ingest, write, tmp_path, monkeypatch, name):
    reports = []
    monkeypatch.setattr("components.progress.report", lambda *done, unit, **_: reports.append((*done, unit)))
    (tmp_path / "in").mkdir()
    text = "id\n" + "\n".join(hashlib.sha256(b"%d" % row).hexdigest() for row in range(40_000))
    for number in range(2):
        write(gzip.compress(text.encode()) if name.endswith("gz") else text, "in/" + name.format(number))
    sizes = [path.stat().st_size // 1000 for path in (tmp_path / "in").iterdir()]
    ingest(tmp_path / "in", out=tmp_path / "out", columns={"id": "token"}, split=HALF)
    done = [count for _, count, *_ in reports]
    assert done == sorted(done)
    assert 0 < done[0] < sizes[0]
    assert reports[-1] == ("ExampleGen", sum(sizes), sum(sizes), "KB")


def test_time_splits(ingest, write):
    write("t,id\n2011-10-31 23:59:59,a\n2011-11-01,b\n2011-11-01T00:00:00+02:00,c\n1320105600,d\n1320105599999,e\n")
    output = ingest(columns={"id": "token"}, split={"by": "time", "column": "t", "before": "2011-11-01"})
    assert sorted(row["id"][0] for row in output.rows("train")) == [b"a", b"c", b"e"]
    assert sorted(row["id"][0] for row in output.rows("eval")) == [b"b", b"d"]


def test_rows_in_neither_split_are_counted(ingest, write):
    write("id,side\na,train\nb,eval\nc,test\nd,\n")
    assert ingest(columns={"id": "token"}, split=SIDES).facts["in_neither_split"] == 2


def test_bad_rows_are_set_aside_up_to_the_allowed_rate(ingest, write):
    path = write(b'id,x,side\n1,2,train\n2\n"3"x,1,train\n\xff,1,eval\n5,abc,eval\n6,inf,eval\n7,1,eval\n')
    output = ingest(columns={"id": "token", "x": "float"}, split=SIDES, allowed_bad_rate=0.8)
    assert output.values("id") == [[b"1"], [b"7"]]
    assert output.facts["set_aside"]["rows"] == 5
    places = [reason.removeprefix(str(path)).split(": ")[0] for reason in output.facts["set_aside"]["first"]]
    assert sorted(places) == [":3", ":4", ":5", ":6", ":7"]


def test_more_bad_rows_than_allowed_are_one_error(ingest, write, tmp_path):
    path = write("id,x,side\n1,2,train\n" + "2,x,eval\n" * 9)
    with pytest.raises(
        DataError, match=rf"9 of 10 rows.*The first: {path}:3: column 'x': 'x' is not a number"
    ) as error:
        ingest(columns={"id": "token", "x": "float"}, split=SIDES, allowed_bad_rate=0.5)
    assert "while running" not in str(error.value)
    assert not list((tmp_path / "out").rglob("*.gz"))
    assert not list((tmp_path / "out").rglob(".staging*"))


def test_unclosed_quote_counts_the_lines_it_swallows(ingest, write):
    write('id,side\n1,train\n"2,eval\n3,eval\n4,eval\n')
    words = r"3 of 4 rows.*The first: .*data.csv:3: malformed CSV: unexpected end of data"
    with pytest.raises(DataError, match=words) as raised:
        ingest(columns={"id": "token"}, split=SIDES)
    assert raised.type is DataError, "more rows would not help: `follow` must not wait for them"


BAD_FILES = {
    "header only": (b"id,side\n", r"no file has rows; .*data.csv"),
    "absent column": (b"ID,side\n1,train\n", r"data.csv: column 'id' is missing: did you mean 'ID'\?"),
    "no split": (b"id,side\n1,train\n", r"no row is left for the eval split; 1 rows read"),
    "empty column": (b"id,side\n,train\n1,eval\n", r"column 'id' is empty in all 1 rows of the train split"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_one_clear_error(case, ingest, write):
    content, expected = BAD_FILES[case]
    write(content)
    with pytest.raises(DataError, match=expected):
        ingest(columns={"id": "token"}, split=SIDES)


def test_a_column_may_be_empty_where_asked_for(ingest, write):
    write(BAD_FILES["empty column"][0])
    assert ingest(columns={"id": "token"}, split=SIDES, allow_empty=True).facts["files"] == 1


def test_files_that_are_no_data_are_ignored_and_named(ingest, write):
    write("id,side\n1,train\n2,eval\n")
    ignored = [str(write("x", name)) for name in ("README.md", "_SUCCESS")]
    output = ingest(columns={"id": "token"}, split=SIDES)
    assert (output.facts["files"], output.facts["files_ignored"]) == (1, ignored)


def test_span_without_a_file_is_counted_or_refused(ingest, write):
    for day in (1, 2, 4):
        write(f"id,side\n{day},train\n{day},eval\n", f"2011-10-0{day}.csv")
    given = {"pattern": "*-*-*.csv", "columns": {"id": "token"}, "split": SIDES}
    spans = {"pattern": "{YYYY}-{MM}-{DD}.csv", "first": "2011-10-02"}
    output = ingest(**given, spans=spans)
    assert {row["id"][0] for row in output.rows("train")} == {b"2", b"4"}
    assert output.facts["spans_without_file"] == {"count": 1, "first": ["2011-10-03"]}
    with pytest.raises(DataError, match=r"1 spans have no file \(2011-10-03\)"):
        ingest(**given, spans={**spans, "missing": "error"})


def test_files_of_no_span_are_ignored_and_named(ingest, write):
    write("id,side\n1,train\n2,eval\n", "2011-10-01.csv")
    ignored = [str(write("x", name)) for name in ("2011-10-2.csv", "2011-13-01.csv")]
    given = {"pattern": "*-*-*.csv", "columns": {"id": "token"}, "split": SIDES}
    output = ingest(**given, spans={"pattern": "{YYYY}-{MM}-{DD}.csv", "last": "2011-10-01"})
    assert (output.facts["files"], output.facts["files_ignored"]) == (1, ignored)
    with pytest.raises(DataError, match=r"none of the 3 files that match .* a span from 2012-01-01 to the last"):
        ingest(**given, spans={"pattern": "{YYYY}-{MM}-{DD}.csv", "first": "2012-01-01"})


def test_file_that_changes_while_it_is_read_is_named(ingest, write, monkeypatch):
    from components.example_gen import executor

    def digest(path):
        write("id,side\n1,train\n2,eval\n")
        return file_digest(path)

    file_digest = executor.file_digest
    monkeypatch.setattr(executor, "file_digest", digest)
    write("id,side\n1,train\n3,eval\n")
    with pytest.raises(DataError, match=r"data.csv changed while it was read"):
        ingest(columns={"id": "token"}, split=SIDES)


def test_no_match_names_what_is_there(ingest, write, tmp_path):
    write("x", "trips.csv")
    with pytest.raises(DataError, match=r"no file matches .*trip\.csv': did you mean 'trips.csv'\?"):
        ingest(pattern="trip.csv", columns={"id": "token"})
    with pytest.raises(DataError, match="nowhere' does not exist"):
        ingest(tmp_path / "nowhere", columns={"id": "token"})


def test_a_filter_that_leaves_nothing_is_named(ingest, write):
    write("id,side\n1,train\n2,eval\n")
    with pytest.raises(DataError, match=r"no row is left.*2 left out by `id matches \"x\"`"):
        ingest(columns={"id": "token"}, row_filters=[{"column": "id", "matches": "x"}], split=SIDES)


def test_an_earlier_attempt_is_replaced(ingest, write, tmp_path):
    write("id,side\n1,train\n2,eval\n")
    stale = tmp_path / "out/examples/Split-train/data_tfrecord-00000-of-00009.gz"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half")
    assert sorted(ingest(columns={"id": "token"}, split=SIDES).files()) == [
        f"Split-{split}/data_tfrecord-00000-of-00001.gz" for split in ("eval", "train")
    ]


def test_a_failure_while_publishing_leaves_no_splits(ingest, write, tmp_path, monkeypatch):
    from components.example_gen.executor import fileio

    def fail(source, target, overwrite=False):
        if "Split-eval" in target:
            raise OSError("disk full")
        return move(source, target, overwrite)

    move = fileio.rename
    monkeypatch.setattr(fileio, "rename", fail)
    write("id,side\n1,train\n2,eval\n")
    with pytest.raises(OSError, match="disk full"):
        ingest(columns={"id": "token"}, split=SIDES)
    assert not any((tmp_path / "out/examples").iterdir())


ODD_NAMES = ["run[1]", "run*", "what?", "back\\slash", "a b", "caffè", 'it\'s "so"', "{x}", "a,b@2 #%d$&;"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_folders_and_files_are_literal(ingest, write, tmp_path, name):
    from components.example_gen.data_files import find_files
    from pipelines.config.sections import Data, data_location

    for folder, token in ((name, "right"), ("run1", "wrong"), ("runs", "wrong"), ("backslash", "wrong")):
        (tmp_path / folder).mkdir()
        write(f"id,side\n{token},train\n{token},eval\n", f"{folder}/{name}.csv")
    base, pattern = data_location(Data(path=str(tmp_path / name / f"{name}.csv")))
    assert find_files(base, pattern, "csv", None).files == [str(tmp_path / name / f"{name}.csv")]
    assert ingest(base, pattern=pattern, columns={"id": "token"}, split=SIDES).values("id") == [[b"right"]] * 2


FILTERS = [{"column": "x", "min": 0}]


def test_rows_of_eval_files_are_the_eval_split(ingest, write):
    write("x\n1\n2\n", "train.csv")
    test = write("x\n3\n", "test.csv")
    settings = {"columns": {"x": "float"}, "split": {"by": "file"}}
    output = ingest(pattern="train.csv", eval_pattern="test.csv", **settings)
    assert [row["x"] for row in output.rows("eval")] == [[3.0]]
    assert output.facts["splits"] == {"train": 2, "eval": 1}
    data = json.loads(output.artifact.get_string_custom_property("data"))
    assert ([piece["source"] for piece in data["eval"]], len(data["pieces"])) == ([str(test)], 1)
    with pytest.raises(DataError, match="would be in both splits"):
        ingest(pattern="*.csv", eval_pattern="test.csv", **settings)
    write("x\n3\n", "train.csv")
    with pytest.raises(DataError, match=r"a file of `data.eval_path`, has the same content as .*train"):
        ingest(pattern="train.csv", eval_pattern="test.csv", **settings)


def test_eval_files_see_the_events_of_training(ingest, write):
    write("u,i,t\na,x,1\na,y,2\n", "train.csv")
    write("u,i,t\na,z,3\n", "test.csv")
    columns = {"i": "token", "h": "token"}
    histories = {"user": "u", "time": "t", "columns": {"h": "i"}}
    given = {"columns": columns, "split": {"by": "file"}, "histories": histories}
    output = ingest(pattern="train.csv", eval_pattern="test.csv", **given)
    assert [row["h"] for row in output.rows("eval")] == [[b"x", b"y"]]


def test_examples_say_which_bytes_they_were_read_from(ingest, write):
    written = [write("side,x\ntrain,1\neval,2\n", f"{span}.csv") for span in (2, 10, 30)]
    spans = {"pattern": "{SPAN}.csv", "last": 10}
    output = ingest(written[0].parent, pattern="*.csv", columns={"x": "float"}, split=SIDES, spans=spans)
    data = json.loads(output.artifact.get_string_custom_property("data"))
    assert [piece["span"] for piece in data["pieces"]] == [2, 10]
    digest = hashlib.sha256(written[0].read_bytes()).hexdigest()
    assert [piece["sha256"] for piece in data["pieces"]] == [digest, digest]
    assert data["pieces"][0]["source"] == str(written[0].parent / "{SPAN}.csv")
    other = ingest(written[0].parent, pattern="2.csv", columns={"x": "float"}, split=SIDES, row_filters=FILTERS)
    (piece,) = json.loads(other.artifact.get_string_custom_property("data"))["pieces"]
    assert (piece["span"], piece["source"], piece["sha256"]) == (None, str(written[0]), digest)
    assert json.loads(other.artifact.get_string_custom_property("data"))["rows"] != data["rows"]
