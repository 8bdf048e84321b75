"""Defines `tfx-embeddings compare`, which prints settings and figures that differ between two versions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from embedding_core.errors import DataError, nearest
from embedding_core.storage import read_json
from pipelines.commands.shared_options import AsJson, Override
from pipelines.console.terminal import PLAIN, SafeConsole, echo
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
# Figures by token or variable, and notes. They differ in hundreds of lines from day to day: the screen shows them with
# `--all` only.
_DETAILS = re.compile(
    r"(drift|warm_start\.(tables|dense)|training_note)\b|vocabularies\..*\.(digest|sample|evolution)\b"
)

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
    everything: Annotated[bool, typer.Option("--all", help="Print also what is equal, and figures by token.")] = False,
    as_json: AsJson = False,
    overrides: Override = None,
) -> None:
    """Print the settings and figures that differ between two versions.

    Figures by token are printed with `--all` or `--json`. Exit code 1: a version has no report.
    """
    folder = _reports_of(config, overrides or [])
    reports = [_load(folder, name) for name in (first, second)]
    differences = {
        part: _beside(*(function(report) for report in reports), everything=everything)
        for part, function in (("settings", _settings), ("figures", _figures))
    }
    if as_json:
        echo(json.dumps(differences, indent=1))
        return
    console = SafeConsole(highlight=False)
    for part, rows in differences.items():
        console.print(f"{part}:" + ("" if rows else " no differences"), **PLAIN)
        shown = {key: pair for key, pair in rows.items() if everything or part == "settings" or not _DETAILS.match(key)}
        for line in _lines(shown, first, second):
            console.print(line, **PLAIN)
        if len(shown) < len(rows):
            console.print(f"  {len(rows) - len(shown):,} more, by token or by variable: `--all` prints them", **PLAIN)


def _reports_of(config: Path, overrides: list[str]) -> Path:
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


def _settings(report: Figures) -> Figures:
    return dict(flatten(report["configuration"], with_lists=True))


def _figures(report: Figures) -> Figures:
    kept = {key: value for key, value in report.items() if key not in (*_DROPPED, "configuration", "push")}
    return {
        "pushed": report["push"]["pushed"],
        "reason": report["push"]["reason"],
        **dict(flatten(kept, with_lists=True)),
    }


def _beside(first: Figures, second: Figures, *, everything: bool) -> dict[str, list[Any]]:
    keys = dict.fromkeys([*first, *second])
    pairs = {key: [first.get(key), second.get(key)] for key in keys}
    return {key: pair for key, pair in pairs.items() if everything or pair[0] != pair[1]}


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
