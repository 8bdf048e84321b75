"""Defines `tfx-embeddings plan`, which prints the tables that a run would train and their memory on a TPU slice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.planning.topology import GIB, Topology, memory_plan, named_topology, table_bytes
from pipelines.console.plain_table import print_table
from pipelines.console.terminal import PLAIN, SafeConsole, echo


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(plan)


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the pipeline.")],
    topology: Annotated[
        str | None, typer.Option(metavar="SLICE", help="The TPU slice, such as v3-8; by default `training.topology`.")
    ] = None,
    table_configs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="TableConfigs of a run; by default of the last run, if any."),
    ] = None,
    assume: Annotated[
        int, typer.Option(metavar="TOKENS", min=1, help="Size of vocabularies that have no `max_size`.")
    ] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as for `run`.")
    ] = None,
) -> None:
    """Print the tables that a run of CONFIG would train, and their memory on a TPU slice."""
    from pipelines.checks.planned_tables import planned_tables
    from pipelines.config import load_config

    checked = load_config(config, overrides or ())
    name = topology or checked.training.topology
    slice_ = None if name is None else named_topology(name)
    tables, sizes = planned_tables(checked, table_configs, assume)
    if as_json:
        memory = {} if slice_ is None else {"memory": memory_plan(tables, slice_)}
        echo(json.dumps({"sizes": sizes, **json.loads(tables.to_json()), **memory}, indent=1))
        return
    console = SafeConsole(highlight=False)
    console.print(f"sizes: {sizes}", **PLAIN)
    print_table(console, "", [_row(table) for table in tables.tables])
    if slice_ is not None:
        console.print(_memory(tables, slice_), **PLAIN)


def _row(table: TableConfig) -> dict[str, str]:
    values, slots = table_bytes(table)
    return {
        "table": table.name,
        "rows": f"{table.vocabulary_size:,}",
        "dim": str(table.dim),
        "combiner": table.combiner,
        "optimizer": type(table.optimizer).__name__,
        "bytes": f"{values:,}",
        "bytes of slots": f"{slots:,}",
    }


def _memory(tables: EmbeddingConfig, slice_: Topology) -> str:
    found = memory_plan(tables, slice_)
    used, limit = found["fullest_core_bytes"] / GIB, slice_.bytes_per_core / GIB
    hosts = max(found["host_bytes"]) / GIB
    fits = "it fits" if found["fits"] else f"too large: {', '.join(found['over_budget'])}"
    return (
        f"{slice_.name}: {used:.3f} of {limit:.0f} GiB on the fullest core, {hosts:.3f} GiB on the fullest host; {fits}"
    )
