"""Draws charts as inline SVG, so that a report is a single file; the page's style sheet gives the colours."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape

import matplotlib
from cycler import cycler
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from embedding_core.health import Health, bound_of
from pipelines.report.run_report import Figures

_INCHES, _ROW = (4.6, 2.4), 0.17  # width, height without a legend, and height of its rows, at 72 dots per inch
_LEGEND = 60  # characters in a row of the legend
# Colours that stand for variables of page.css, which has them for light and dark.
_COLOURS = {f"#00000{at}": f"var(--s{at})" for at in range(1, 9)}
_DASHES = ("-", "--", ":", "-.")
_TEXT, _GRID = "#00000a", "#00000b"
_STYLE = {
    "svg.fonttype": "none",  # text is not drawn as paths, so it is small and searchable
    # Lines also differ in dashes, for colour-blind readers; after eight lines the dash pattern shifts.
    "axes.prop_cycle": cycler(color=list(_COLOURS) * 4)
    + cycler(linestyle=[_DASHES[(at + at // 8) % 4] for at in range(4 * 8)]),
    "axes.edgecolor": _GRID,
    "grid.color": _GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _TEXT),
}


def line_chart(series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str) -> str:
    """Draw an `<svg>` element with one line per series.

    Args:
      series: (x, y) points by name of the line; empty lines, and points that are not finite, are left out.
      x_label: label of the x axis, whose ticks are whole numbers.

    Returns:
      The element for use in HTML; empty without points.
    """
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()}
    lines = {name: points for name, points in finite.items() if points}
    if not lines:
        return ""
    columns = max(1, _LEGEND // (max(map(len, lines)) + 5))
    size = _INCHES[0], _INCHES[1] + _ROW * math.ceil(len(lines) / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        drawn = [
            axes.plot(*zip(*points, strict=True), marker="." if len(points) < 3 else "", linewidth=1.4)[0]
            for points in lines.values()
        ]
        axes.set_xlabel(x_label)
        whole = all(float(y).is_integer() for points in lines.values() for _, y in points)
        for axis, integer in ((axes.xaxis, True), (axes.yaxis, whole)):
            axis.set_major_locator(MaxNLocator("auto", integer=integer, min_n_ticks=1, steps=(1, 2, 5, 10)))
            axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid()
        # Never over a line. The names are given here, because a line's own label is left out if it starts with "_".
        figure.legend(drawn, list(lines), loc="outside upper left", ncols=columns, frameon=False, fontsize="small")
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    # Remove ids: they would be duplicates on a page with several charts.
    svg = re.sub('(?<=<g) id="[^"]*"', "", text.getvalue())
    svg = re.sub("font-family: [^;]*; ", "", svg)  # the page has one
    for colour, variable in {**_COLOURS, _TEXT: "var(--dim)", _GRID: "var(--line)"}.items():
        svg = svg.replace(colour, variable)
    label = escape(f"{', '.join(lines)} by {x_label}")
    return re.sub(r"^.*?<svg", f'<svg role="img" aria-label="{label}"', svg, count=1, flags=re.DOTALL)


def breakable(name: str) -> Markup:
    """Let a browser break a name after each underscore, so that ten columns of a table fit on a page."""
    return Markup("_<wbr>").join(name.split("_"))


# Draws the figures of TableHealth for the reports of a run and of a lineage.

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
                table: {"value": figures["values"].get(name), "bad": (table, name) in bad}
                for table, figures in health["tables"].items()
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
      line: figures of the tables of each run, by name of the table; empty if they were not measured.
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
