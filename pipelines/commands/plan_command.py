"""Defines `tfx-embeddings plan`, which prints the tables that a run would train, and their memory on a TPU slice."""

from __future__ import annotations

import json

import typer

from embedding_core.config import TableConfig
from embedding_core.planning.topology import memory_plan, named_topology, table_bytes
from embedding_core.schema import Json
from pipelines.commands.shared_options import (
    AsJson,
    AssumedTokens,
    Config,
    Override,
    Slice,
    TableConfigsFolder,
    load_checked,
)
from pipelines.console.terminal import PLAIN, SafeConsole, echo, print_table


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(plan)


def plan(
    config: Config,
    topology: Slice = None,
    table_configs: TableConfigsFolder = None,
    assume: AssumedTokens = None,
    as_json: AsJson = False,
    overrides: Override = None,
) -> None:
    """Print the tables that a run of CONFIG would train: their rows and bytes, and those on a core of a TPU slice."""
    from pipelines.checks.planned_tables import memory_text, planned_tables
    from pipelines.pipeline.component_inputs import planned_topology

    checked = load_checked(config, overrides)
    name = topology or planned_topology(checked)
    slice_ = None if name is None else named_topology(name)
    tables, sizes = planned_tables(checked, table_configs, assume)
    memory = None if slice_ is None else memory_plan(tables, slice_)
    if as_json:
        shown = {} if memory is None else {"memory": memory}
        echo(json.dumps({"sizes": sizes, **json.loads(tables.to_json()), **shown}, indent=1))
        return
    console = SafeConsole(highlight=False)
    console.print(f"sizes: {sizes}", **PLAIN)
    print_table(console, "", [_row(table, memory) for table in tables.tables])
    if memory is not None:
        too_large = ", ".join(memory["over_budget"]) or "the tables with the program of a step"
        fits = "it fits" if memory["fits"] else f"too large: {too_large}"
        console.print(f"{memory['name']}: {memory_text(memory)}; {fits}", **PLAIN)


def _row(table: TableConfig, memory: Json | None) -> dict[str, str]:
    values, slots = table_bytes(table)
    row = {
        "table": table.name,
        "rows": f"{table.vocabulary_size:,}",
        "dim": str(table.dim),
        "bytes": f"{values:,}",
        "slot bytes": f"{slots:,}",
    }
    if memory is not None:
        row["core bytes"] = f"{memory['tables'][table.name]['fullest_core_bytes']:,}"
    return {**row, "combiner": table.combiner, "optimizer": type(table.optimizer).__name__}
