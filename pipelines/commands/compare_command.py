"""Defines `tfx-embeddings compare`, which shows what changed between two versions, and whether it is better."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from components.installed import require_package
from embedding_core.errors import ConfigError, DataError, nearest
from embedding_core.storage import read_json
from pipelines.commands.shared_options import AsJson, Override, refuse_beside
from pipelines.console.terminal import PLAIN, SafeConsole, check_output, echo, print_table, write_output
from pipelines.local.work_dir import REPORTS
from pipelines.report.run_report import Figures, flatten

_DROPPED = (
    "curves",
    "nodes",
    "columns",
    "finished",
    "parity",
    "gates",
    "query",
)  # they differ in every run, or are too many to compare by eye
_LINES, _METRICS, _WIDTH = 10, 4, 100  # of what is printed without `--all`

_Name = Annotated[
    str,
    typer.Argument(metavar="VERSION", help="Number of a version, or name of a refused run.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(compare)


def compare(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="The YAML file of the pipeline, or its work_dir.", show_default=False),
    ],
    first: _Name,
    second: _Name,
    everything: Annotated[bool, typer.Option("--all", help="Print every setting and figure that differs.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the curves of both instead of printing.")
    ] = None,
    as_json: AsJson = False,
    overrides: Override = None,
) -> None:
    """Print in ten lines what changed between two versions, by how much, and whether it is better or worse.

    `--json` prints all that differs. Exit code 1: a version has no report.
    """
    if html is not None:
        refuse_beside("--html", json=as_json or None)
        require_package("jinja2", "`compare --html` needs jinja2 and matplotlib, which come with TFX")
        check_output("--html", html)
    folder = _reports_of(config, overrides or [])
    names = (first, second)
    reports = [_load(folder, name) for name in names]
    settings, figures = (_differences(*map(function, reports)) for function in (_settings, _figures))
    console = SafeConsole(highlight=False)
    if html is not None:
        from pipelines.report.html_report import comparison_html

        notes = [*_other_rows(reports), *_outcomes(reports, names)]
        write_output("--html", html, comparison_html(reports, names, _metrics(reports, names), settings, notes))
        echo(f"wrote {html}")
    elif as_json:
        echo(json.dumps({"settings": settings, "figures": figures}, indent=1))
    elif everything:
        for part, rows in (("settings", settings), ("figures", figures)):
            console.print(f"{part}:" + ("" if rows else " no differences"), **PLAIN)
            for line in _lines(rows, *names):
                console.print(line, **PLAIN)
    else:
        _print_summary(console, reports, names, settings)
        rest = f"{len(settings):,} settings and {len(figures):,} figures differ"
        console.print(f"{rest}: `--all` prints them" if settings or figures else "nothing differs", **PLAIN)


def _print_summary(
    console: SafeConsole, reports: Sequence[Figures], names: Sequence[str], settings: Mapping[str, list[Any]]
) -> None:
    """Print the main metrics, warnings and as many settings as fit, on one line less than `_LINES`."""
    metrics = _metrics(reports, names)[:_METRICS]
    print_table(console, "", metrics)
    lines = [*_other_rows(reports), *_outcomes(reports, names)]
    lines += [f"{key}: {_shown(old)} -> {_shown(new)}" for key, (old, new) in settings.items()]
    for line in lines[: _LINES - 1 - (len(metrics) + 1 if metrics else 0)]:
        console.print(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}...", **PLAIN)


def _reports_of(config: Path, overrides: list[str]) -> Path:
    if config.is_dir() and overrides:
        rule = "is a work_dir: leave it out, or give the YAML file."
        raise ConfigError(f"`--set` is given, but {os.fspath(config)!r} {rule}")
    if config.is_dir():
        return config / REPORTS
    from pipelines.config import load_config

    return Path(load_config(config, overrides).work_dir) / REPORTS


def _load(folder: Path, name: str) -> Figures:
    path = folder / name / "report.json"
    known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if name not in known:
        remedy = nearest(name, known) if known else "run the pipeline first."
        raise DataError(f"version {name!r} has no report in {os.fspath(folder)!r}: {remedy}")
    try:
        return _checked(read_json(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{os.fspath(path)!r} is not a readable report ({error}): run the pipeline again.") from error


def _checked(report: Any) -> Figures:
    """Return the report; raise ValueError if it does not have the parts that are compared."""
    parts = [report.get(key) for key in ("push", "configuration")] if isinstance(report, dict) else [None]
    if not all(isinstance(part, dict) for part in parts) or not {"pushed", "reason"} <= report["push"].keys():
        raise ValueError("it is not a report of a run")
    return dict(report)


def _metrics(reports: Sequence[Figures], names: Sequence[str]) -> list[dict[str, str]]:
    """Return the metrics of both models of which higher or lower values are better.

    Those with a bound are first, then the rankings of a retrieval model, then the others.
    """
    from pipelines.config.metrics import direction_of

    evaluations = [
        sorted(report.get("evaluation", ()), key=lambda row: (not row["bound"], "@" not in row["metric"]))
        for report in reports
    ]
    old, new = ({row["metric"]: row["value"] for row in evaluation} for evaluation in evaluations)
    rows = []
    for metric, value in new.items():
        before, direction = old.get(metric), direction_of(metric.rpartition("/")[2])
        if before is None or value is None or not direction:
            continue
        better = (value - before) * direction
        rows.append(
            {
                "metric": metric,
                f"{names[0].removeprefix('refused-')} ": _shown(before),  # a version may be compared with itself
                names[1].removeprefix("refused-"): _shown(value),
                "change": f"{value - before:+.4g}",
                "": "better" if better > 0 else "worse" if better < 0 else "same",
            }
        )
    return rows


def _other_rows(reports: Sequence[Figures]) -> Iterator[str]:
    """Warn if the metrics of the reports are of different rows, labels, weights or queries."""
    digests = [report.get("eval_digest") for report in reports]
    settings = [[report["configuration"].get(key) for key in ("data", "sample_weight", "split")] for report in reports]
    known = [[report.get(key) for key in ("eval_rows", "labels")] for report in reports]
    if digests[0] != digests[1] if all(digests) else (settings[0], known[0]) != (settings[1], known[1]):
        counts = " and ".join(_shown(report.get("eval_rows")) for report in reports)
        yield f"warning: the eval rows differ ({counts}), or labels, weights or queries: compare with care"


def _outcomes(reports: Sequence[Figures], names: Sequence[str]) -> Iterator[str]:
    """Say why nothing was pushed."""
    for report, name in zip(reports, names, strict=True):
        if not report["push"]["pushed"]:
            yield f"{name}: nothing was pushed: {report['push']['reason']}"


def _settings(report: Figures) -> Figures:
    return dict(flatten(report["configuration"], with_lists=True))


def _figures(report: Figures) -> Figures:
    kept = {key: value for key, value in report.items() if key not in (*_DROPPED, "configuration", "push")}
    return {
        "pushed": report["push"]["pushed"],
        "reason": report["push"]["reason"],
        **dict(flatten(kept, with_lists=True)),
    }


def _differences(first: Figures, second: Figures) -> dict[str, list[Any]]:
    pairs = {key: [first.get(key), second.get(key)] for key in dict.fromkeys([*first, *second])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _lines(rows: Mapping[str, list[Any]], first: str, second: str) -> Iterator[str]:
    if not rows:
        return
    shown = {key: [_shown(value) for value in pair] for key, pair in {"": [first, second], **rows}.items()}
    widths = [max(len(key) for key in shown), max(len(pair[0]) for pair in shown.values())]
    for key, (left, right) in shown.items():
        yield f"  {key.ljust(widths[0])}  {left.ljust(min(widths[1], 40))}  {right}".rstrip()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, str):
        return value or "-"
    return json.dumps(value)
