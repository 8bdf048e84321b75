"""Draws charts as inline SVG, so that a report is a single file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

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
