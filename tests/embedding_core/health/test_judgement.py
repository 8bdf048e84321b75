"""Tests what is beyond a bound, and the sentence that says so."""

import pytest

from embedding_core.health import Health, TableFigures, judge_table
from embedding_core.health.judgement import FIGURES, bound_of

pytestmark = pytest.mark.light


def judged(health=None, examples=None, **values):
    figures = TableFigures(
        table="items",
        rows=50,
        dim=8,
        has_base=True,
        values=values,
        curves={},
        examples=examples or {},
    )
    return judge_table(figures, health or Health(), lambda row: f"token {row}")


def test_every_bound_belongs_to_a_figure():
    keys = [bound_of(Health(), figure)[0] for figure in FIGURES]
    assert sorted(keys) == sorted(set(Health.model_fields) - {"action"})


def test_healthy_figures_find_nothing():
    assert judged(zero=0.0, frozen=0.1, common_direction=0.9) == []


def test_finding_names_all_that_is_needed():
    (found,) = judged(zero=0.25, examples={"zero": [3, 1]})
    assert (found.table, found.figure, found.value, found.bound) == ("items", "zero", 0.25, 0.01)
    assert found.tokens == ("token 3", "token 1")
    assert found.reason == (
        "the share of rows that are all zeros of table 'items' is 0.25: it must be at most 0.01 (`health.max_zero`). "
        "The rows of 'token 3', 'token 1'. Remedy: check that the tables were restored whole and for these "
        "vocabularies, and train again from the last push; or change the bound if this is intended."
    )


def test_bound_of_null_is_none():
    assert judged(Health(max_zero=None), zero=1.0) == []


def test_one_or_two_rows_may_stay_as_they_are():
    assert judged(frozen_rows=0.5, examples={"frozen_rows": [1, 2]}) == []
    assert len(judged(frozen_rows=0.5, examples={"frozen_rows": [1, 2, 3]})) == 1
