"""Draws charts as inline SVG, so that a report is a single file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, width: float = 4.6, height: float = 2.6
) -> str:
    """Draw an `<svg>` element with one line per series.

    Args:
      series: (x, y) points by name of the line; empty lines are left out.
      x_label: label of the x axis, whose ticks are whole numbers.
      width: width in inches, at 72 dots per inch.
      height: height in inches, at 72 dots per inch.

    Returns:
      The element without an XML header, for use in HTML.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for name, points in series.items():
        if points:
            axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 3 else "", linewidth=1.4)
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return _svg(figure, axes)


class Point(NamedTuple):
    """A point of `front_chart`.

    Attributes:
      x, y: its coordinates.
      noise: half of the length of its error bar.
      measured: whether it is drawn filled.
      front: whether it is on the front.
    """

    x: float
    y: float
    noise: float
    measured: bool
    front: bool


def front_chart(points: Sequence[Point], *, x_label: str, y_label: str) -> str:
    """Draw an `<svg>` element with points, error bars of the measured ones, and a line through the front.

    Args:
      points: the points.
      x_label: label of the x axis.
      y_label: label of the y axis.
    """
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for measured, name, face in ((False, "estimated", "none"), (True, "measured", "#2563eb")):
        chosen = [point for point in points if point.measured is measured]
        if chosen:
            x, y = [point.x for point in chosen], [point.y for point in chosen]
            axes.scatter(x, y, s=22, facecolors=face, edgecolors="#2563eb", label=name, zorder=3)
            if measured:
                noise = [point.noise for point in chosen]
                axes.errorbar(x, y, noise, fmt="none", ecolor="#98a2b3", linewidth=0.8, label="noise of seeds")
    front = sorted((point.x, point.y) for point in points if point.front)
    axes.plot(
        *zip(*front, strict=True),
        color="#d97706",
        linewidth=1.4,
        marker="o",
        markersize=9,
        fillstyle="none",
        label="front",
    )
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return _svg(figure, axes)


def _svg(figure: Figure, axes: Axes) -> str:
    """Finish the figure, and return it as an element without an XML header."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize="small")  # never over a line
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text is not drawn as paths, so it is small and searchable
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
