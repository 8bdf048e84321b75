"""Defines `tfx-embeddings checkpoint inspect | diff | extract`, which read embedding checkpoints."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from embedding_core.storage import readable_as
from pipelines.commands.shared_options import AsJson
from pipelines.console.quiet import load_tensorflow
from pipelines.console.terminal import PLAIN, SafeConsole, echo, print_table

app = typer.Typer(
    help="Inspect, compare and extract embedding checkpoints, as CheckpointRetriever writes them.", no_args_is_help=True
)

_Folder = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Folder of the checkpoint.", show_default=False)]


class Format(enum.Enum):
    """The formats that a table can be extracted to."""

    PARQUET = "parquet"
    PROJECTOR = "projector"


@app.command()
def inspect(checkpoint: _Folder, as_json: AsJson = False) -> None:
    """Verify CHECKPOINT and print its tables: sizes, digests, norms, dead rows, rows that are not finite."""
    load_tensorflow()
    from embedding_core.checkpoint.summary import summarize_checkpoint

    summary = summarize_checkpoint(checkpoint)
    if as_json:
        echo(json.dumps(summary, indent=1))
        return
    console = SafeConsole(highlight=False)
    console.print(
        f"step {summary['step']}, {summary['bytes']:,} bytes in {len(summary['files'])} files, all intact", **PLAIN
    )
    print_table(console, "", [_summary(name, row) for name, row in summary["tables"].items()])
    for name, table in summary["tables"].items():
        if table["vocabulary"] is not None:
            console.print(f"{name}: vocabulary {table['vocabulary']!r}, sha256 {table['digest']}", **PLAIN)


def _summary(name: str, row: Mapping[str, Any]) -> dict[str, str]:
    """Make a row of the table: first what needs attention, last what a narrow screen may leave out."""
    dead = "?" if row["dead_rows"] is None else f"{row['dead_rows']:,} ({row['dead_rows'] / row['rows']:.1%})"
    least, mean, greatest = (f"{row['norm'][key]:.4g}" if row["norm"] else "?" for key in ("least", "mean", "greatest"))
    return {
        "table": name,
        "rows": f"{row['rows']:,}",
        "dim": str(row["dim"]),
        "bytes": f"{row['bytes']:,}",
        "dead rows": dead,
        "not finite": f"{row['nonfinite_rows']:,}",
        "norm: least": least,
        "mean": mean,
        "greatest": greatest,
        "slots": ", ".join(row["slots"]),
    }


@app.command()
def diff(
    earlier: Annotated[
        str, typer.Argument(metavar="EARLIER", help="Folder of the first checkpoint.", show_default=False)
    ],
    later: Annotated[str, typer.Argument(metavar="LATER", help="Folder of the second checkpoint.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Print what differs between two checkpoints, row by row and by token."""
    load_tensorflow()
    from embedding_core.checkpoint.summary import compare_checkpoints

    difference = compare_checkpoints(earlier, later)
    if as_json:
        echo(json.dumps(difference, indent=1))
        return
    console = SafeConsole(highlight=False)
    console.print(f"steps {difference['steps'][0]} and {difference['steps'][1]}", **PLAIN)
    for words, key in (("only in the earlier", "only_in_earlier"), ("only in the later", "only_in_later")):
        if difference[key]:
            console.print(f"{words}: {', '.join(difference[key])}", **PLAIN)
    rows = [_difference(name, row) for name, row in difference["tables"].items() if "incomparable" not in row]
    print_table(console, "", rows)
    for name, compared in difference["tables"].items():
        if "incomparable" in compared:
            console.print(f"{name}: {compared['incomparable']}", **PLAIN)
        elif compared["moved_most"]:
            moves = ", ".join(f"{row['row']} {row['distance']:.3g}" for row in compared["moved_most"])
            console.print(f"{name} moved most: {moves}", **PLAIN)


def _difference(name: str, row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "table": name,
        "rows in both": f"{row['rows']:,}",
        "changed": f"{row['changed_rows']:,}",
        "only later": f"{row['rows_only_in_later']:,}",
        "only earlier": f"{row['rows_only_in_earlier']:,}",
        "mean move": f"{row['mean_distance']:.3g}",
        "largest difference": f"{row['largest_difference']:.3g}",
    }


@app.command()
def extract(
    checkpoint: _Folder,
    table: Annotated[str, typer.Option(metavar="TABLE", help="Name of the table.")],
    out: Annotated[
        Path, typer.Option(metavar="PATH", help="The Parquet file, or the folder for the projector, to write.")
    ],
    to: Annotated[Format, typer.Option(help="Parquet, or TensorBoard's embedding projector.")] = Format.PARQUET,
    limit: Annotated[
        int, typer.Option(metavar="ROWS", min=1, help="Maximum number of rows for the projector.")
    ] = 10_000,
) -> None:
    """Write a table with its tokens and counts to a file that other programs read."""
    load_tensorflow()
    from embedding_core.checkpoint.summary import extract_to_parquet, extract_to_projector

    with readable_as(checkpoint):
        if to is Format.PARQUET:
            count = extract_to_parquet(checkpoint, table, out)
        else:
            count = extract_to_projector(checkpoint, table, out, limit=limit)
    echo(f"wrote {count:,} rows to {out}")
