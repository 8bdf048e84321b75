"""Defines `tfx-embeddings init`, which starts a project from the user's data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pipelines.console.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(init)


def init(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The new project.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="CSV, TFRecord or Parquet: a file, a folder or a glob in quotes. Without it, the project has the "
            "demo's data.",
        ),
    ] = None,
    eval_data: Annotated[
        str | None,
        typer.Option("--eval", metavar="PATH", help="Rows to judge the model by; without it, rows of --data."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to predict; without it, it is guessed.")
    ] = None,
) -> None:
    """Write a project: a configuration guessed from the first 10,000 rows of the data, and files that run it.

    Each guess is marked in the file, with what it is based on.
    """
    from pipelines.new_project.write_project import CONFIG, template_folder, write_project

    if not folder.strip():
        raise typer.BadParameter("it is empty: name the folder of the new project.", param_hint="FOLDER")
    project = Path(folder)
    check = write_project(project, data, label, eval_data)
    for file in sorted(template_folder().iterdir()):
        if file.is_file():
            echo(f"wrote {project / file.name}")
    if check is not None:
        for line in check.lines:
            echo(line)
        for doubt in (*check.warnings, *(f"a run would fail: {problem}" for problem in check.problems)):
            echo(f"warning: {doubt}", err=True)
    config = project / CONFIG
    echo(f"Correct the guesses in {config}, then: tfx-embeddings run {shlex.quote(str(config))}")
