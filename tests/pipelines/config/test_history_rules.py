"""Tests what `data.histories` needs of features, split, filters and model."""

import pytest

pytestmark = pytest.mark.light
HISTORY = "{name: history, vocabulary: item, table: item, multivalent: true, max_sequence_length: 20}"
GOOD = f"""\
data:
  path: rows.csv
  histories: {{user: user, time: time, columns: {{history: item}}, max_length: 20}}
split: leave_one_out
label: {{kind: positive}}
features: {{categorical: [item, {HISTORY}]}}
model: {{name: sequential, arguments: {{history: history, candidate: item}}}}
training: {{softmax: item}}
"""


def changed(*pairs):
    text = GOOD
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def test_histories_reach_the_settings_of_example_gen(load):
    from pipelines.pipeline.component_inputs import example_settings

    settings = example_settings(load(GOOD))
    assert settings.histories.columns == {"history": "item"}
    assert settings.needed == ("item", "time", "user")
    assert dict(settings.columns) == {"history": "token", "item": "token"}
    assert type(settings).from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("split: leave_one_out", "split: {by: leave_one_out, held_out: second_last, gap: 1}"),
        ("split: leave_one_out", "split: {by: time, column: time, before: 2024-01-01}"),
        ("split: leave_one_out", "split: {by: hash, key: user}"),
        ("max_sequence_length: 20", "max_sequence_length: max"),
        ("max_length: 20", "max_length: 20, remember: [{column: clicked, equals: 1}]"),
        ("  path: rows.csv", "  path: rows.csv\n  whole_numbers: [user, item]"),
    ],
)
def test_what_fits_is_accepted(load, old, new):
    load(changed((old, new)))


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        (" time: time,", "", "data.histories.time", "is missing"),
        ("user: user, ", "", "data.histories.user", "is missing"),
        ("{history: item}", "{}", "data.histories.columns", "name at least one new column"),
        ("{history: item}", "{item: item}", "data.histories.columns.item", "is a column of the data"),
        ("max_length: 20", "max_length: 20, min_length: 21", "data.histories.min_length", "at most `max_length`, 20"),
        ("max_length: 20", "max_length: 20, ties: order", "data.histories.ties", "it must be one of apart, in_order"),
        ("leave_one_out", "{by: hash}", "split", "would cut events for evaluation out of histories"),
        ("leave_one_out", "{by: hash, key: item}", "split", "is by hash with `key` 'item'"),
        ("split:", "row_filters: [{column: history, equals: 1}]\nsplit:", "row_filters.0.column", "makes of tokens"),
        ("split:", "evaluation: {slices: [history]}\nsplit:", "evaluation.slices.0", "makes of tokens"),
        ("multivalent: true, ", "", "features.categorical.1.multivalent", "set `multivalent: true` alone"),
        ("multivalent: true", "multivalent: true, separator: ' '", "features.categorical.1.separator", "alone"),
        ("_length: 20}]}", "_length: 10}]}", "features.categorical.1.max_sequence_length", "the latest would"),
        ("_length: 20}]}", "_length: p95}]}", "features.categorical.1.max_sequence_length", "the latest would"),
        (", max_sequence_length: 20", "", "model.arguments.history", "has no `max_sequence_length`, and so no order"),
        ("history: history", "history: [[a]]", "model.arguments.history", "takes str"),
        ("history: history", "history: histroy", "model.arguments.history", "did you mean 'history'"),
    ],
)
def test_what_cannot_be_is_one_error(mistake, old, new, path, words):
    line = mistake(changed((old, new)))
    assert f"`{path}` " in line
    assert words in line


def test_history_that_no_feature_reads_is_refused(mistakes):
    first, second = mistakes(changed(("{history: item}", "{histroy: item}")))
    assert "`data.histories.columns.histroy` is read by no feature: did you mean 'history'?" in first
    assert "CSV has no lists" in second


def test_leave_one_out_needs_histories(mistake):
    text = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\nsplit: leave_one_out\n"
    line = mistake(text)
    assert line.startswith("my.yaml:4: `split.by` is 'leave_one_out', but `data.histories` is null")


def test_history_of_a_number_is_refused(mistake):
    line = mistake(changed(("history: item}", "history: price}"), ("features: {", "features: {dense: [price], ")))
    assert "`data.histories.columns.history` is 'price', which is read as a number" in line


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("split:", "evaluation: {slices: [item]}\nsplit:", "evaluation.slices.0"),
        ("split:", "row_filters: [{column: item, equals: s3cret}]\nsplit:", "row_filters.0.equals"),
        ("categorical: [item", "categorical: [{name: other, column: item}", "features.categorical.0"),
    ],
)
def test_column_of_a_private_history_is_private(mistakes, old, new, path):
    private = ("{name: history, vocabulary: item, table: item, ", "{name: history, private: true, ")
    assert [line for line in mistakes(changed(private, (old, new))) if f"`{path}` " in line]


def test_history_of_a_private_column_is_private(mistake, load):
    private = ("[item, ", "[{name: item, private: true}, ")
    line = mistake(changed(private, ("vocabulary: item, table: item, ", "")))
    assert "`features.categorical.1.private` is False" in line
    load(changed(private, ("{name: history, ", "{name: history, private: true, ")))
    with_filter = changed(
        private,
        ("{name: history, ", "{name: history, private: true, "),
        ("max_length: 20}", "max_length: 20, remember: [{column: item, equals: s3cret}]}"),
    )
    line = mistake(with_filter)
    assert "`data.histories.remember.0` gives a value of 'item'" in line
    assert "s3cret" not in line
