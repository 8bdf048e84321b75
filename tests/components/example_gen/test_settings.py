import json

import pytest

from components.example_gen.spans import PatternSpans
from embedding_core.errors import ConfigError

pytestmark = pytest.mark.tfx

BAD = [
    ({"columns": {"a": "token"}, "split": {"by": "time", "column": "t", "before": "1/2"}}, "`split.before` of"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a"}]}, "no condition: .* at least one of present"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "min": "x"}]}, "`row_filters.0.min` .* a number, or"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "in": []}]}, "a list of at least one value"),
    ({"columns": {"a": "token"}, "row_filters": [{"column": "a", "matches": "("}]}, "must be a regular expression"),
    ({"columns": {"a": "token"}, "labels": {"y": {"kind": "positive", "above": 0}}}, "above. of settings is 0"),
    ({"columns": {"a": "token"}, "spans": {"pattern": "{YYYY}{MM}{DD}", "first": "20111001"}}, "must be a date"),
    ({"columns": {"a": "token"}, "spans": {"pattern": "*"}}, "`spans.pattern` of settings is"),
    ({"columns": {"a": "token"}, "label": {"key": "y"}}, "`labels.label.column` of settings is null"),
    ({"columns": {"y": "float"}, "label": {"column": "y", "above": 1, "positive": ["a"]}}, "one of"),
    ({"columns": {"y": "float"}, "label": {"column": "y", "above": float("nan")}}, "number"),
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


@pytest.mark.parametrize("value", ["20111101", "2011-W44-2", "2011-11-01T0000", "", "x", "1e9", 5])
def test_what_is_not_a_time_is_refused(value):
    from components.example_gen.values import instant

    with pytest.raises(ValueError, match="neither an ISO date or time nor a Unix time"):
        instant(value)


def with_spans(given, **spans):
    from components.example_gen.executor import settings_of

    settings = {"columns": {"a": "token"}, "spans": spans or None}
    return settings_of({"settings": json.dumps(settings), "data_spans": given}).spans


DAYS = {"pattern": "{YYYY}-{MM}-{DD}.csv", "first": "2011-10-01"}
NUMBERS = {"pattern": "{SPAN}.csv", "first": 1, "missing": "error", "every": 3}


@pytest.mark.parametrize(
    ("spans", "given", "first", "last"),
    [
        (DAYS, None, "2011-10-01", None),
        (DAYS, "", "2011-10-01", None),
        (DAYS, "2011-10-05/2011-10-06", "2011-10-05", "2011-10-06"),
        (DAYS, "/2011-10-06", None, "2011-10-06"),
        (NUMBERS, "3/12", 3, 12),
    ],
)
def test_bounds_given_at_the_start_replace_the_configured_ones(spans, given, first, last):
    assert with_spans(given, **spans) == PatternSpans(**{**spans, "first": first, "last": last})


@pytest.mark.parametrize(("given", "spans"), [("2011-10-05", DAYS), ("1/2", {})])
def test_spans_that_cannot_be_read_are_refused(given, spans):
    with pytest.raises(ConfigError, match="`data_spans` is"):
        with_spans(given, **spans)


def test_last_span_may_be_far_away():
    gaps = PatternSpans(pattern="rows-{SPAN}.csv", last=2**63).gaps([1, 2])
    assert (gaps.total, gaps.first[:2]) == (2**63 - 2, ("3", "4"))
