"""Tests what is beyond a bound, and the sentence that says so."""

import pytest

from embedding_core.errors import ConfigError
from embedding_core.health import Health, TableFigures, judge_table
from embedding_core.health.judgement import FIGURES, bound_of

pytestmark = pytest.mark.light


def judged(health=None, examples=None, traffic=5000, **values):
    figures = TableFigures(
        table="items",
        rows=50,
        dim=8,
        has_base=True,
        traffic=traffic,
        values=values,
        curves={},
        examples=examples or {},
    )
    return judge_table(figures, health or Health(), lambda row: f"token {row}")


def test_every_bound_belongs_to_a_figure():
    keys = [bound_of(Health(), figure)[0] for figure in FIGURES]
    assert sorted(keys) == sorted(set(Health.model_fields) - {"action"})


def test_healthy_figures_find_nothing():
    assert judged(zero=0.0, frozen=0.1, effective_rank=4.0) == []


def test_finding_names_all_that_is_needed():
    (found,) = judged(zero=0.25, examples={"zero": [3, 1]})
    assert (found.table, found.figure, found.value, found.bound) == ("items", "zero", 0.25, 0.01)
    assert found.tokens == ("token 3", "token 1")
    assert found.reason == (
        "the share of rows that are all zeros of table 'items' is 0.25: it must be at most 0.01 (`health.max_zero`). "
        "The rows of 'token 3', 'token 1'. Remedy: check that the tables were restored whole and for these "
        "vocabularies, and train again from the last push; or change the bound if this is intended."
    )


def test_figure_may_be_too_small():
    (found,) = judged(spread_change=0.2)
    assert "it must be at least 0.25 (`health.min_spread_change`)" in found.reason


def test_bound_of_null_is_none():
    assert judged(Health(max_zero=None), zero=1.0) == []


def test_one_or_two_rows_may_turn():
    assert judged(flipped=0.5, examples={"flipped": [1, 2]}) == []
    assert len(judged(flipped=0.5, examples={"flipped": [1, 2, 3]})) == 1


def test_few_tokens_may_all_be_new():
    assert judged(new_traffic=1.0, traffic=999) == []
    assert len(judged(new_traffic=1.0, traffic=1000)) == len(judged(frozen=1.0, traffic=1)) == 1


@pytest.mark.parametrize("given", [{"max_zero": 1.5}, {"action": "push"}, {"max_zeros": 0.1}, {"min_rank_change": 0}])
def test_wrong_bound_is_refused(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        Health.from_mapping(given)
