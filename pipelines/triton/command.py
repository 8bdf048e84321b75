"""Defines `tfx-embeddings triton`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.console.quiet import load_tensorflow
from pipelines.console.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(triton)


def triton(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Folder of the served versions.", show_default=False)],
    signature: Annotated[str, typer.Option(metavar="NAME", help="The signature to answer.")] = "serving_default",
    backends: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Triton's backends, to which the backend of versions is added.")
    ] = None,
) -> None:
    """Make BASE a model of Triton Inference Server, which then serves the newest version below it."""
    load_tensorflow()
    from components.triton.triton_model import write_triton_model

    echo(f"wrote {write_triton_model(base, signature, backends)}")
