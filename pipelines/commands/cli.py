"""Defines the command line, `tfx-embeddings`. Heavy packages are imported only by the commands that need them."""

from __future__ import annotations

import difflib
import enum
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from components.installed import INSTALL_TFX, is_installed, require_package
from embedding_core.errors import ConfigError
from embedding_core.rooms import MISSING, hooks, room_of
from pipelines.commands import (
    checkpoint_command,
    compare_command,
    metadata_command,
    plan_command,
    run_command,
    version_command,
)
from pipelines.commands.run_command import show_warnings
from pipelines.commands.shared_options import (
    FINDINGS,
    PREEMPTED,
    AssumedTokens,
    Config,
    Override,
    Slice,
    TableConfigsFolder,
    load_checked,
    refuse_beside,
    with_options_of,
)
from pipelines.console.expected_errors import expected_message, was_preempted
from pipelines.console.quiet import collector_paused, load_tensorflow, silence
from pipelines.console.terminal import check_output, echo
from pipelines.local import run_display

if TYPE_CHECKING:
    from embedding_core.config import EmbeddingConfig
    from embedding_core.preflight.preflight_run import Check
    from pipelines.config import PipelineConfig


NEED_TFX = frozenset({"run", "follow", "compile", "parity", "metadata", "lineage"})
"""Commands that import TFX, TensorFlow Transform or ML Metadata."""
_OTHER_NAMES = {
    "train": "run",
    "fit": "run",
    "start": "run",
    "new": "init",
    "check": "validate",
    "diff": "compare",
    "undo": "rollback",
    "revert": "rollback",
}  # of commands in other programs


class InstalledCommands(TyperGroup):
    """A group that only has the commands that the installed packages can run.

    Contexts and commands are typed as Any: they are classes of click, and newer releases of typer contain click.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands that work, and name the others below the help."""
        names = super().list_commands(ctx)
        if is_installed("tfx"):
            return names
        left_out = [name for name in names if name in NEED_TFX]
        self.epilog = escape(f"{', '.join(left_out)} need TFX: {INSTALL_TFX}.")
        return [name for name in names if name not in NEED_TFX]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command by its name.

        Raises:
          ConfigError: the command needs TFX, which is not installed.
        """
        if cmd_name in NEED_TFX:
            require_package("tfx", f"`{cmd_name}` needs TFX, which is not installed")
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the arguments; fail with the nearest name if there is none."""
        if self.get_command(ctx, args[0]) is None:
            names = {name: name for name in self.commands}
            names |= {other: name for other, name in _OTHER_NAMES.items() if name in names}
            close = difflib.get_close_matches(args[0].casefold(), names, n=1)
            remedy = f"did you mean {names[close[0]]!r}?" if close else "see `--help`."
            ctx.fail(f"there is no command {args[0]!r}: {remedy}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="tfx-embeddings",
    cls=InstalledCommands,
    help="Train and serve models of embedding tables with TFX pipelines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Target(str, enum.Enum):
    """The backends that `compile` writes for."""

    vertex = "vertex"
    kubeflow = "kubeflow"


_PREFLIGHT_CHECKS = hooks("pipelines", "preflight_checks")


class Device(str, enum.Enum):
    """The device of this machine that `preflight` can run a step on."""

    gpu = "gpu"


@app.callback()
def _entry(
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show tracebacks, and during a run the log. It may be anywhere on the line."),
    ] = False,
) -> None:
    """Train and serve models of embedding tables with TFX pipelines."""
    run_display.to_screen(debug)


run_command.register(app)


@app.command()
def validate(
    config: Config,
    data: Annotated[bool, typer.Option("--data", help="Check the first rows of the data instead.")] = False,
    overrides: Override = None,
) -> None:
    """Check CONFIG and print it with every default.

    With `--data`: read the first 10,000 rows instead, and print what a run would make of each column. Exit code 1: the
    run would fail.
    """
    from pipelines.config.loading import yaml_of

    checked = load_checked(config, overrides)
    show_warnings(checked)
    if data:
        from pipelines.checks.data_check import check_data, print_check

        print_check(check_data(checked))
        return
    echo(yaml_of(checked.to_mapping()), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, with which editors complete and check YAML files."""
    import json

    from pipelines.config.pipeline_config import config_schema

    echo(json.dumps(config_schema(), indent=1))


@app.command()
@with_options_of([room.asked_checks for room in _PREFLIGHT_CHECKS])
def preflight(
    further: Sequence[Any],
    config: Config,
    topology: Slice = None,
    table_configs: TableConfigsFolder = None,
    batch: Annotated[
        int | None,
        typer.Option(metavar="ROWS", min=1, help="Rows of a global batch; by default `training.batch_size`."),
    ] = None,
    assume: AssumedTokens = None,
    device: Annotated[
        Device | None,
        typer.Option(help="Instead, run one step on this machine's GPU, and say what is not there, and why."),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as JSON.")] = None,
    overrides: Override = None,
) -> None:
    """Check, without a TPU, whether the model of CONFIG fits on a TPU slice and compiles for it.

    Exit code 4: there are findings to fix first.
    """
    from pipelines.checks.planned_tables import planned_tables, requested_slice

    checked = load_checked(config, overrides)
    if json is not None:
        check_output("--json", json)
    if device is not None:
        options = {"slice": topology, **{name: value for asked in further for name, value in asked.keywords.items()}}
        refuse_beside("--device gpu", **options)
        _on_gpu(checked, *planned_tables(checked, table_configs, assume), batch, json)
        return
    slice_ = requested_slice(checked, topology)
    tables, sizes = planned_tables(checked, table_configs, assume)
    checks: dict[str, Check] = {}
    for asked in further:
        checks |= asked(checked, tables, slice_, table_configs)
    with collector_paused():
        load_tensorflow()
        from pipelines.checks import pipeline_preflight

    report = pipeline_preflight.check(checked, slice_, tables, sizes, batch_size=batch, checks=checks)
    pipeline_preflight.print_report(report)
    if json is not None:
        pipeline_preflight.save_json(report, json)
    if not report.green:
        raise typer.Exit(FINDINGS)


def _on_gpu(config: PipelineConfig, tables: EmbeddingConfig, sizes: str, batch: int | None, json: Path | None) -> None:
    with collector_paused():
        load_tensorflow()
        from pipelines.checks import pipeline_preflight

    placement = pipeline_preflight.check_gpu(config, tables, batch_size=batch)
    pipeline_preflight.print_placement(placement, sizes)
    if json is not None:
        pipeline_preflight.save_json(placement, json)
    if placement.silent:
        raise typer.Exit(FINDINGS)


@app.command(name="compile")
def compile_(
    config: Config,
    target: Annotated[Target, typer.Option(help="Vertex AI Pipelines, or open-source Kubeflow Pipelines v2.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The YAML file to write.")],
    with_preflight: Annotated[
        bool,
        typer.Option(
            "--preflight/--no-preflight",
            help="If a TPU trains, run `preflight` first, with every compiler that is installed.",
        ),
    ] = True,
    overrides: Override = None,
) -> None:
    """Compile the pipeline of CONFIG for a cluster.

    Exit code 4: `preflight` has findings, and nothing is written.
    """
    from pipelines.checks.planned_tables import planned_tables, requested_slice
    from pipelines.cluster.compile_checks import check_compile

    checked = load_checked(config, overrides)
    check_compile(checked, target.value)
    check_output("--out", out)
    checks_tpu = with_preflight and checked.training.strategy == "tpu"
    checks: dict[str, Check] = {}
    if checks_tpu:
        slice_, (tables, sizes) = requested_slice(checked), planned_tables(checked)
        for room in _PREFLIGHT_CHECKS:
            checks |= room.installed_checks(checked, tables, slice_)
    require_package("kfp", "`compile` needs the package kfp", "install tfx-embeddings[kubeflow]")
    with collector_paused():
        load_tensorflow()
        from pipelines.cluster.compile_kubeflow import compile_cluster, compile_pipeline, save_documents

    documents = compile_pipeline(checked, target.value)
    if checks_tpu:
        from pipelines.checks import pipeline_preflight

        report = pipeline_preflight.check(checked, slice_, tables, sizes, checks=checks)
        if not report.green:
            pipeline_preflight.print_report(report)
            raise typer.Exit(FINDINGS)
    save_documents(documents, out)
    echo(f"wrote {out}")
    pods = compile_cluster(checked) if target.value == "kubeflow" else []
    if pods:
        beside = out.with_suffix(".cluster.yaml")
        save_documents(pods, beside)
        echo(f"wrote {beside}: apply it with kubectl, in the namespace of the runs, before a run starts")


app.add_typer(checkpoint_command.app, name="checkpoint")
app.add_typer(metadata_command.app, name="metadata")
version_command.register(app)
compare_command.register(app)
plan_command.register(app)
for _room in hooks("pipelines", "command"):
    _room.register(app)


@app.command()
def lineage(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="The YAML file of the pipeline.", show_default=False)
    ] = None,
    overrides: Override = None,
    recorded: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Read the records beside the artifacts below this folder.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="The pushed version; by default the newest.")] = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="URI", help="Start from this EmbeddingCheckpoint.")] = None,
    token: Annotated[str | None, typer.Option(metavar="VOCABULARY=TOKEN", help="Print the row of this token.")] = None,
    forward: Annotated[
        str | None, typer.Option(metavar="FILE", help="Print the models that were trained on this file of data.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page instead of printing the tree.")] = None,
) -> None:
    """Print what a pushed model was made of, back to the files of data."""
    from pipelines.commands import lineage_command

    lineage_command.show(
        config,
        overrides or (),
        recorded=recorded,
        version=version,
        checkpoint=checkpoint,
        token=token,
        forward=forward,
        html=html,
    )


def _show(error: Exception, debug: bool) -> None:
    """Show the error and name the log.

    Show the traceback if `debug` is true, or if the error is unexpected and nothing was logged.
    """
    expected, log = expected_message(error), run_display.current_log()
    if debug or (expected is None and log is None):
        traceback.print_exc()
    if expected is None and log is not None:
        first = next(iter(str(error).splitlines()), "")
        expected = f"{type(error).__name__}: {first}\nThis error was not expected: please report it."
    if expected is not None:
        echo("\n".join(f"error: {line}" for line in expected.splitlines()), err=True)
    if log is not None:
        echo(f"log: {log}", err=True)


def _refuse_missing_options(words: list[str]) -> None:
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        room = room_of(option)
        if room is not None:
            raise ConfigError(f"{option} is not a known option: {MISSING.format(room)}")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its code; 1 after an error, 2 after wrong usage, 75 after SIGTERM, 130 after Ctrl-C.

    Args:
      arguments: arguments of the command line; None takes those of the process.
    """
    silence()
    given = sys.argv[1:] if arguments is None else arguments
    debug = ["--debug"] if "--debug" in given else []  # the option may come before or after the command
    run_display.forget_log()
    try:
        _refuse_missing_options(given)
        app(args=[*debug, *(argument for argument in given if argument != "--debug")])
    except Exception as error:
        _show(error, bool(debug))
        sys.exit(PREEMPTED if was_preempted(error) else 1)


if __name__ == "__main__":
    main()
