"""The report of a run: one screen, one self-contained HTML file, and the same figures as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from rich.console import Console
from rich.table import Table

from pipelines.baselines import METRICS
from pipelines.charts import line_chart
from pipelines.terminal import PLAIN, SafeConsole

__all__ = ["Report", "print_report", "save_report"]

_CURVES = {"loss": "loss (binary cross-entropy)", "auc": "AUC on the eval split"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of one run, as `report.json` holds them.

    Attributes:
      name: of the pipeline.
      finished: local time at which the run ended, ISO.
      seconds: wall time of all nodes.
      nodes: per node its name, state, seconds and execution id.
      push: `pushed`, `version`, `destination`, `reason`, and `query`, the lines of Python that ask the version.
      metric_names: the metrics of `quality`.
      quality: per scorer (the model first, then the baselines) its metrics on the eval split.
      eval_rows: how many rows those are.
      quality_note: what a reader of `quality` has to know.
      curves: per curve ("loss", "auc") and series its (step, value) points.
      training_note: steps, rows and rate in words.
      parity: per comparison its name, largest difference, tolerance and rows.
      tables: per table its name, rows, dim, combiner, optimizer, bytes and features.
      vocabularies: per vocabulary its size, distinct tokens, coverage, digest, its most frequent tokens, and how it
        came out of an earlier one (None without).
      drift: per feature the shares of rows and tokens that an earlier vocabulary does not have; empty without one.
      data: rows read, kept and set aside, in words.
      warm_start: what the tables started from: `remap.json` of the CheckpointLoader and the `step` of the earlier
        checkpoint; None where they started anew.
    """

    name: str
    finished: str
    seconds: float
    nodes: Sequence[Mapping[str, Any]]
    push: Mapping[str, Any]
    metric_names: Sequence[str] = METRICS
    quality: Sequence[Mapping[str, Any]]
    eval_rows: int
    quality_note: str
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
    training_note: str
    parity: Sequence[Mapping[str, Any]]
    tables: Sequence[Mapping[str, Any]]
    vocabularies: Sequence[Mapping[str, Any]]
    drift: Sequence[Mapping[str, Any]] = ()
    data: Mapping[str, Any]
    warm_start: Mapping[str, Any] | None = None


def save_report(report: Report, folder: str) -> str:
    """Write `report.html` and `report.json` into the folder; returns the path of the former."""
    os.makedirs(folder, exist_ok=True)
    _write(os.path.join(folder, "report.json"), json.dumps(dataclasses.asdict(report), indent=1))
    path = os.path.join(folder, "report.html")
    _write(path, _html(report))
    return path


def print_report(report: Report, html: str, console: Console | None = None) -> None:
    """Show the report on one screen.

    Args:
      report: the figures.
      html: path of the full report.
      console: where to print; standard output by default.
    """
    console = console or SafeConsole(highlight=False)
    console.print(_quality_table(report))
    console.print(_table_table(report))
    if report.parity:
        worst = max(row["difference"] for row in report.parity)
        rows = max(row["rows"] for row in report.parity)
        outputs = f"{len(report.parity)} outputs, {rows:,} rows"
        console.print(f"training equals serving: {outputs}, at most {worst:.3g} apart")
    if report.push["pushed"]:
        console.print(_pushed(report), **PLAIN)
        console.print(report.push["query"], **PLAIN)
    else:
        console.print(f"nothing was pushed: {report.push['reason']}", style="red", **PLAIN)
    console.print(f"report: {html}", **PLAIN)


def _pushed(report: Report) -> str:
    version, destination = report.push["version"], report.push["destination"]
    if any(node["node"] == "EmbeddingPusher" and node["state"] == "cached" for node in report.nodes):
        return f"version {version} is already served; nothing new was trained or pushed: {destination}"
    return f"pushed version {version} to {destination}"


def _write(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def _html(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    charts = [
        {"title": title, "svg": line_chart(report.curves[name], x_label="step")}
        for name, title in _CURVES.items()
        if any(report.curves.get(name, {}).values())
    ]
    html: str = environment.get_template("report.html.jinja").render(report=report, charts=charts)
    return html


def _quality_table(report: Report) -> Table:
    table = Table("on the eval split", *report.metric_names, title=f"{report.name}, {report.eval_rows:,} rows")
    for row in report.quality:
        figures = [row["metrics"].get(metric) for metric in report.metric_names]
        table.add_row(row["scorer"], *("" if figure is None else f"{figure:.4f}" for figure in figures))
    return table


def _table_table(report: Report) -> Table:
    table = Table("table", "rows", "dim", "optimizer", "bytes", "coverage of the vocabulary")
    coverage = {row["name"]: row["coverage"] for row in report.vocabularies}
    for row in report.tables:
        share = coverage.get(row["vocabulary"])
        size = row["table_bytes"] + row["slot_bytes"]
        words = "" if share is None else f"{share:.2%}"
        table.add_row(row["name"], f"{row['rows']:,}", str(row["dim"]), row["optimizer"], f"{size:,}", words)
    return table
