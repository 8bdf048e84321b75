"""The settings of top-k decide when lists are searched; invalid values are refused."""

import pytest

from embedding_core.errors import ConfigError
from embedding_core.serving_config import LARGE, Approximate, TopK


def test_lists_are_searched_if_candidates_are_many():
    assert Approximate(when="large").lists_of(LARGE - 1) is None
    assert Approximate(when="large").lists_of(1_000_000) == 4000
    assert TopK().approximate.lists_of(10**7) is None


def test_lists_are_at_most_as_many_as_candidates():
    assert Approximate(when="always", lists=100).lists_of(30) == 30
    assert Approximate(when="always").lists_of(9) == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "`k` of top k is 0: .*at least 1"),
        ({"approximate": {"when": "sometimes"}}, "'sometimes'"),
        ({"approximate": {"lists": 10, "probes": 11}}, "probes.*is 11: it must be at most `lists`, 10"),
        ({"approximate": {"min_recall": 1.5}}, "min_recall.*1.5.*from 0 to 1"),
        ({"approximate": {"probe": 3}}, "probes"),
    ],
)
def test_settings_refuse(settings, message):
    with pytest.raises(ConfigError, match=message):
        TopK(**settings)


def test_approximate_may_be_one_word():
    assert TopK(approximate="large").approximate == Approximate(when="large")
