"""Tests the figures of TableHealth in the reports of a run and of a lineage."""

import pytest

from embedding_core.health import Health
from pipelines.report.charts import health_charts, health_rows, health_trends

pytestmark = pytest.mark.light

CURVES = {"norms": [0.1, 0.5, 1.0], "norms of the base": [0.1, 0.4, 0.9]}
HEALTH = {
    "action": "refuse",
    "tables": {
        "items": {"values": {"zero": 0.2, "norm_median": 1.8}, "curves": CURVES},
        "shops": {"values": {"zero": 0.0}, "curves": {}},
    },
    "findings": [{"table": "items", "figure": "zero", "reason": "20% of table 'items' are zeros."}],
}


def test_rows_have_the_bound_and_mark_what_is_beyond_it():
    zero, norm = health_rows(HEALTH, Health(max_zero=0.1))
    assert (zero["figure"], zero["bound"]) == ("zero", "at most 0.1")
    assert zero["cells"] == {"items": {"value": 0.2, "bad": True}, "shops": {"value": 0.0, "bad": False}}
    assert (norm["figure"], norm["bound"]) == ("norm median", "")
    assert norm["cells"]["shops"] == {"value": None, "bad": False}


def test_charts_are_of_tables_with_curves():
    charts = health_charts(HEALTH)
    assert [chart["title"] for chart in charts] == ["items: norm of the rows"]
    assert "norms of the base" in charts[0]["svg"]


def test_trends_have_a_point_for_each_run_that_was_measured():
    line = [{"items": {"norm_median": 1.0}}, {}, {"items": {"norm_median": 2.0, "move_unseen": 0.1}}]
    trends = health_trends(line)
    assert trends["median norm of the rows, by table"] == {"items": [(1, 1.0), (3, 2.0)]}
    assert trends["median move of the rows of absent tokens, over their norm"] == {"items": [(3, 0.1)]}
