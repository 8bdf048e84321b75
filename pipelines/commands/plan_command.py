"""Defines `tfx-embeddings plan`, which prints the tables that a run would train, and what to choose on TPU slices."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from components.installed import require_package
from embedding_core.config import TableConfig
from embedding_core.errors import ConfigError
from embedding_core.planning.topology import memory_plan, named_topology, table_bytes
from embedding_core.storage import is_remote
from embedding_core.tpu_compiler import TpuCompiler
from pipelines.commands.exit_codes import FINDINGS, STOPPED
from pipelines.commands.shared_options import CompilerPython, Config, Override, Slice, TableConfigsFolder
from pipelines.config.feature_sections import ASSUMED_TOKENS
from pipelines.console.plain_table import print_table
from pipelines.console.terminal import PLAIN, SafeConsole, echo

if TYPE_CHECKING:
    from pipelines.choices.plan import Plan
    from pipelines.choices.planning import PlanRequest


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(plan)


def plan(
    config: Config,
    topology: Slice = None,
    slices: Annotated[
        str | None,
        typer.Option(metavar="SLICE,...", help="Compare choices on these TPU slices, such as v3-8,v5e-4,v5p-8."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory of a core to use, such as 8GiB; by default all of it.")
    ] = None,
    runs: Annotated[int, typer.Option(metavar="COUNT", min=0, help="Largest number of short runs.")] = 48,
    rows: Annotated[
        int, typer.Option(metavar="COUNT", min=100, help="Largest number of rows of a short run.")
    ] = 20_000,
    seeds: Annotated[int, typer.Option(metavar="COUNT", min=2, help="Number of seeds of each choice.")] = 3,
    no_runs: Annotated[bool, typer.Option("--no-runs", help="Compare the memory alone, without short runs.")] = False,
    with_compiler: Annotated[
        bool, typer.Option("--compiler/--no-compiler", help="Use the TPU compiler if it is installed.")
    ] = True,
    compiler_python: CompilerPython = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Folder of the page and of kept results; by default `plan` in work_dir."),
    ] = None,
    table_configs: TableConfigsFolder = None,
    assume: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            min=1,
            help=f"Size of vocabularies that have no `max_size`; by default {ASSUMED_TOKENS:,}, or, with short runs, "
            "counted in all rows.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Override = None,
) -> None:
    """Print the tables that a run of CONFIG would train, and their memory on a TPU slice.

    With `--slices`: compare the choices of dims and batch sizes by memory and by short runs on a sample of the rows,
    and write a page. The same command goes on where it was stopped. Exit code 4: no choice fits on any of the slices.
    """
    if slices is None:
        _print_tables(config, topology, table_configs, assume or ASSUMED_TOKENS, overrides or [], as_json=as_json)
        return
    if topology is not None:
        raise ConfigError("`--topology` is given, and so is `--slices`: name all slices in `--slices`.")
    if not no_runs and runs < seeds:
        raise ConfigError(f"`--runs` is {runs}: it must be at least `--seeds`, {seeds}; or give `--no-runs`.")
    request = _request(config, overrides or [], slices, budget, table_configs, assume, out)
    made = _made(request, None if no_runs else (runs, rows, seeds), compiler_python, with_compiler=with_compiler)
    _print_plan(made, as_json=as_json)


def _print_plan(made: Plan, *, as_json: bool) -> None:
    """Print the plan; the exit code says if nothing fits."""
    if as_json:
        echo(json.dumps(dataclasses.asdict(made), indent=1))
    else:
        from pipelines.choices.plan_screen import print_plan

        print_plan(made, SafeConsole(highlight=False))
    if all(one.best is None for one in made.slices):
        raise typer.Exit(FINDINGS)


def _request(
    file: Path,
    overrides: list[str],
    slices: str,
    budget: str | None,
    table_configs: Path | None,
    assume: int | None,
    out: str | None,
) -> PlanRequest:
    from pipelines.checks.early_checks import check_data_settings
    from pipelines.choices.memory import parse_budget, parse_slices
    from pipelines.choices.planning import PlanRequest
    from pipelines.config import load_config

    asked, bytes_ = parse_slices(slices), None if budget is None else parse_budget(budget)
    checked = load_config(file, overrides)
    return PlanRequest(
        config=checked,
        settings=check_data_settings(checked),
        file=file,
        overrides=overrides,
        slices=asked,
        budget=bytes_,
        table_configs=table_configs,
        assumed_tokens=assume,
        folder=_folder(checked.work_dir, out),
    )


def _folder(work_dir: str, out: str | None) -> str:
    """Return the folder of the plan.

    Raises:
      ConfigError: `out` is an address: the page, the rows and the runs are local files.
    """
    if out is None:
        return os.path.join(work_dir, "plan")
    if is_remote(out):
        raise ConfigError(f"`--out` is {out!r}: a plan is written to a local folder; name one.")
    return os.path.abspath(out)


def _made(
    request: PlanRequest, short: tuple[int, int, int] | None, compiler_python: Path | None, *, with_compiler: bool
) -> Plan:
    """Make the plan; Ctrl-C ends the command with a message."""
    from pipelines.choices.planning import ShortRunOptions, plan_slices

    if short is not None:
        require_package("tfx", "short runs need TFX, which is not installed: give `--no-runs`, or for short runs")
    compiler = _compiler(compiler_python) if with_compiler else None
    options = None if short is None else ShortRunOptions(*short)
    try:
        return plan_slices(request, options, compiler, lambda line: echo(line, err=True))
    except KeyboardInterrupt:
        echo("stopped. The same command goes on: finished short runs and compiled programs are kept.", err=True)
        raise typer.Exit(STOPPED) from None


def _compiler(python: Path | None) -> TpuCompiler | None:
    """Return the TPU compiler; without one, say where the figures come from."""
    found = TpuCompiler.installed() if python is None else TpuCompiler.find(python)
    if found is None:
        echo("memory by the plan alone: the TPU compiler is not installed (`make tpu-compiler`)", err=True)
    return found


def _print_tables(
    config: Path,
    topology: str | None,
    table_configs: Path | None,
    assume: int,
    overrides: list[str],
    *,
    as_json: bool,
) -> None:
    from pipelines.checks.planned_tables import memory_text, planned_tables
    from pipelines.config import load_config

    checked = load_config(config, overrides)
    name = topology or checked.training.topology
    slice_ = None if name is None else named_topology(name)
    tables, sizes = planned_tables(checked, table_configs, assume)
    memory = None if slice_ is None else memory_plan(tables, slice_)
    if as_json:
        shown = {} if memory is None else {"memory": memory}
        echo(json.dumps({"sizes": sizes, **json.loads(tables.to_json()), **shown}, indent=1))
        return
    console = SafeConsole(highlight=False)
    console.print(f"sizes: {sizes}", **PLAIN)
    print_table(console, "", [_row(table) for table in tables.tables])
    if memory is not None:
        too_large = ", ".join(memory["over_budget"]) or "the tables with the program of a step"
        fits = "it fits" if memory["fits"] else f"too large: {too_large}"
        console.print(f"{memory['name']}: {memory_text(memory)}; {fits}", **PLAIN)


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
