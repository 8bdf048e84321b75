"""Draws charts as inline SVG, so that a report is a single file; the page's style sheet gives the colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from embedding_core.health import Health, bound_of
from pipelines.report.run_report import Figures

_WIDTH, _HEIGHT, _RIGHT, _BOTTOM = 480, 190, 14, 40  # the height is that of the plot
_COLOURS, _DASHES = 8, ("", "7 3", "2 3", "9 3 2 3")  # classes s1 to s8 of page.css; a dash for who sees no colour
_TICKS, _CHARACTER = 5, 7.2  # most steps between ticks; width of a character of the legend


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
    legend, top = _legend(lines)
    xs, ys = zip(*itertools.chain(*lines.values()), strict=True)
    bottom, right = top + _HEIGHT, _WIDTH - _RIGHT
    up = _scale(ys, bottom, top)
    left = 12 + _CHARACTER * max(len(text) for _, text in up.ticks)
    across = _scale(xs, left, right, whole=True)
    drawn = [f'<line x1="{left:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>' for y, _ in up.ticks]
    drawn += [_text(left - 6, y + 4, text, "end") for y, text in up.ticks]
    drawn += [_text(x, bottom + 16, text, "middle") for x, text in across.ticks]
    drawn.append(_text((left + right) / 2, bottom + 34, x_label, "middle"))
    for at, points in enumerate(lines.values()):
        places = [f"{across.place(x):.1f} {up.place(y):.1f}" for x, y in points]
        drawn.append(f'<path d="M{" L".join(places)}" {_stroke(at)}/>')
        if len(points) < 3:  # a dot is the path of a round cap
            drawn += [f'<path d="M{place} h0" {_stroke(at, 7)}/>' for place in places]
    label = escape(f"{', '.join(lines)} by {x_label}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" width="{_WIDTH}" height="{bottom + _BOTTOM}" role="img" '
        f'aria-label="{label}">{"".join([*legend, *drawn])}</svg>'
    )


class _Scale(NamedTuple):
    """An axis: its ends in data and on the drawing, and the places and texts of its ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]] = ()

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _scale(values: Sequence[float], start: float, end: float, *, whole: bool = False) -> _Scale:
    """Choose an axis for the values; if they are whole numbers, its ticks are too, and none is beyond them."""
    least, most = min(values), max(values)
    pad = 0 if whole else (most - least) / 20
    if least == most:
        pad = 1 if whole else abs(least) / 10 or 1
    axis = _Scale(least - pad, most + pad, start, end)
    least_step = (axis.high - axis.low) / _TICKS
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least_step * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    low, high = (least, most) if whole else (axis.low, axis.high)
    ticks = [step * at for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    plain = digits < 5 and abs(high) < 1e7
    texts = [f"{tick:,.{digits}f}" if plain else f"{tick:.6g}" for tick in ticks]
    return axis._replace(ticks=[(axis.place(tick), text) for tick, text in zip(ticks, texts, strict=True)])


def _legend(names: Iterable[str]) -> tuple[list[str], float]:
    """Draw the names with their lines, in as many rows as they need; return the height of the rows too."""
    drawn, x, y = [], 0.0, 12.0
    for at, name in enumerate(names):
        width = 34 + _CHARACTER * len(name)
        if x and x + width > _WIDTH:
            x, y = 0.0, y + 17
        drawn += [f'<path d="M{x:.1f} {y - 4} h20" {_stroke(at)}/>', _text(x + 24, y, name)]
        x += width + 8
    return drawn, y + 12


def _stroke(at: int, width: float = 1.8) -> str:
    dash = _DASHES[(at + at // _COLOURS) % len(_DASHES)]
    return f'class="s{at % _COLOURS + 1}" stroke-width="{width}"' + (
        f' stroke-dasharray="{dash}"' if dash and width < 7 else ' stroke-linecap="round"'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


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
