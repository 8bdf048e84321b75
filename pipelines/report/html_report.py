"""Renders the report of a run as one self-contained HTML file, and saves it with the same figures as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape

from embedding_core.health import Health
from embedding_core.rooms import hooks
from embedding_core.storage import free_name, whole_file
from pipelines.pipeline.gates import GatePage, gates
from pipelines.report.charts import breakable, health_charts, health_rows, line_chart
from pipelines.report.run_report import Figures, Report, flatten
from pipelines.report.verdict import comparison, figure_text, overfitting, verdict

# Shows what each stage of a profiled run used.

_SUMS = ("cpu_seconds", "wall_seconds", "read_bytes", "written_bytes")


def profile_rows(report: Report) -> list[dict[str, str]]:
    """Make the rows of the table: a row per stage, then the whole run; empty if the run was not profiled."""
    if not report.profile:
        return []
    sums = {name: _sum([stage[name] for stage in report.profile]) for name in _SUMS}
    peak = max(stage["peak_bytes"] for stage in report.profile)
    return [_row(stage) for stage in (*report.profile, {"stage": "whole run", "peak_bytes": peak, **sums})]


def _sum(values: list[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) if given else None


def _row(stage: Figures) -> dict[str, str]:
    return {
        "stage": stage["stage"],
        "CPU s": f"{stage['cpu_seconds']:.1f}",
        "wall s": f"{stage['wall_seconds']:.1f}",
        "peak MB": _megabytes(stage["peak_bytes"]),
        "read MB": _megabytes(stage["read_bytes"]),
        "written MB": _megabytes(stage["written_bytes"]),
    }


def _megabytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.1f}"


_RANKING = "recall"  # its points are (K, Recall@K), those of other curves (step, value)
_CURVES = {"loss": "Loss by step", "auc": "AUC by step", _RANKING: "Recall@K by K"}


def parity_line(report: Report) -> str:
    """Summarize in one line how far training and serving differ."""
    worst = max(row["difference"] for row in report.parity)
    rows = max(row["rows"] for row in report.parity)
    return f"training equals serving: {len(report.parity)} outputs, {rows:,} rows, at most {worst:.3g} apart"


def save_report(report: Report, folder: str, reports: str | None = None) -> str:
    """Write `report.html` and `report.json` into the folder, and a copy into the folder of all reports.

    Args:
      report: the figures.
      folder: folder of the last run's report.
      reports: folder of all reports: the copy is in `<version>`, or in `refused-<time>` if nothing was pushed. None
        makes no copy. A version keeps the report of the run that pushed it, even if a later run takes the version from
        the cache.

    Returns:
      The path of `report.html` in the folder; pages of gates are beside it.
    """
    pages = _gate_pages(report)
    html = _html(report, pages)
    text = json.dumps(dataclasses.asdict(report), indent=1)
    kept = None if reports is None else _kept_in(report, reports)
    for place in (folder,) if kept is None else (kept, folder):
        os.makedirs(place, exist_ok=True)
        _write(os.path.join(place, "report.html"), html)
        _write(os.path.join(place, "report.json"), text)
        for page in pages:
            if page.file:
                _write(os.path.join(place, page.file), page.html)
    return os.path.join(folder, "report.html")


def _kept_in(report: Report, reports: str) -> str | None:
    """Return the folder for the copy; None if the folder already has the report of the run that pushed the version."""
    moment = report.finished.replace(":", "").replace("-", "")
    if not report.push.pushed:  # two runs may end in one second, or in one hour that a clock shows twice
        return free_name(os.path.join(reports, f"refused-{moment}"))
    folder = os.path.join(reports, report.push.version)
    return folder if not report.push.from_cache or not os.path.exists(os.path.join(folder, "report.json")) else None


def _write(path: str, text: str) -> None:
    with whole_file(path) as half, open(half, "w", encoding="utf-8") as file:
        file.write(text)


def _gate_pages(report: Report) -> list[GatePage]:
    pages = [gate.page(report.gates[gate.node]) for gate in gates() if gate.node in report.gates]
    return [page for page in pages if page is not None]


def comparison_html(
    reports: Sequence[Figures],
    names: Sequence[str],
    metrics: Sequence[Figures],
    settings: Mapping[str, Sequence[Any]],
    notes: Sequence[str],
) -> str:
    """Render a page that compares two runs, with the curves of both in each chart.

    Args:
      reports: figures of both runs, as `report.json` has them.
      names: their names.
      metrics: rows of the table of metrics, all with the same columns.
      settings: values of the settings that differ.
      notes: sentences above the tables.
    """
    curves = [report.get("curves", {}) for report in reports]
    charts = []
    for curve in dict.fromkeys([*curves[0], *curves[1]]):
        series = {
            f"{part} {name}": points
            for name, of_run in zip(names, curves, strict=True)
            for part, points in of_run.get(curve, {}).items()
        }
        if any(series.values()):
            svg = line_chart(series, x_label="K" if curve == "recall" else "step")
            charts.append({"title": "Recall@K" if curve == "recall" else _CURVES.get(curve, curve), "svg": svg})
    html: str = (
        _environment()
        .get_template("compare.html.jinja")
        .render(
            name=reports[1].get("name", ""), names=names, metrics=metrics, settings=settings, notes=notes, charts=charts
        )
    )
    return html


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines"), autoescape=True, undefined=jinja2.StrictUndefined
    )


def _html(report: Report, pages: Sequence[GatePage]) -> str:
    environment = _environment()
    environment.filters.update(share=_share, figure=figure_text, breakable=breakable, marked=_marked)
    titles = {**{name: name for name in report.curves}, **_CURVES}
    charts = [
        {"title": title, "svg": line_chart(report.curves[name], x_label="K" if name == _RANKING else "step")}
        for name, title in titles.items()
        if any(report.curves.get(name, {}).values())
    ]
    metrics, scores = comparison(report)
    html: str = environment.get_template("report.html.jinja").render(
        report=report,
        sections=[
            room.html(report.further[room.NAME], environment)
            for room in hooks("pipelines", "report_section")
            if room.NAME in report.further
        ],
        verdict=verdict(report),
        metrics=metrics,
        scores=scores,
        charts=charts,
        overfitting=overfitting(report),
        gate_pages=pages,
        health=None if report.health is None else _health(report.health, report.configuration),
        settings=dict(flatten(report.configuration)),
        parity=parity_line(report) if report.parity else "",
        profile=profile_rows(report),
    )
    return html


def _health(health: Figures, configuration: Figures) -> Figures:
    bounds = Health.from_mapping(configuration.get("health") or {})
    return {
        "tables": list(health["tables"]),
        "rows": health_rows(health, bounds),
        "findings": [finding["reason"] for finding in health["findings"]],
        "charts": health_charts(health),
    }


def _marked(text: str) -> Markup:
    """Escape a sentence, and show what is in backquotes as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
