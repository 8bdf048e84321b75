"""Shows what each stage of a profiled run used."""

from __future__ import annotations

from pipelines.report.run_report import Figures, Report

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
