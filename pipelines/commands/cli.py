"""The command line, `tfx-embeddings`: run, validate, preflight, compile, checkpoint, lineage. Heavy imports wait."""

from __future__ import annotations

import enum
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embedding_core.errors import ConfigError
from pipelines.commands import checkpoint_command, compare_command, metadata_command, version_command
from pipelines.console.expected_errors import expected_message, was_preempted
from pipelines.console.quiet import load_tensorflow, silence
from pipelines.console.terminal import echo
from pipelines.local import run_log

if TYPE_CHECKING:
    from pipelines.config import PipelineConfig

__all__ = ["app", "main"]

app = typer.Typer(
    name="tfx-embeddings",
    help="From data to a served model of embedding tables, through TFX components.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

NOTHING_PUSHED = 3
FOUND = 4
STOPPED = 130  # as shells have it for Ctrl-C
PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again


class Target(str, enum.Enum):
    """What `compile` writes for."""

    vertex = "vertex"
    kubeflow = "kubeflow"


Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the pipeline.", show_default=False)]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Put a value over the file's, as training.batch_size=512."),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Train on data once more that the base was trained on; push what was rolled back."),
]


@app.callback()
def _entry(
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error, and during a run the log. Anywhere on the line."),
    ] = False,
) -> None:
    """From data to a served model of embedding tables, through TFX components."""
    run_log.to_screen(debug)


@app.command()
def run(config: Config, overrides: Override = None, again: Again = False) -> None:
    """Run the whole pipeline that CONFIG describes; given again, it goes on, or finds everything done.

    Exit code 3: it ran, and nothing was pushed. 75: SIGTERM came while it trained; the same command goes on from there.
    """
    from pipelines.checks.early_checks import check_data_settings
    from pipelines.config import load_config
    from pipelines.local.storage_errors import storage_errors_as_one
    from pipelines.local.work_dir import prepare, ready_metadata
    from pipelines.previous.references import check_references

    checked = load_config(config, overrides or ())
    check_data_settings(checked)
    _warn(checked)
    upgraded = ready_metadata(checked)
    if upgraded is not None:
        echo(f"the metadata is of an earlier release: it was upgraded, and a backup is {upgraded}", err=True)
    with storage_errors_as_one(checked):
        check_references(checked)  # before anything heavy is loaded
    prepare(checked)
    try:
        load_tensorflow()
        from pipelines.local import run_local

        changed = [one.partition("=")[0].strip() for one in overrides or ()]
        report = run_local.run(checked, again=again, changed=changed)
    except KeyboardInterrupt:
        raise typer.Exit(_stopped()) from None
    if not report.push["pushed"]:
        raise typer.Exit(NOTHING_PUSHED)


@app.command()
def validate(
    config: Config,
    data: Annotated[bool, typer.Option("--data", help="Look at the first rows of the data instead.")] = False,
    overrides: Override = None,
) -> None:
    """Check CONFIG and print it with every default written out.

    With `--data`: say in seconds what a run would make of each column, by the first 10,000 rows. Exit code 1: the run
    would fail.
    """
    import yaml

    from pipelines.checks.early_checks import check_data_settings
    from pipelines.config import load_config

    checked = load_config(config, overrides or ())
    settings = check_data_settings(checked)
    _warn(checked)
    if data:
        from pipelines.checks.data_check import check_data, print_check

        print_check(check_data(checked, settings))
        return
    echo(yaml.safe_dump(checked.to_mapping(), sort_keys=False), nl=False)


@app.command()
def preflight(
    config: Config,
    topology: Annotated[
        str | None, typer.Option(metavar="SLICE", help="The TPU, such as v3-8; by default `training.topology`.")
    ] = None,
    table_configs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A run's TableConfigs; by default the last run's, if there is one."),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="ROWS", min=1, help="Rows of a global batch.")] = None,
    assume: Annotated[
        int, typer.Option(metavar="TOKENS", min=1, help="Size of vocabularies that have no `max_size`.")
    ] = 1_000_000,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as JSON.")] = None,
    overrides: Override = None,
) -> None:
    """Find out what CONFIG would give a TPU, without one. Exit code 4: something has to be fixed first."""
    from pipelines.checks.early_checks import check_data_settings, check_out, requested_slice
    from pipelines.checks.planned_tables import planned_tables
    from pipelines.config import load_config

    checked = load_config(config, overrides or ())
    check_data_settings(checked)
    requested_slice(checked, topology)
    planned_tables(checked, table_configs, assume)
    if json is not None:
        check_out("--json", json)
    load_tensorflow()
    from pipelines.checks import pipeline_preflight as command

    report = command.check(
        checked, topology=topology, table_configs=table_configs, batch_size=batch, assumed_tokens=assume
    )
    command.print_report(report)
    if json is not None:
        command.save_json(report, json)
    if not report.green:
        raise typer.Exit(FOUND)


@app.command(name="compile")
def compile_(
    config: Config,
    target: Annotated[Target, typer.Option(help="Vertex AI Pipelines, or open-source Kubeflow Pipelines v2.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The YAML file to write.")],
    flown: Annotated[
        bool, typer.Option("--preflight/--no-preflight", help="Where a TPU trains, check it first.")
    ] = True,
    overrides: Override = None,
) -> None:
    """Compile the pipeline that CONFIG describes for a cluster. Exit code 4: see `preflight`; nothing is written."""
    from pipelines.checks.early_checks import check_data_settings, check_out, requested_slice
    from pipelines.cluster.compile_checks import check_compile
    from pipelines.config import load_config

    checked = load_config(config, overrides or ())
    check_data_settings(checked)
    check_compile(checked, target.value)
    check_out("--out", out)
    if flown and checked.training.strategy == "tpu":
        requested_slice(checked)
    if importlib.util.find_spec("kfp") is None:
        raise ConfigError("`compile` needs the package kfp: install tfx-embeddings[kubeflow].")
    load_tensorflow()
    from pipelines.cluster.compile_kubeflow import compile_pipeline, save_documents

    documents = compile_pipeline(checked, target.value)
    if flown and checked.training.strategy == "tpu":
        from pipelines.checks import pipeline_preflight as check_first

        report = check_first.check(checked)
        if not report.green:
            check_first.print_report(report)
            raise typer.Exit(FOUND)
    save_documents(documents, out)
    echo(f"wrote {out}")


app.add_typer(checkpoint_command.app, name="checkpoint")
app.add_typer(metadata_command.app, name="metadata")
version_command.register(app)
compare_command.register(app)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lineage(context: typer.Context) -> None:
    """Print what a pushed model was made of, back to the examples."""
    from pipelines.commands import lineage_command

    raise typer.Exit(lineage_command.main(context.args) or 0)


def _warn(config: PipelineConfig) -> None:
    from pipelines.checks.early_checks import warnings_of

    for warning in warnings_of(config):
        echo(f"warning: {warning}", err=True)


def _stopped() -> int:
    echo(
        "stopped. The same command goes on from here: finished components come from the cache, and training resumes "
        "at its last checkpoint.",
        err=True,
    )
    return STOPPED


def _show(error: Exception, debug: bool) -> None:
    """The error in a line, and the file with all that is known of it; the traceback if there is no such file."""
    expected, log = expected_message(error), run_log.current_log()
    if debug or (expected is None and log is None):
        traceback.print_exc()
    if expected is None and log is not None:
        first = next(iter(str(error).splitlines()), "")
        expected = f"{type(error).__name__}: {first}\nThis is not an error that we foresaw: please report it."
    if expected is not None:
        echo("\n".join(f"error: {line}" for line in expected.splitlines()), err=True)
    if log is not None:
        echo(f"log: {log}", err=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; 0, 1 for an error with its line on stderr, 2 for wrong usage, 75 after SIGTERM, 130 on Ctrl-C.

    Args:
      arguments: of the command line; None takes those of the process.
    """
    silence()
    given = sys.argv[1:] if arguments is None else arguments
    debug = ["--debug"] if "--debug" in given else []  # it may come before and after the command
    run_log.forget_log()
    try:
        app(args=[*debug, *(one for one in given if one != "--debug")])
    except Exception as error:
        _show(error, bool(debug))
        sys.exit(PREEMPTED if was_preempted(error) else 1)


if __name__ == "__main__":
    main()
