"""Defines the command `serve-delta`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pipelines.console.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(name="serve-delta")(serve_delta)


def serve_delta(
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="Folder of the served versions.", show_default=False)
    ],
    server: Annotated[
        list[str],
        typer.Option(metavar="ADDRESS", help="REST address of a server, such as http://localhost:8501; repeatable."),
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="Name of the model on the servers.")],
    allow_http: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="Host beyond loopback that may be sent to over http, without TLS; repeatable."
        ),
    ] = None,
    secret_variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable of the secret; see `push.deltas`.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds for a request and its answer.")] = 60.0,
) -> None:
    """Apply the deltas of the newest version below DESTINATION to servers that run.

    Deltas that a server has are skipped. Exit code 1: a server did not answer or refused a delta; the others are up to
    date, and the same command goes on.
    """
    from components.deltas.client import apply_chain, newest_chain, rest_call
    from components.deltas.keys import secret_in
    from components.pusher.publish import require_local
    from embedding_core.deltas.protocol import DeltaError

    require_local(destination)
    secret = secret_in(secret_variable)
    version, first, chain = newest_chain(os.fspath(destination))
    calls = {address: rest_call(address, model, version, timeout, allow_http or ()) for address in server}
    failed = []
    for address, call in calls.items():
        try:
            done = apply_chain(call, first, chain, secret)
        except DeltaError as error:
            failed.append(f"{address}: {error}")
            continue
        echo(
            f"{address}: version {version}, {done.number - done.before} deltas applied, {done.before} were there; it "
            f"serves {done.digest}"
        )
    if failed:
        raise DeltaError("\n".join(failed))
