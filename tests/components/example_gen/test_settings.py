import json

import pytest

from embedding_core.errors import ConfigError

pytestmark = pytest.mark.tfx

BAD = [
    ({"columns": {"a": "int"}}, "column 'a' is 'int': it must be 'token' or 'float'"),
    ({"columns": {}}, "`columns` is empty"),
    ({"column": {}}, "unknown key 'column' in the settings: did you mean 'columns'"),
    ({"columns": {"a": "token"}, "allowed_bad_rate": 2}, "`allowed_bad_rate` is 2"),
    ({"columns": {"a": "token"}, "split": {"by": "date"}}, "`by` of the split is 'date'"),
    ({"columns": {"a": "token"}, "split": {"by": "time", "column": "t"}}, "`before` is missing in the split by time"),
    ({"columns": {"a": "token"}, "split": {"by": "time", "column": "t", "before": "1/2"}}, "`before` of the split"),
    ({"columns": {"a": "token"}, "split": {"by": "hash", "eval_fraction": 1}}, "`eval_fraction` of the split is 1"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a"}]}, "row filter .* at least one of present"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "min": "x"}]}, "`min` of the row filter on 'a'"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "matches": "("}]}, "must be a regular expression"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "equal": 1}]}, "unknown rule; did you mean 'equals'"),
    ({"columns": {"a": "token"}, "spans": {"pattern": "*"}}, "`spans` need"),
]


@pytest.mark.parametrize(("settings", "expected"), BAD)
def test_bad_settings_are_refused(settings, expected):
    from components.example_gen.settings import Settings

    with pytest.raises(ConfigError, match=expected):
        Settings.from_json(json.dumps(settings))


@pytest.mark.parametrize(
    ("value", "given", "expected"),
    [("5.0", 5, True), ("x", 5, False), ("5.0", "5", False), (5.0, "5", True), ("True", True, True), (0, False, True)],
)
def test_values_compare_as_what_was_given(value, given, expected):
    from components.example_gen.values import same

    assert same(value, given) is expected


@pytest.mark.parametrize(
    "value", ["1320105600", 1320105600000, "2011-11-01", "2011-11-01T00:00:00Z", "2011-11-01 01:00:00.0000000+01:00"]
)
def test_instants_are_told_apart(value):
    from components.example_gen.values import instant

    assert instant(value) == 1320105600 * 10**6


@pytest.mark.parametrize("value", ["20111101", "", "x", "1e9", 5])
def test_what_is_not_a_time_is_refused(value):
    from components.example_gen.values import instant

    with pytest.raises(ValueError, match="neither an ISO date or time nor a Unix time"):
        instant(value)


def spans_of(pattern, first=None, last=None):
    from components.example_gen.settings import Spans

    return Spans.from_bounds(pattern, first, last)


def with_spans(given, pattern="{YYYY}-{MM}-{DD}.csv"):
    from components.example_gen.executor import settings_of

    spans = {"pattern": pattern, "first": "2011-10-01"} if pattern else None
    return settings_of({"settings": json.dumps({"columns": {"a": "token"}, "spans": spans}), "data_spans": given}).spans


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        ("", "2011-10-01", None),
        (None, "2011-10-01", None),
        ("2011-10-05/2011-10-06", "2011-10-05", "2011-10-06"),
        ("/2011-10-06", None, "2011-10-06"),
    ],
)
def test_spans_given_when_a_run_starts_take_the_place_of_the_configured_ones(given, first, last):
    pattern = "{YYYY}-{MM}-{DD}.csv"
    assert with_spans(given) == spans_of(pattern, first, last)


def test_spans_given_when_a_run_starts_keep_what_becomes_of_missing_ones():
    spans = {"pattern": "{SPAN}.csv", "first": 1, "missing": "error", "every": 3}
    from components.example_gen.executor import settings_of
    from components.example_gen.settings import Spans

    said = json.dumps({"columns": {"a": "token"}, "spans": spans})
    assert settings_of({"settings": said, "data_spans": "3/12"}).spans == Spans.from_bounds(
        "{SPAN}.csv", 3, 12, missing="error", every=3
    )


def test_numbered_spans_are_given_as_numbers():
    assert with_spans("3/12", "{SPAN}.csv") == spans_of("{SPAN}.csv", 3, 12)


@pytest.mark.parametrize(("given", "pattern"), [("2011-10-05", "{YYYY}-{MM}-{DD}.csv"), ("1/2", None)])
def test_spans_that_cannot_be_read_are_refused(given, pattern):
    with pytest.raises(ConfigError, match="`data_spans` is"):
        with_spans(given, pattern)
