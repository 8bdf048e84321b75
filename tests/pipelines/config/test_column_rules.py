"""Tests the rules for columns that are used in more than one of features, row filters, slices and split."""

import pytest

from embedding_core.columns import input_name
from pipelines.config.column_rules import input_key

HEAD = "data: rows.csv\nlabel: bought\n"
PRIVATE = HEAD + "features: {categorical: [{name: customer, column: id, private: true}]}\n"


def test_lists_in_csv_need_a_separator(load, mistake):
    text = HEAD + "features: {categorical: [{name: item, multivalent: true%s}]}"
    line = mistake(text % "")
    assert line.startswith("my.yaml:3: `features.categorical.0.multivalent` is True, but CSV has no lists")
    load(text % ", separator: ' '")


def test_lists_of_other_formats_need_none(load, folder):
    (folder / "rows.parquet").write_text("")
    load("data: rows.parquet\nlabel: y\nfeatures: {categorical: [{name: item, multivalent: true}]}")


@pytest.mark.parametrize("slices", ["[id]", "[[shop, id]]"])
def test_private_column_is_no_slice(mistake, slices):
    line = mistake(PRIVATE + f"evaluation: {{slices: {slices}}}")
    assert "`evaluation.slices.0`" in line
    assert "private feature 'customer'" in line


@pytest.mark.parametrize("condition", ["equals: s3cret", "in: [s3cret]", "matches: s3cret", "min: 5", "not_equals: 1"])
def test_private_column_is_filtered_by_presence_only(load, mistake, condition):
    line = mistake(PRIVATE + f"row_filters: [{{column: id, present: true, {condition}}}]")
    assert f"`row_filters.0.{condition.split(':')[0]}` gives a value of 'id'" in line
    assert "s3cret" not in line
    load(PRIVATE + "row_filters: [{column: id, present: true}, {column: shop, equals: 3}]")


@pytest.mark.parametrize("bounds", ["min: 3, max: 2.5", "min: '2011-11-01T01:00:00Z', max: 2011-11-01"])
def test_bounds_that_no_row_passes_are_refused(mistake, bounds):
    text = HEAD + f"features: {{categorical: [item]}}\nrow_filters: [{{column: x, {bounds}}}]"
    assert "it must be at most `max`" in mistake(text)


@pytest.mark.parametrize(
    ("features", "path"),
    [
        ("{categorical: [a-b, a.b]}", "features.categorical.1"),
        ("{categorical: [a-b], dense: [a_b]}", "features.dense.0"),
        ("{categorical: [Item, item]}", "features.categorical.1"),
        ("{categorical: [{name: x, column: a b}, {name: y, column: a_b}]}", "features.categorical.1"),
    ],
)
def test_columns_that_would_be_one_input_are_refused(mistake, features, path):
    assert f"`{path}` reads column" in mistake(HEAD + f"features: {features}")


@pytest.mark.parametrize("column", ["a-b", "a.b c", "_x", "1st", "žluť", "-", "Item"])
def test_input_key_is_the_input_name_without_capitals(column):
    assert input_key(column) == input_name(column).lower()


def test_column_of_two_features_is_one_input(load):
    load(HEAD + "features: {categorical: [{name: a-b, column: x}, {name: a_b, column: x}]}")


@pytest.mark.parametrize(
    ("feature", "remedy"),
    [
        ("categorical: [{name: customer, column: id, private: true}, id]", "give it `private: true` as well"),
        ("{categorical: [{name: customer, column: id, private: true}], dense: [id]}", "remove one of them"),
    ],
)
def test_second_feature_over_a_private_column_is_private_too(mistakes, feature, remedy):
    lines = mistakes(HEAD + f"features: {feature if feature.startswith('{') else '{' + feature + '}'}")
    (line,) = [line for line in lines if "reads column 'id', which is private as feature 'customer'" in line]
    assert remedy in line


@pytest.mark.parametrize("split", ["{by: column, column: id, train: [a], eval: [b]}", "{by: time, column: id, %s}"])
def test_private_column_is_no_split(load, mistakes, split):
    lines = mistakes(PRIVATE + "split: " + split.replace("%s", "before: 2011-01-01"))
    assert [line for line in lines if "`split.column` is 'id', the column of the private feature" in line]
    load(PRIVATE + "split: {by: hash, key: id}")
