"""Shows the report of replayed requests: on the screen, and as one self-contained HTML file beside its JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from components.installed import is_installed
from pipelines.console.terminal import PLAIN, print_table, write_output
from pipelines.report.run_report import Figures

_SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")


def save_shadow(figures: Figures, folder: str) -> None:
    """Write `shadow.json` and, if the package of the page is installed, `shadow.html`.

    Args:
      figures: the report, as `ShadowReport.to_json` gives it.
      folder: an existing folder, which the option `--out` names.
    """
    write_output("--out", os.path.join(folder, "shadow.json"), json.dumps(figures, indent=1) + "\n")
    if is_installed("jinja2"):
        write_output("--out", os.path.join(folder, "shadow.html"), shadow_html(figures))


def shadow_html(figures: Figures) -> str:
    """Render the page; a browser loads nothing else for it."""
    import jinja2  # a package of the pipeline

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(number=number_text, size=_size)
    html: str = environment.get_template("shadow.html.jinja").render(report=figures, shown=_SHOWN)
    return html


def number_text(value: Any) -> str:
    """Format a figure with four digits; None as a dash."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"


def _size(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def print_shadow(figures: Figures, console: Console) -> None:
    """Print the outcome, the differences by output, and what the versions cost."""
    requests, refused = figures["requests"], figures["refused"]
    console.print(f"{requests['replayed']:,} requests; both versions answered {requests['rows']:,} rows", **PLAIN)
    for kind, count in requests["not_replayed"].items():
        console.print(f"not replayed: {count:,} {kind}", **PLAIN)
    for model, count in requests["other_models"].items():
        console.print(f"not replayed: {count:,} for model {model!r}", **PLAIN)
    if any(refused.values()):
        rows = f"{refused['new']:,} by the new version alone, {refused['old']:,} by the old one alone"
        console.print(f"refused rows: {rows}, {refused['both']:,} by both", **PLAIN)
    print_table(console, "difference of answers", [_output_row(*output) for output in figures["outputs"].items()])
    print_table(console, "cost", [_cost_row(name, figures[name]) for name in ("old", "new")])
    for check in figures["checks"]:
        outcome = "met" if check["met"] else "MISSED"
        console.print(f"{outcome}: {check['name']} {number_text(check['value'])}, {check['bound']}", **PLAIN)
    if figures["reason"]:
        console.print(figures["reason"], **PLAIN)


def _output_row(name: str, figures: Mapping[str, Any]) -> dict[str, str]:
    overlap = figures.get("overlap", {})
    return {
        "output": name,
        "rows": f"{figures['rows']:,}",
        **{key: number_text(figures[key]) for key in _SHOWN},
        "overlap": ", ".join(f"{number_text(share)} at {size}" for size, share in overlap.items()) or "-",
    }


def _cost_row(name: str, figures: Mapping[str, Any]) -> dict[str, str]:
    latency = figures["latency_ms"]
    return {
        "version": name,
        "deltas": f"{figures.get('deltas', 0):,}",
        **{f"{key} ms": number_text(latency[key]) for key in ("p50", "p95", "p99")},
        "peak": _size(figures["peak_bytes"]),
        "loaded": _size(figures["loaded_bytes"]),
        "load s": number_text(figures["load_seconds"]),
    }
