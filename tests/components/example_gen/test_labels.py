"""Labels, sample weights, single-valued columns and whole numbers, all of which ExampleGen checks and converts."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from components.example_gen.labels import label_values
from components.example_gen.readers import typed_batch
from components.example_gen.row_selection import RowFilter
from components.example_gen.rows import BadRows, normal
from components.example_gen.settings import Label, Settings
from components.example_gen.splits import EqualRows, assign_splits, meets
from components.example_gen.tally import TooFewRowsError
from embedding_core.errors import DataError

pytestmark = pytest.mark.tfx

SIDES = {"by": "column", "column": "side"}


@pytest.fixture
def label(ingest, write):
    """Return a function that runs ExampleGen on values of the label column y, each in one row of each split."""

    def of(values, positive=(), **settings):
        rows = [f"{value},{side}" for value in values for side in ("train", "eval")]
        write("y,side\n" + "\n".join(rows) + "\n")
        settings = {"columns": {"y": "float"}, "label": {"column": "y", "positive": positive}, **settings}
        return ingest(split=SIDES, **settings)

    return of


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (["0", "1"], []),
        (["0.0", "1.0"], []),
        (["false", "TRUE"], []),
        (["No", "yes"], []),
        (["NO", "<30"], ["<30"]),
        ([">30", "<30"], ["<30"]),
        (["3", "4.0"], [4, 5]),
        (["NO", "YES"], [True]),  # YAML reads yes as True
    ],
)
def test_label_becomes_0_and_1(label, values, positive):
    output = label(values, positive)
    assert output.values("y") == [[0.0], [0.0], [1.0], [1.0]]
    assert output.facts["label_values"] == {"label": {repr(value): 2 for value in values}}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("NA", r"label column 'y': 'NA' is not a number; .* `data: {missing: .*}`, and `label.above` bounds numbers"),
        ("inf", r"label column 'y': 'inf' is not finite"),
        ("", r"label column 'y' has no value"),
        ("nan", r"label column 'y' has no value"),
        ("9" * 310, r"label column 'y': '9{56}\.\.\. is not finite"),
    ],
)
def test_row_whose_label_is_no_number_to_bound_is_bad(label, value, words):
    given = {"label": {"column": "y", "above": 15}}
    with pytest.raises(DataError, match=r"2 of 6 rows cannot be used.*The first: .*data.csv:6: " + words):
        label(["3", "9" * 21, value], **given)  # beyond an int64
    assert label(["3", "9" * 21, value], allowed_bad_rate=0.4, **given).values("y") == [[0.0], [0.0], [1.0], [1.0]]


def test_row_may_lack_its_label_beside_labels_without_a_column(label):
    with pytest.raises(DataError, match="2 of 6 rows cannot be used"):
        label(["3.5", "4", ""], label={"column": "y", "kind": "regression"})
    output = label(["3.5", "4", ""], label={"column": "y", "kind": "regression"}, other_labels=True)
    assert output.values("y") == [None, None, [3.5], [3.5], [4.0], [4.0]]


def test_label_of_three_classes_names_row_value_and_rule(label, tmp_path):
    expected = (
        rf"^{tmp_path}/data.csv:2: label column 'y' is neither 0 nor 1; .* hold '<30' \(2 rows\), '>30' \(2 rows\), "
        r"'NO' \(2 rows\)\. A label is 0 or 1, .*`label: {column: y, positive: ...}`"
    )
    with pytest.raises(DataError, match=expected):
        label(["<30", ">30", "NO"], allowed_bad_rate=0.9)  # a third class is an error at any rate of bad rows
    with pytest.raises(DataError, match=r"csv:6: .* If 'NA' means a missing value, set `data: {missing: \[\"NA\"\]}`"):
        label(["yes", "no", "NA"])


def test_label_that_is_no_literal_is_named(ingest, tmp_path):
    parquet.write_table(pa.table({"y": [float("inf"), 0.0], "side": ["train", "eval"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"label column 'y' is neither 0 nor 1; .* hold 0.0 .*, inf"):
        ingest(data_format="parquet", columns={"y": "float"}, label={"column": "y"}, split=SIDES)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"positive": ["5"]}, r"no row has the value of `label.positive`, \['5'\], .*holds '3' \(2 rows\)"),
        ({"above": 15}, r"no row has a number above `label.above`, 15, .*'y', which holds '3' \(2 rows\)"),
    ],
)
def test_label_that_is_1_in_no_row_names_the_setting(label, given, words):
    with pytest.raises(TooFewRowsError, match=words):
        label(["3", "4"], label={"column": "y", **given})


CLASSES = {"columns": {"y": "token"}, "label": {"column": "y", "kind": "multiclass"}}


def test_classes_are_kept_as_text_and_counted(label):
    output = label(["red", "2", "3.0"], **CLASSES)
    assert output.values("y") == [[b"2"]] * 2 + [[b"3.0"]] * 2 + [[b"red"]] * 2
    assert output.facts["label_values"] == {"label": {"'red'": 2, "'2'": 2, "'3.0'": 2}}


@pytest.mark.parametrize(
    ("value", "words"), [("", "label column 'y' has no value"), ('"a\nb"', r"'a\\nb' has a line break or NUL")]
)
def test_row_without_a_class_that_a_line_can_hold_is_bad(label, value, words):
    with pytest.raises(DataError, match=rf"2 of 6 rows cannot be used.*\n  .*: {words}|: .*{words}"):
        label(["x", "y", value], **CLASSES)
    assert label(["x", "y", value], **CLASSES, allowed_bad_rate=0.4).facts["set_aside"]["rows"] == 2


def test_lists_booleans_and_numbers_are_labels_of_parquet(ingest, tmp_path):
    table = {
        "y": [[1], [1, 0], [0], []],
        "flag": [True, False, False, True],
        "kind": [3, 1, 3, 1],
        "side": ["train", "eval"] * 2,
    }
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    given = {"data_format": "parquet", "split": SIDES}
    with pytest.raises(DataError, match=r"2 of 4 rows.*\n  .*row 2: column 'y' holds 2 values, .*\n.*row 4"):
        ingest(columns={"y": "float"}, label={"column": "y"}, **given)
    flags = ingest(columns={"flag": "float"}, label={"column": "flag"}, **given)
    assert flags.values("flag") == [[0.0], [0.0], [1.0], [1.0]]
    classes = ingest(columns={"kind": "token"}, label={"column": "kind", "kind": "multiclass"}, **given)
    assert classes.values("kind") == [[b"1"], [b"1"], [b"3"], [b"3"]]


SAME = (  # what pandas writes into a file without gaps, into one with gaps, and as float32
    lambda values: pa.array([int(value) if value == int(value) else value for value in values]),
    lambda values: pa.array(list(map(float, values))),
    lambda values: pa.array(values, pa.float32()),
    lambda values: pa.array(list(map(str, values))),
    lambda values: pa.array([str(float(value)) for value in values]),
)


def batches_of(values):
    """Return the same values as batches of one column "y", one for each type."""
    settings = Settings(columns={"y": "token"}, split={"by": "column", "column": "y", "train": [1], "eval": [0]})
    for made in SAME:
        batch = typed_batch("file, row", pa.record_batch([made(values)], ["y"]), settings, 1)
        yield dataclasses.replace(batch, is_text=pa.types.is_large_binary(batch.columns["y"].type)), settings


@pytest.mark.parametrize(
    ("given", "values", "expected"),
    [
        ({"positive": True}, [0, 1, 1, 0], [0, 1, 1, 0]),
        ({"positive": [1]}, [0, 1, 2, 1], [0, 1, 0, 1]),
        ({}, [0, 1, 1], [0, 1, 1]),
        ({"positive": [0.1, 0.7]}, [0.1, 0.7, 0.5], [1, 1, 0]),
        ({"above": 0.1}, [0.1, 0.2, 0.7], [0, 1, 1]),
        ({"above": 0.7}, [0.1, 0.7, 0.8], [0, 0, 1]),
        ({"kind": "regression"}, [0.1, 0.5, 7.25], [np.float32(0.1), 0.5, 7.25]),
    ],
)
def test_label_is_the_same_in_any_type_of_column(given, values, expected):
    for batch, _ in batches_of(values):
        made, bad = label_values(Label(column="y", **given), batch)
        assert (made.to_pylist(), bad) == (expected, {})


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ({"equals": True}, [0, 1], [False, True]),
        ({"not_equals": 0.1}, [0.1, 0.5], [False, True]),
        ({"in": [0.1, 0.7]}, [0.1, 0.7, 0.5], [True, True, False]),
        ({"min": 0.7}, [0.1, 0.7, 0.8], [False, True, True]),
        ({"max": 0.1}, [0.1, 0.7], [True, False]),
    ],
)
def test_row_filter_is_the_same_in_any_type_of_column(condition, values, expected):
    for batch, _ in batches_of(values):
        met, bad = meets(batch, RowFilter(column="y", **condition).conditions[0])
        assert (met.tolist(), bad) == (expected, {})


def test_row_filter_by_pattern_reads_the_digits_of_a_float():
    condition = RowFilter(column="y", matches="^(100|0.1)$").conditions[0]
    for made in SAME[:4]:
        batch, _ = next(batches_of([100]))
        batch = batch.with_column("y", normal(made([100, 10, 1000])))
        assert meets(batch, condition)[0].tolist() == [True, False, False]
        assert meets(batch.with_column("y", normal(made([0.1, 0.5]))), condition)[0].tolist() == [True, False]


def test_empty_text_of_a_typed_label_is_missing():
    columns = pa.record_batch([pa.array(["", "a", None])], ["y"])
    batch = typed_batch("file, row", columns, Settings(columns={"y": "token"}), 1)
    made, bad = label_values(Label(column="y", positive="a"), batch, may_lack=True)
    assert (made.to_pylist(), bad) == ([None, 1.0, None], {})


def test_split_by_a_column_is_the_same_in_any_type():
    for batch, settings in batches_of([1, 0, 1, 2]):
        assert assign_splits(batch, settings, BadRows(), EqualRows())[1].tolist() == [0, 1, 0, -1]


def test_row_without_a_weight_is_bad(ingest, write):
    write("w,side\n1,train\n-1,train\n,eval\n0,eval\ninf,eval\n")
    settings = {"columns": {"w": "float"}, "weight": "w", "split": SIDES}
    with pytest.raises(DataError, match=r"3 of 5 rows.*\n  .*:3: sample weight 'w' is -1.0: it must be .* at least 0"):
        ingest(**settings)
    assert ingest(**settings, allowed_bad_rate=0.6).values("w") == [[0.0], [1.0]]


def test_two_values_in_a_column_of_one_are_named_and_counted(ingest, tmp_path):
    table = {"id": [["a"], ["b", "c"], [], ["d", "e", "f"]], "side": ["train", "train", "eval", "eval"]}
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    settings = {"data_format": "parquet", "columns": {"id": "token"}, "split": SIDES}
    with pytest.raises(DataError, match=r"2 of 4 rows.*\n  .*row 2: column 'id' holds 2 values, .*multivalent"):
        ingest(**settings, single_valued=["id"])
    output = ingest(**settings, single_valued=["id"], allowed_bad_rate=0.5)
    assert output.facts["set_aside"]["rows"] == 2
    assert [row for split in ("train", "eval") for row in output.rows(split)] == [{"id": [b"a"]}, {}]
    assert len(ingest(**settings).values("id")) == 4  # without `single_valued`, a row may hold several ids


def test_decimal_comma(ingest, write):
    settings = {"columns": {"x": "float"}, "split": SIDES, "csv": {"decimal": ",", "delimiter": ";"}}
    write("x;side\n1,5;train\n-2;eval\n3,0;train\n")
    filters = [{"column": "x", "not_equals": 3}, {"column": "x", "max": 2}]
    assert ingest(**settings, row_filters=filters).values("x") == [[-2.0], [1.5]]
    write("x;side\n1,5;train\n2;eval\n1.234,5;eval\n")
    with pytest.raises(DataError, match=r"'1.234,5' is not a number: a point in it, and `data.decimal` is ','"):
        ingest(**settings)
    with pytest.raises(DataError, match=r"'1,5' is not a number; .* set `data: {decimal: \",\"}`"):
        ingest(**{**settings, "csv": {"delimiter": ";"}})


def test_whole_numbers_written_two_ways_are_counted_or_made_one(ingest, write):
    write("id,side\n3,train\n3.0,train\n+3.0,eval\n007,eval\nx.0,eval\n3.50,eval\n")
    settings = {"columns": {"id": "token"}, "split": SIDES}
    mixed = ingest(**settings)
    assert mixed.facts["mixed_whole_numbers"] == {"id": {"3": 2, "3.0": 2}}
    assert mixed.values("id") == [[b"+3.0"], [b"007"], [b"3"], [b"3.0"], [b"3.50"], [b"x.0"]]  # as they are in the data
    same = ingest(**settings, whole_numbers=["id"])
    assert same.values("id") == [[b"007"], [b"3"], [b"3"], [b"3"], [b"3.50"], [b"x.0"]]
    assert same.facts["mixed_whole_numbers"] == {}


def test_column_that_pandas_turned_into_floats(ingest, tmp_path):
    for name, ids in (("1", [1, 2]), ("2", [3.0, None]), ("3", [4.5, 16777217.0])):
        parquet.write_table(pa.table({"id": ids, "side": ["train", "eval"]}), tmp_path / f"{name}.parquet")
    settings = {"data_format": "parquet", "columns": {"id": "token"}, "split": SIDES}
    with pytest.raises(DataError, match=r"is int64 in .*float in .*`data: {whole_numbers: \[id\]}`"):
        ingest(**settings, pattern="[12].parquet")
    assert ingest(**settings, pattern="[12].parquet", whole_numbers=["id"]).values("id") == [None, [1], [2], [3]]
    with pytest.raises(DataError, match=r"1 of 6 rows.*The first: .*row 1: column 'id': a number that is not whole"):
        ingest(**settings, whole_numbers=["id"])
