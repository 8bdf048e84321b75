"""Tests `validate --data`, which checks the first rows with the readers and rules of ExampleGen."""

import gzip
import json
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from components.example_gen.rows import examples
from embedding_core.errors import DataError
from embedding_core.storage import bounds
from pipelines.checks.data_check import check_data
from pipelines.config import load_config

ROWS = [f"i{row % 5},{row % 7}.0,{'a|b' if row % 2 else 'b|c'},{row * 0.5},x,{row % 2}" for row in range(200)]
CSV = "item,shop,tags,price,same,bought\n" + "\n".join(ROWS) + "\n"
TEXT = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item], dense: [price]}\n"


@pytest.fixture
def checked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def check(*sets, csv=CSV, rows=10_000, text=TEXT):
        (tmp_path / "rows.csv").write_text(csv)
        (tmp_path / "my.yaml").write_text(text)
        config = load_config(tmp_path / "my.yaml", sets)
        return check_data(config, rows)

    return check


def test_good_data_has_a_line_for_each_column_and_nothing_else(checked):
    found = checked()
    assert (found.warnings, found.problems) == ((), ())
    assert "item (categorical feature item): text, 5 distinct, 0.0% missing; i0, i1, i2" in found.lines
    assert "price (dense feature price): numbers, 200 distinct, 0.0% missing; 0.0, 0.5, 1.0" in found.lines
    assert "label bought: '0' (100 rows), '1' (100 rows); 50.0% are positive" in found.lines
    assert found.lines[0].startswith("all 200 rows of ")


HISTORIES = """\
data: {path: rows.csv, histories: {user: shop, time: price, columns: {history: item}, max_length: 3}}
split: leave_one_out
label: {kind: positive}
features: {categorical: [item, {name: history, multivalent: true, vocabulary: item, max_sequence_length: 3}]}
model: {name: sequential, arguments: {history: history, candidate: item}}
training: {softmax: item}
"""


def test_histories_are_made_of_the_rows_that_were_read(checked):
    found = checked(text=HISTORIES)
    assert found.problems == ()
    assert "shop (histories): numbers, 7 distinct, 0.0% missing; 0.0, 1.0, 2.0" in found.lines
    assert "rows: 193 for train, 7 for eval, 0 filtered out, 0 in neither split, 0 bad" in found.lines


def test_positive_as_a_comparison_is_answered_with_the_bound(checked):
    found = checked("label={column: price, positive: '>15'}", "features.dense=[]")
    assert "a bound on a number is `label.above`" in found.problems[0]
    found = checked("label={column: price, positive: '>15'}", "features.dense=[]", rows=50)
    assert "`label.positive` is ['>15']" in found.warnings[0]
    assert "69.0% are positive" in checked("label={column: price, above: 30.5}", "features.dense=[]").lines[-2]


def test_rows_set_aside_are_shown_also_if_the_rate_allows_them(checked):
    found = checked("data.allowed_bad_rate=0.1", csv=CSV.replace("0.5", "NA", 1))
    assert found.problems == ()
    assert 'set `data: {missing: ["NA"]}`' in found.lines[-1]


def test_every_absent_column_is_named_with_the_nearest(checked):
    found = checked("features.categorical.0=itm", "features.dense.0=prise", "label=bought")
    assert found.problems == (
        "column 'itm' is missing: did you mean 'item'?",
        "column 'prise' is missing: did you mean 'price'?",
    )
    assert any(line.startswith("bought (label)") for line in found.lines)


@pytest.mark.parametrize(
    ("csv", "sets", "words"),
    [
        (CSV.replace(",", ";"), [], 'set `data: {delimiter: ";"}`'),
        (CSV.replace(",1\n", ",2\n"), [], "neither 0 nor 1"),
        (CSV.replace("0.5", "cheap", 1), [], "'cheap' is no"),
        (CSV.replace("i3,", "i3,,", 1), [], "7 fields, the header has 6"),
        ("item,price,bought\n", [], "no file has rows"),
        (CSV, ["split={by: column, column: same, train: [x], eval: [y]}"], "no row is left for the eval split"),
    ],
)
def test_what_would_end_a_run_is_a_problem(checked, csv, sets, words):
    try:
        problems = "\n".join(checked(*sets, csv=csv).problems)
    except DataError as error:
        problems = str(error)
    assert any(word in problems for word in words.split("|")), problems


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ("{name: shop}", "`data: {whole_numbers: [shop]}`"),
        ("{name: tags}", "give the feature `separator: '|'`"),
        ("{name: tags, separator: ';'}", "no value of column 'tags' in the rows that were read is split by it"),
        ("{name: same}", "one value in all rows"),
        ("{name: id, column: price}", "200 of 200 values of column 'price' are different"),
    ],
)
def test_what_a_user_should_look_at_is_a_warning(checked, feature, words):
    found = checked(f"features={{categorical: [{feature}]}}")
    assert words in "\n".join(found.warnings)
    assert found.problems == ()


def test_good_forms_are_not_warned_of(checked):
    assert checked("features={categorical: [{name: tags, separator: '|'}]}").warnings == ()
    assert checked("features={categorical: [shop]}", "data.whole_numbers=[shop]").warnings == ()
    titles = "\n".join(["title,bought", *(f"the book {row},{row % 2}" for row in range(200))]) + "\n"
    assert checked("features={categorical: [{name: title, separator: ' '}]}", csv=titles).warnings == ()


def test_dense_codes_are_a_warning(checked):
    rows = [(row * 7 % 90, row * 37 % 61, row % 59 + 20, row) for row in range(900)]
    lines = [f"{user},{shape},{age},{int(shape * 7919 % 13 < 6)}" for user, shape, age, _ in rows]
    csv = "\n".join(["user,shape,size,bought,item", *(f"{line},i{at % 9}" for at, line in enumerate(lines))]) + "\n"
    found = checked("features={categorical: [item], dense: [user, shape, size]}", csv=csv)
    assert found.problems == ()
    first, second = found.warnings
    assert "the whole numbers of column 'user' look like codes (named like a code)" in first
    assert "column 'shape' look like codes (the label leaps from number to number" in second


def test_one_coding_of_two_kinds_is_a_warning(checked):
    lines = [f"{row % 9 - 2},{row % 10 - 2},i{row % 9},{row % 2}" for row in range(200)]
    csv = "\n".join(["X6,X7,item,bought", *lines]) + "\n"
    (warning,) = checked("features={categorical: [item, X6], dense: [X7]}", csv=csv).warnings
    assert warning.startswith("columns X7 and X6 have nearly the same values")
    assert checked("features={categorical: [item], dense: [X6, X7]}", csv=csv).warnings == ()


def test_one_class_in_all_rows_is_a_problem(checked):
    csv = CSV.replace(",0\n", ",1\n")
    assert ["both classes" in problem for problem in checked(csv=csv).problems] == [True]
    found = checked(csv=csv, rows=50)
    assert (["both classes" in warning for warning in found.warnings], found.problems) == ([True], ())
    split = "split={by: column, column: bought, train: [1], eval: [0]}"
    assert (
        checked(split).problems[0].startswith("label 'bought' is 1 in all 100 rows of the train split that were read")
    )


def test_classes_are_those_of_the_rows_that_histories_leave(checked):
    rows = [f"{user},i{time},{time},{time % 2}\n" for user in range(9) for time in range(4)]
    histories = "{user: user, time: time, columns: {seen: item}, min_length: 2}"
    data = f"data={{path: rows.csv, histories: {histories}}}"
    features = "features={categorical: [item, {name: seen, multivalent: true}]}"
    found = checked(data, features, "split={by: hash, key: user}", csv="user,item,time,bought\n" + "".join(rows))
    assert found.problems == (), "18 rows are kept, and 18 of 36 are 1"
    assert "label bought: '0' (18 rows), '1' (18 rows); 50.0% are positive" in found.lines


def test_three_classes_name_the_kind(checked):
    assert "`kind: multiclass`" in checked(csv=CSV.replace(",1\n", ",2\n")).problems[0]


def test_wrong_encoding_is_one_error(checked, tmp_path):
    checked()
    (tmp_path / "rows.csv").write_bytes(CSV.replace("i1,", "è1,").encode("latin-1"))
    found = check_data(load_config(tmp_path / "my.yaml"))
    (problem,) = found.problems
    assert problem.endswith("if the whole file is in another encoding, set it, such as `data: {encoding: latin-1}`")
    assert (found.warnings, "\n" in problem, "row filter" in problem) == ((), False, False)


def test_rows_of_eval_path_are_for_evaluation(checked, tmp_path):
    test, given = tmp_path / "test.csv", "data={path: rows.csv, eval_path: test.csv}"
    test.write_text(CSV[: CSV.index("\n", len(CSV) // 2) + 1])
    found = checked(given)
    assert found.problems == ()
    assert "rows: 200 for train, 100 for eval, 0 filtered out, 0 in neither split, 0 bad" in found.lines
    (warning,) = found.warnings
    assert warning.startswith(f"100% of the rows of '{test}' that were read are equal to rows that are trained on")
    test.write_text(CSV.replace("\ni", "\nno i").replace(",x,0", ",x,1"))
    found = checked(given)
    (warning,), (refusal,) = found.warnings, found.refusals
    assert warning == (
        f"column 'item' of '{test}' has no value in common with the rows that are trained on: each of its tokens will "
        "be unknown; write it the same way in all files."
    )
    assert refusal == (
        "the eval split with the label 0 has 0 rows, and `evaluation.min_rows_per_class` is 10, so every model will be "
        "refused: hold out more rows, or lower it and trust the figures less."
    )
    towers = "model={name: two_tower, arguments: {query_features: [shop], candidate_features: [item]}}"
    assert checked(given, towers, "training={softmax: item}", "features={categorical: [item, shop]}").refusals == ()
    test.write_text(CSV.replace(",x,0", ",x,").replace(",x,1", ",x,"))
    (problem,) = checked(given).problems
    assert problem.startswith(f"{tmp_path / 'rows.csv'} and {test}: 200 of 400 rows cannot be used")
    test.write_text(CSV.replace("bought", "sold"))
    assert "column 'bought' is not in every file: test.csv has none" in checked(given).problems[0]
    test.write_text("item,shop,tags,price,same\na,1,a,1,x\n")
    assert checked(given).problems[0].endswith("test.csv has none; add it there, or leave the file out.")
    test.write_text(CSV)
    (problem,) = checked(given).problems
    assert problem.startswith(
        f"{test}, a file of `data.eval_path`, has the same content as {tmp_path / 'rows.csv'}, which"
    )


@pytest.mark.parametrize("data_format", ["csv", "parquet"])
def test_parts_without_rows_are_no_copies(checked, tmp_path, data_format):
    checked()
    rows = pa.table({"item": ["a", "b"] * 9, "price": [1.0, 2.0] * 9, "bought": [0, 1] * 9})
    for folder, part in (("train", rows), ("test", rows[:4])):
        (tmp_path / folder).mkdir()
        for name, table in (("1", part), ("2", rows[:0])):
            path = tmp_path / folder / f"{name}.{data_format}"
            parquet.write_table(table, path) if data_format == "parquet" else csv.write_csv(table, path)
    config = load_config(tmp_path / "my.yaml", ["data={path: train, eval_path: test}"])
    assert check_data(config).problems == ()


def test_file_with_a_header_alone_lacks_no_column(checked, tmp_path):
    (tmp_path / "empty.csv").write_text(CSV.splitlines()[0])
    assert checked("data='*.csv'").problems == ()


def test_some_rows_say_nothing_of_the_splits_of_all(checked):
    """The data is sorted by time, so the first rows all belong to the train split."""
    times = "\n".join(f"i{row % 5},{row},2011-01-{1 + row // 10:02d},{row % 2}" for row in range(300))
    text = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item], dense: [price]}\n"
    split = "split={by: time, column: day, before: 2011-01-20}"
    found = checked(split, csv=f"item,price,day,bought\n{times}\n", rows=100, text=text)
    assert found.problems == ()
    assert found.lines[0].startswith("the first 100 rows of")


def test_private_values_are_shown_as_digests(checked):
    found = checked("features.categorical.0={name: item, private: true}")
    (line,) = [line for line in found.lines if line.startswith("item ")]
    assert "sha256:" in line
    assert "i0" not in line
    assert found.lines[0].endswith("columns: item, price, bought and 3 others")
    assert [line.split()[0] for line in found.lines[1:4]] == ["item", "price", "bought"]
    assert checked().lines[0].endswith("columns: item, shop, tags, price, same, bought")


def test_first_line_of_tokens_is_hidden_if_a_column_is_private(checked):
    keys = ("features.categorical=[{name: item, private: true}]", "features.dense=[]")
    found = checked(*keys, csv="SECRET-1,SECRET-2,item\na,0,b\n")
    assert "choose from sha256:" in "".join(found.problems)
    assert "SECRET" not in "".join([*found.lines, *found.warnings, *found.problems])


def test_text_among_numbers_is_hidden_if_a_column_is_private(checked):
    csv = CSV.replace("0.5", "name-of-a-person", 1)
    assert "name-of-a-person" in "".join(checked(csv=csv).problems)
    found = checked("features.categorical=[{name: item, private: true}]", csv=csv)
    assert "column 'price': a text (sha256:" in "".join(found.problems)
    assert not [line for line in (*found.lines, *found.problems, *found.warnings) if "person" in line]
    found = checked("features={categorical: [{name: item, private: true}]}", "columns=[price]", csv=csv)
    assert "person" not in "".join(found.lines)


def test_digits_in_some_files_are_text_of_a_text_column(checked, tmp_path):
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "1.csv").write_text(CSV)
    (tmp_path / "days" / "2.csv").write_text(CSV.replace("\ni", "\n"))
    found = checked("data=days/*.csv")
    assert any(line.startswith("item (categorical feature item): text or whole numbers") for line in found.lines)


def test_ignored_files_are_named(checked, tmp_path):
    (tmp_path / "days").mkdir()
    for name in ("2023-01-05.csv", "2023-13-01.csv"):
        (tmp_path / "days" / name).write_text(CSV)
    line = "files that match and are ignored: 1, such as 2023-13-01.csv"
    assert line in checked("data=days/{YYYY}-{MM}-{DD}.csv").lines
    eval_path = "data={path: rows.csv, eval_path: days/*}"
    (tmp_path / "days" / "_SUCCESS").touch()
    assert "files that match and are ignored: 1, such as _SUCCESS" in checked(eval_path).lines


def test_first_rows_of_files_spread_over_all_are_looked_at(checked, tmp_path):
    (tmp_path / "days").mkdir()
    for day in range(1, 12):
        (tmp_path / "days" / f"{day:02d}.csv").write_text(CSV)
    (tmp_path / "days" / "11.csv").write_text(CSV.replace("price", "prize", 1))
    found = checked("data=days/*.csv")
    assert found.problems == ("column 'price' is not in every file: 11.csv has none; did you mean 'prize'?",)


PROGRAM = """
import json, sys
from pipelines.commands import cli
codes, decoders = [], []
for file in sys.argv[1:]:
    try:
        cli.main(["validate", file, "--data"])
    except SystemExit as ended:
        codes.append(ended.code or 0)
        decoders.append("tfx_bsl" in sys.modules)  # it is not installed without TFX
print(json.dumps([codes, decoders, [name for name in ("tensorflow", "tfx", "apache_beam") if name in sys.modules]]))
"""


def test_every_format_is_looked_at_without_anything_heavy(tmp_path):
    import tensorflow as tf

    items, prices, labels = [b"i0", b"i1"] * 30, pa.array(range(60), pa.float32()), pa.array([0, 1] * 30, pa.int64())
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    table = pa.table({"item": pa.array(items, pa.string()), "price": prices, "bought": labels})
    parquet.write_table(table, tmp_path / "rows.parquet")
    columns = {"item": pa.array(items, pa.large_binary()), "price": prices, "bought": labels}
    with tf.io.TFRecordWriter(str(tmp_path / "rows.tfrecord")) as writer:
        for example in examples(columns):
            writer.write(example)
    text = TEXT + "evaluation: {min_rows: 1, min_rows_per_class: 1}\n"
    for name in ("csv.gz", "parquet", "tfrecord"):
        (tmp_path / f"{name}.yaml").write_text(text.replace("rows.csv", f"rows.{name}"))
    (tmp_path / "mistakes.yaml").write_text(text.replace("rows.csv", "rows.parquet").replace("[", "[x_"))
    command = [sys.executable, "-c", PROGRAM, "csv.gz.yaml", "parquet.yaml", "tfrecord.yaml", "mistakes.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, 0, 0, 1], [False, False, True, True], []]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "error"]
    assert done.stdout.count("item (categorical feature item): text") == 3
    assert done.stdout.count("50.0% are positive") >= 3


BAD = "item,shop,tags,price,same,bought\n" + "i1,2\n" * 12_000


def test_no_more_bad_rows_are_read_than_of_a_sample(checked):
    found = checked(csv=BAD)
    assert "10001 of 10001 rows cannot be used" in found.problems[0]
    found = checked("data.allowed_bad_rate=0.5", csv=BAD)
    assert "10,001 of the 10,001 rows that were read cannot be used, more than" in found.warnings[0]
    assert "rows.csv:2: 2 fields, the header has 6" in found.warnings[0]
    assert found.problems == (), "the rows after them may be good"


def test_bad_rows_beyond_the_rate_in_a_sample_are_a_warning(checked):
    found = checked("data.allowed_bad_rate=0.1", csv=CSV.replace("\ni", "\nbad\ni"), rows=50)
    assert found.problems == ()
    assert "51 of the 101 rows that were read cannot be used, more than `allowed_bad_rate` 0.1" in found.warnings[-1]


def test_sample_ends_after_its_bytes(checked, monkeypatch):
    monkeypatch.setattr(bounds, "SAMPLE_BYTES", 20_000)
    found = checked(csv=CSV.replace(",x,", f",{'x' * 990},"))
    assert re.match(r"the first [12]\d rows of ", found.lines[0])
    assert found.problems == ()
