"""Prints the main figures of a report to the console, on about one screen."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from embedding_core.quality_rules import NOTHING_LEFT_OUT
from pipelines.console.terminal import PLAIN, SafeConsole, print_table
from pipelines.report.html_report import parity_line, profile_rows
from pipelines.report.run_report import Figures, Report, RunResult
from pipelines.report.verdict import figure_text, headline


def print_report(report: Report, html: str, console: Console | None = None) -> None:
    """Print the main figures of a report.

    Args:
      report: the figures.
      html: path of the full report.
      console: the console to print to; standard output by default.
    """
    console = console or SafeConsole(highlight=False)
    print_table(console, f"{report.name}, {report.eval_rows:,} rows of the eval split", _quality_rows(report))
    if report.quality_note:
        console.print(report.quality_note, **PLAIN)
    for warning in report.quality_warnings:
        console.print(f"warning: {warning}", style="yellow", **PLAIN)
    print_table(console, "evaluation", _evaluation_rows(report))
    if report.retrieval is not None:
        console.print(f"retrieval: {report.retrieval_note}", **PLAIN)
    print_table(console, "tables", _table_rows(report))
    if report.changed:
        console.print(f"changed by --set: {', '.join(report.changed)}", **PLAIN)
    for note in report.notes:
        console.print(note, **PLAIN)
    if report.health is not None and report.health["action"] == "warn":
        for finding in report.health["findings"]:
            console.print(f"warning: {finding['reason']}", style="yellow", **PLAIN)
    if report.parity:
        console.print(parity_line(report), **PLAIN)
    print_table(console, "time and memory", profile_rows(report))
    console.print(f"the nodes took {report.took}", **PLAIN)
    print_outcome(report.push, console)
    if report.query:
        console.print(report.query, **PLAIN)
    console.print(f"report: {html}", **PLAIN)


def print_summary(report: Report, html: str, console: Console | None = None) -> None:
    """Print three lines: what was pushed or why not, the main metric, and the path of the full report."""
    console = console or SafeConsole(highlight=False)
    print_outcome(report.push, console)
    console.print(headline(report), **PLAIN)
    console.print(f"report: {html}", **PLAIN)


def print_outcome(result: RunResult, console: Console | None = None) -> None:
    """Print whether a run pushed a version, which, or why not; to standard output by default."""
    console = console or SafeConsole(highlight=False)
    console.print(result.outcome, style=None if result.pushed else "red", **PLAIN)


def _quality_rows(report: Report) -> list[dict[str, str]]:
    return [
        {"scorer": row["scorer"], **{name: figure_text(row["metrics"].get(name)) for name in report.metric_names}}
        for row in report.quality
    ]


def _evaluation_rows(report: Report) -> list[dict[str, str]]:
    retrieval: Figures = report.retrieval or {}
    popularity: Mapping[str, float] = retrieval.get("popularity", {})
    with_all: Mapping[str, float] = retrieval.get("popularity_nothing_left_out", {})
    rows = []
    for row in report.evaluation:
        name, bound = row["metric"], row["bound"] or _beside(popularity.get(row["metric"]))
        rows.append(_evaluation_row(name, row["value"], row["outcome"], bound))
        if "nothing_left_out" in row:  # in a row: at 80 columns, another column would push out the bounds
            rows.append(
                _evaluation_row(name + NOTHING_LEFT_OUT, row["nothing_left_out"], "", _beside(with_all.get(name)))
            )
    return rows


def _evaluation_row(metric: str, value: float | None, outcome: str, bound: str) -> dict[str, str]:
    return {"metric": metric, "value": figure_text(value), "outcome": outcome, "bound": bound}


def _beside(popularity: float | None) -> str:
    return "" if popularity is None else f"(popularity {popularity:.4f})"


def _table_rows(report: Report) -> list[dict[str, str]]:
    coverage = {row["name"]: row["coverage"] for row in report.vocabularies}
    return [
        {
            "table": row["name"],
            "rows": f"{row['rows']:,}",
            "dim": str(row["dim"]),
            "bytes": f"{row['table_bytes'] + row['slot_bytes']:,}",
            "coverage": "" if row["vocabulary"] not in coverage else f"{coverage[row['vocabulary']]:.2%}",
            "optimizer": row["optimizer"],
        }
        for row in report.tables
    ]
