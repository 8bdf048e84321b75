import json

import pytest

from components.example_gen.spans import PatternSpans
from embedding_core.errors import ConfigError

pytestmark = pytest.mark.tfx

BAD = [
    ({"columns": {"a": "int"}}, "`columns.a` of settings is 'int': it must be"),
    ({"columns": {}}, "`columns` of settings is empty"),
    ({"column": {}}, "`column` of settings is not a known key: did you mean 'columns'"),
    ({"columns": {"a": "token"}, "allowed_bad_rate": 2}, "`allowed_bad_rate` of settings is 2"),
    ({"columns": {"a": "token"}, "split": {"by": "date"}}, "`split.by` of settings is 'date'"),
    ({"columns": {"a": "token"}, "split": {"by": "time", "column": "t"}}, "`split.before` of settings is missing"),
    ({"columns": {"a": "token"}, "split": {"by": "time", "column": "t", "before": "1/2"}}, "`split.before` of"),
    (
        {"columns": {"a": "token"}, "split": {"by": "hash", "eval_fraction": 1}},
        "`split.eval_fraction` of settings is 1",
    ),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a"}]}, "no condition: .* at least one of present"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "min": "x"}]}, "`row_filters.0.min` .* a number, or"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "in": []}]}, "a list of at least one value"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "matches": "("}]}, "must be a regular expression"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "equal": 1}]}, "known key: did you mean 'equals'"),
    ({"columns": {"a": "token"}, "spans": {"pattern": "*"}}, "`spans.pattern` of settings is"),
    ({"columns": {"a": "token"}, "label": {"key": "y"}}, "`labels.label.column` of settings is null"),
    ({"columns": {"a": "float"}, "whole_numbers": ["a"]}, "`whole_numbers.0` of settings is 'a'"),
]


def test_json_of_previous_release_is_read_and_written_unchanged():
    from components.example_gen.settings import Settings

    text = json.dumps(
        {
            "columns": {"a": "token", "y": "float"},
            "row_filters": [{"column": "a", "present": True, "in": [1, "x"]}],
            "split": {"by": "hash", "eval_fraction": 0.5, "key": None},
            "allowed_bad_rate": 0.0,
            "spans": {"first": "2011-10-01", "pattern": "{YYYY}-{MM}-{DD}.csv"},
            "csv": {"delimiter": ";"},
            "label": {"column": "y", "positive": []},
            "weight": None,
            "single_valued": ["a"],
            "whole_numbers": [],
        }
    )
    assert Settings.from_json(text).to_json() == text


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


def spans_of(pattern, first=None, last=None, **more):
    from components.example_gen.spans import PatternSpans

    return PatternSpans(pattern=pattern, first=first, last=last, **more)


def with_spans(given, pattern="{YYYY}-{MM}-{DD}.csv"):
    from components.example_gen.executor import settings_of

    spans = {"pattern": pattern, "first": 1 if "{SPAN}" in pattern else "2011-10-01"} if pattern else None
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
def test_spans_given_at_the_start_replace_the_configured_ones(given, first, last):
    pattern = "{YYYY}-{MM}-{DD}.csv"
    assert with_spans(given) == spans_of(pattern, first, last)


def test_spans_given_at_the_start_keep_action_on_missing_ones():
    from components.example_gen.executor import settings_of

    spans = {"pattern": "{SPAN}.csv", "first": 1, "missing": "error", "every": 3}
    text = json.dumps({"columns": {"a": "token"}, "spans": spans})
    given = settings_of({"settings": text, "data_spans": "3/12"}).spans
    assert given == spans_of("{SPAN}.csv", 3, 12, missing="error", every=3)


def test_numbered_spans_are_given_as_numbers():
    assert with_spans("3/12", "{SPAN}.csv") == spans_of("{SPAN}.csv", 3, 12)


@pytest.mark.parametrize(("given", "pattern"), [("2011-10-05", "{YYYY}-{MM}-{DD}.csv"), ("1/2", None)])
def test_spans_that_cannot_be_read_are_refused(given, pattern):
    with pytest.raises(ConfigError, match="`data_spans` is"):
        with_spans(given, pattern)


def test_last_span_may_be_far_away():
    gaps = PatternSpans(pattern="rows-{SPAN}.csv", last=2**63).gaps([1, 2])
    assert (gaps.total, gaps.first[:2]) == (2**63 - 2, ("3", "4"))
