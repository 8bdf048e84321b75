"""Renders a lineage as one HTML file: a drawing with a box per artifact, and the details of each artifact."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import jinja2

from pipelines.console.output_files import write_output
from pipelines.lineage.ancestors import Generation
from pipelines.lineage.graph import Node
from pipelines.report.charts import line_chart
from pipelines.report.health_figures import health_trends
from pipelines.report.lineage_figures import Page
from pipelines.report.run_report import Figures

_BOX, _GAP, _STEP, _LINE = (180, 46), 18, 224, 1.4
_COLOURS = {
    "PushedModel": "#067647",
    "Model": "#2563eb",
    "components.EmbeddingCheckpoint": "#7c3aed",
    "Examples": "#d97706",
}
_HIDDEN = {"content", "data", "health", "ingest", "parity", "remap", "vocabularies"}  # shown as tables, or too long


def save_page(page: Page, path: str | os.PathLike[str], title: str) -> None:
    """Write the page into a file; see `write_output` for errors."""
    write_output("--html", path, lineage_html(page, title))


def lineage_html(page: Page, title: str) -> str:
    """Render the page as one self-contained file: a browser loads nothing else for it.

    Args:
      page: its figures.
      title: title of the page.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(figure=_figure, share=_share, size=_size, change=_change)
    html: str = environment.get_template("lineage.html.jinja").render(
        page=page,
        title=title,
        parts=[_part(generation) for generation in reversed(page.line)],
        charts=_charts(page.line),
    )
    return html


def _part(generation: Generation) -> Figures:
    """Show one generation: its drawing, with the inputs from previous ones on the left, and its artifacts."""
    sources = {number: dataclasses.replace(node, inputs=()) for number, node in generation.sources.items()}
    return {
        "version": generation.version,
        "drawing": _drawing({**generation.nodes, **sources}),
        "artifacts": [_artifact(node) for node in generation.nodes.values()],
    }


def _charts(line: Sequence[Generation]) -> list[dict[str, str]]:
    """Draw what changed from run to run; nothing for a single run."""
    if len(line) < 2:
        return []
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {"AUC on the eval split": {}, "tokens with a row": {}}
    auc, sizes = charts.values()
    drift = charts["% of rows with a token new to the model"] = {}
    for run, one in enumerate(line, start=1):
        auc.setdefault("AUC", []).extend([] if one.auc is None else [(run, one.auc)])
        for name, size in one.sizes.items():
            sizes.setdefault(name, []).append((run, size))
        for name, share in one.drift.items():
            drift.setdefault(name, []).append((run, 100 * share))
    charts |= health_trends([one.health for one in line])
    return [
        {"title": title, "svg": line_chart(series, x_label="run")}
        for title, series in charts.items()
        if any(series.values())
    ]


def _artifact(node: Node) -> Figures:
    """Show one artifact."""
    facts = {key: value for key, value in sorted(node.facts.items()) if key not in _HIDDEN and value not in ("", None)}
    return {
        **{field.name: getattr(node, field.name) for field in dataclasses.fields(node)},
        "shown": {**_spans(node), **{key: _figure(value) for key, value in facts.items()}},
        "content": node.facts.get("content"),
        "ingest": node.facts.get("ingest"),
    }


def _spans(node: Node) -> dict[str, str]:
    """Return the spans that Examples were read from; empty without spans."""
    pieces = (node.facts.get("data") or {}).get("pieces", ())
    spans = [str(piece["span"]) for piece in pieces if piece["span"] is not None]
    if not spans:
        return {}
    return {"spans read": spans[0] if len(spans) == 1 else f"{spans[0]} to {spans[-1]}, {len(spans)} of them"}


def _figure(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_figure(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_figure, value))
    return str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _change(values: Sequence[Any]) -> str:
    """Format the difference of two numbers, with its sign."""
    now, then = values
    if not isinstance(now, int | float) or not isinstance(then, int | float):
        return "-"
    return f"{now - then:+,d}" if isinstance(now, int) and isinstance(then, int) else f"{now - then:+.4g}"


def _drawing(nodes: Mapping[int, Node]) -> str:
    """Draw the graph as an SVG element: sources on the left, what was made of them to the right."""
    corners = _corners(nodes)
    width = max(x for x, _ in corners.values()) + _BOX[0] + 2
    height = max(y for _, y in corners.values()) + _BOX[1] + 2
    lines = [
        _edge(corners[source], corners[node.id])
        for node in nodes.values()
        for source in node.inputs
        if source in corners
    ]
    boxes = [_box(node, *corners[node.id]) for node in nodes.values()]
    return (
        f'<svg viewBox="-1 -1 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="lineage">{"".join(lines)}{"".join(boxes)}</svg>'
    )


def _corners(nodes: Mapping[int, Node]) -> dict[int, tuple[int, int]]:
    """Compute the corner of each box; its column is the length of the longest path to it from a source."""
    depths: dict[int, int] = {}

    def depth(node: int) -> int:
        if node not in depths:
            depths[node] = 1 + max((depth(one) for one in nodes[node].inputs if one in nodes), default=-1)
        return depths[node]

    columns: dict[int, list[int]] = {}
    for node in sorted(nodes):
        columns.setdefault(depth(node), []).append(node)
    tallest = max(map(len, columns.values()))
    pitch = _BOX[1] + _GAP
    return {
        node: (column * _STEP, (tallest - len(members)) * pitch // 2 + row * pitch)
        for column, members in columns.items()
        for row, node in enumerate(members)
    }


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX[0], start[1] + _BOX[1] // 2, end[0], end[1] + _BOX[1] // 2
    bend = max(24, (x2 - x1) // 2)
    curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{curve}" fill="none" stroke="#98a2b3" stroke-width="{_LINE}"/>'


def _box(node: Node, x: int, y: int) -> str:
    colour = _COLOURS.get(node.type, "#475467")
    kind = escape(node.type.rpartition(".")[2])
    maker = escape("not recorded" if node.producer is None else node.producer.node)
    return (
        f'<a href="#artifact-{node.id}"><title>{escape(node.uri)}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6" fill="#fff" stroke="{colour}" '
        f'stroke-width="{_LINE}"/><text x="{x + 10}" y="{y + 19}" fill="{colour}" class="kind">{kind}</text>'
        f'<text x="{x + 10}" y="{y + 36}">#{node.id} · {maker}</text></a>'
    )
