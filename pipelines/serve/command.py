"""Defines `tfx-embeddings serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from components.installed import require_package
from pipelines.commands.shared_options import STOPPED, Config, Override
from pipelines.console.quiet import collector_paused, load_tensorflow
from pipelines.console.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(serve)


def serve(
    config: Config,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of 127.0.0.1; 0 takes a free port.")] = 8501,
    overrides: Override = None,
) -> None:
    """Answer requests to the newest version of CONFIG over HTTP: a look at it before a real server takes over.

    One process, on 127.0.0.1 alone. It speaks TensorFlow Serving's REST form and KServe's protocol, version 1, and
    has a page. It takes over newer versions until Ctrl-C ends it, with exit code 130.
    """
    from pipelines.config import load_config

    require_package("tfx", "`serve` needs TFX, which is not installed")
    checked = load_config(config, overrides or ())
    try:
        with collector_paused():
            load_tensorflow()
            from pipelines.serve.http_server import LookServer

        with LookServer(checked, port) as server:
            api = f"{server.address}/v1/models/{checked.name}"
            echo(f"version {server.version.number}: {server.address} is a page to try it, {api}:predict answers")
            echo("A look, not a server for production: one process, this machine alone. Ctrl-C ends it.")
            server.serve_forever()
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
