"""Draws the figures of TableHealth for the reports of a run and of a lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedding_core.health import Health, bound_of
from pipelines.report.charts import line_chart
from pipelines.report.run_report import Figures

TRENDS = {
    "norm_median": "median norm of the rows, by table",
    "move_unseen": "median move of the rows of absent tokens, over their norm",
}
"""The figures that a lineage page draws from run to run, with the titles of the charts."""


def health_rows(health: Figures, bounds: Health) -> list[Figures]:
    """Return a row for each figure: `figure`, `bound` in words, and `cells`: by table `value` and `bad`."""
    bad = {(finding["table"], finding["figure"]) for finding in health["findings"]}
    names = dict.fromkeys(name for table in health["tables"].values() for name in table["values"])
    return [
        {
            "figure": name.replace("_", " "),
            "bound": _bound(name, bounds),
            "cells": {
                table: {"value": one["values"].get(name), "bad": (table, name) in bad}
                for table, one in health["tables"].items()
            },
        }
        for name in names
    ]


def _bound(figure: str, bounds: Health) -> str:
    bound = bound_of(bounds, figure)[1]
    return "" if bound is None else f"at most {bound:g}"


def health_charts(health: Figures) -> list[dict[str, str]]:
    """Draw for each table the quantiles of its rows' norms, beside those of the base."""
    charts = []
    for name, table in health["tables"].items():
        curves = {key: table["curves"][key] for key in ("norms", "norms of the base") if key in table["curves"]}
        if any(curves.values()):
            points = {key: [(5 * at, value) for at, value in enumerate(curve)] for key, curve in curves.items()}
            charts.append({"title": f"{name}: norm of the rows", "svg": line_chart(points, x_label="% of the rows")})
    return charts


def health_trends(line: Sequence[Mapping[str, Figures]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the points of the charts of `TRENDS`, by title and table; a run without figures has none.

    Args:
      line: of each run, the figures of each table by name; empty if they were not measured.
    """
    trends: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for figure, title in TRENDS.items():
        series: dict[str, list[tuple[float, float]]] = {}
        for run, tables in enumerate(line, start=1):
            for table, values in tables.items():
                if figure in values:
                    series.setdefault(table, []).append((run, values[figure]))
        trends[title] = series
    return trends
