"""Defines the commands about serving: `verify`, `parity`, `rollback`, `keep-last` and `export-embeddings`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import typer

from components.installed import is_installed
from embedding_core.errors import ConfigError, ParityError
from embedding_core.serving_config import RowsDtypes
from embedding_core.storage import readable_as
from pipelines.commands.shared_options import AsJson
from pipelines.console.quiet import load_tensorflow
from pipelines.console.terminal import PLAIN, SafeConsole, echo, print_table

_Version = Annotated[str, typer.Argument(metavar="VERSION", help="Folder of a published version.", show_default=False)]
_Base = Annotated[str, typer.Argument(metavar="BASE", help="Folder of the served versions.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(verify)
    app.command()(parity)
    app.command()(rollback)
    app.command(name="keep-last")(keep_last)
    app.command(name="export-embeddings")(export)


def verify(version: _Version, as_json: AsJson = False) -> None:
    """Check every file of VERSION and of its updates against their manifests.

    Exit code 1: a file is damaged; the error names it.
    """
    from components.pusher.publish import require_local
    from components.pusher.served import verify_version, version_updates

    require_local(version)
    manifest = verify_version(version)
    updates = version_updates().description(version, manifest["facts"])
    if as_json:
        echo(json.dumps(manifest, indent=1))
        return
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    echo(f"{version}: {len(manifest['files'])} files, {size:,} bytes, as published; sha256 {manifest['digest']}")
    if updates:
        echo(updates)
    if "rollback" in manifest["facts"]:
        echo(f"a copy of version {manifest['facts']['rollback']['of']}, which a rollback published again")


def parity(
    version: _Version,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows to compare.")] = 1000,
    tolerance: Annotated[float, typer.Option(min=0.0, help="The largest difference allowed.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Check again that VERSION computes what was trained, with the artifacts it was made of."""
    load_tensorflow()
    from components.pusher.proof import prove_again

    report = prove_again(version, rows, tolerance).to_dict()
    if as_json:
        echo(json.dumps(report, indent=1))
    else:
        _print(report)
    if not report["passed"]:
        raise ParityError(report["reason"])


def _print(report: Mapping[str, Any]) -> None:
    rows = [
        {
            "output": name,
            "within": "yes" if difference["within"] else "NO",
            "largest difference": f"{float(difference['max_abs']):.3g}",
            "mean difference": f"{float(difference['mean_abs']):.3g}",
            "rows": f"{difference['rows']:,}",
        }
        for name, difference in report["differences"].items()
    ]
    console = SafeConsole(highlight=False)
    print_table(console, "", rows)
    for rule, gap in report["broken"].items():
        console.print(f"broken by {gap}: {rule}", **PLAIN)
    for name, share in report["recall"].items():
        console.print(f"{name} found {share:.4f} of the best candidates", **PLAIN)
    console.print(f"{report['eval_rows']} rows and {report['edge_rows']} edge cases; tolerance {report['tolerance']:g}")


def rollback(
    base: _Base,
    to: Annotated[int | None, typer.Option(metavar="NUMBER", help="The version; by default the last but one.")] = None,
) -> None:
    """Publish a previous version below BASE again, under the next number, so that servers load it."""
    from components.pusher.publish import roll_back

    published = roll_back(base, to)
    recorded = None
    if is_installed("ml_metadata"):
        from pipelines.lineage.ancestors import record_rollback

        recorded = record_rollback(published.path)
    known = f"recorded in {recorded}" if recorded else "the next run of its pipeline records it"
    echo(f"published {published.path}; {known}")


def keep_last(
    base: _Base,
    count: Annotated[
        int, typer.Argument(metavar="COUNT", min=1, help="Number of versions to keep.", show_default=False)
    ],
) -> None:
    """Remove all but the newest COUNT versions below BASE."""
    from components.pusher.publish import keep_newest

    removed = keep_newest(base, count)
    echo(f"removed {len(removed)}: {', '.join(map(str, removed)) or 'nothing'}")


def export(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Folder of an embedding checkpoint.", show_default=False)
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
    feature: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A feature; repeat it for more. By default all.")
    ] = None,
    rows_dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TABLE=]TYPE",
            help="Type of the rows: float32, float16 or int8; with TABLE=, of one table; repeat it for more.",
        ),
    ] = None,
) -> None:
    """Write a SavedModel that returns the vectors of features, from the tables of CHECKPOINT."""
    load_tensorflow()
    from embedding_core.serving import export_embeddings

    dtypes = _dtypes_of(rows_dtype or ["float32"])
    with readable_as(checkpoint):
        written = export_embeddings(checkpoint, out, features=feature or None, rows_dtype=dtypes)
    echo(f"wrote {out}, with the signatures {', '.join(written)}")


def _dtypes_of(given: Sequence[str]) -> RowsDtypes:
    """Read TYPE, or one TABLE=TYPE or more; the export checks types and tables."""
    alone = [text for text in given if "=" not in text]
    if alone and len(given) > 1:
        raise ConfigError(f"--rows-dtype is {alone[0]!r} beside others: give one type alone, or TABLE=TYPE each time.")
    tables = [text.rpartition("=")[0] for text in given]
    repeated = [table for table in tables if tables.count(table) > 1]
    if not alone and repeated:
        table = repeated[0]
        raise ConfigError(f"--rows-dtype is given {tables.count(table)} times for table {table!r}: give it once.")
    dtypes = alone[0] if alone else dict(text.rpartition("=")[::2] for text in given)
    return cast(RowsDtypes, dtypes)
