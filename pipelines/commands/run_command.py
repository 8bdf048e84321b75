"""Defines `tfx-embeddings run`, and `follow`, which runs the pipeline on spans as they arrive."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from embedding_core.rooms import hooks
from embedding_core.storage import is_remote
from pipelines.commands.shared_options import NOTHING_PUSHED, STOPPED, Config, Override, load_checked
from pipelines.console.quiet import collector_paused, load_tensorflow
from pipelines.console.terminal import echo

if TYPE_CHECKING:
    from pathlib import Path

    from pipelines.config import PipelineConfig

Again = Annotated[
    bool,
    typer.Option("--again", help="Train once more on data that was trained on; push again what was rolled back."),
]
Profile = Annotated[
    bool,
    typer.Option("--profile", help="Measure CPU, time, memory, and bytes read and written of each component."),
]


Quiet = Annotated[
    bool | None,
    typer.Option(
        "--quiet/--no-quiet",
        help="Print three lines: the outcome, the main metric, the report's path. By default if the output is not a "
        "terminal.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(run)
    app.command()(follow)


def run(
    config: Config, overrides: Override = None, again: Again = False, profile: Profile = False, quiet: Quiet = None
) -> None:
    """Run the pipeline of CONFIG. The same command resumes a run that was stopped.

    Exit code 3: the run finished, and nothing was pushed. 75: SIGTERM stopped the training; the same command resumes
    it.
    """
    checked = _ready(config, overrides or (), last=_check_data)
    try:
        with collector_paused():
            load_tensorflow()
            from pipelines.local import run_local

        changed = [override.partition("=")[0].strip() for override in overrides or ()]
        is_quiet = not sys.stdout.isatty() if quiet is None else quiet
        result, _ = run_local.run(checked, again=again, changed=changed, profile=profile, quiet=is_quiet, is_ready=True)
    except KeyboardInterrupt:
        raise typer.Exit(_stopped()) from None
    if not result.pushed:
        raise typer.Exit(NOTHING_PUSHED)


def follow(
    config: Config,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when no span is left, instead of waiting for the next one.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="Stop after so many runs; by default never.")
    ] = None,
    overrides: Override = None,
) -> None:
    """Run the pipeline of CONFIG on each span as it arrives, from the version that the previous run pushed.

    A file counts as arrived as soon as it has its name: write it under a name that starts with a dot, and rename it.
    The same command goes on after it was stopped. Exit code 3: the last run pushed nothing. 75: SIGTERM stopped the
    training.
    """
    from pipelines.previous.trained_data import check_follows

    try:
        if not _wait_for_data(config, overrides or (), until_idle=until_idle):
            return
        checked = _ready(config, overrides or (), first=check_follows)
        with collector_paused():
            load_tensorflow()
            from pipelines.local import following

        pushed = True
        for result, report in following.follow(checked, until_idle=until_idle, runs=runs):
            pushed = result.pushed
            outcome = f"pushed {result.pushed_as}" if pushed else f"pushed nothing: {result.reason}"
            echo(outcome if report is None else f"{outcome} (the nodes took {report.took})")
    except KeyboardInterrupt:
        raise typer.Exit(_stopped()) from None
    if not pushed:
        raise typer.Exit(NOTHING_PUSHED)


def show_warnings(config: PipelineConfig) -> None:
    """Print warnings about what may be a mistake, but does not stop a run."""
    from pipelines.config.sections import missing_spans

    gaps = missing_spans(config.data)
    if gaps.total:
        echo(
            f"warning: {gaps.total} spans of {config.data.path!r} have no file: {gaps}; the others are read. "
            "`data: {spans: {missing: error}}` makes this an error; `every: 7` says that files are weekly.",
            err=True,
        )


def _ready(
    config: Path,
    overrides: Sequence[str],
    *,
    first: Callable[[PipelineConfig], None] = lambda _: None,
    last: Callable[[PipelineConfig], None] = lambda _: None,
) -> PipelineConfig:
    """Check the configuration, its data and its metadata before anything heavy is loaded.

    Args:
      config: the YAML file.
      overrides: settings that override the file's.
      first: a further check, made before the others.
      last: a further check, made after the others.
    """
    from pipelines.local.storage_errors import storage_errors_as_one
    from pipelines.local.work_dir import prepare, ready_metadata
    from pipelines.previous.finished_trainings import check_references

    checked = load_checked(config, overrides)
    first(checked)
    for room in hooks("pipelines", "run"):
        room.check(checked)
    show_warnings(checked)
    upgraded = ready_metadata(checked)
    if upgraded is not None:
        echo(f"the metadata is of a previous release: it was upgraded, and {upgraded} is a backup", err=True)
    with storage_errors_as_one(checked):
        check_references(checked)
    last(checked)
    prepare(checked)
    return checked


def _check_data(config: PipelineConfig) -> None:
    """Check the first rows of local data, as `validate --data` does; print only what every model will be refused for.

    Raises:
      DataError: the run would fail.
    """
    if not is_remote(config.data.path):  # only TensorFlow reads these
        from pipelines.checks.data_check import check_data, refuse

        refuse(check_data(config))


def _wait_for_data(config: Path, overrides: Sequence[str], *, until_idle: bool) -> bool:
    """Wait until the first file of the data has arrived; return whether it has, which is False only if `until_idle`.

    Raises:
      ConfigError: another setting is wrong; see `check_follows`.
    """
    from pipelines.config import NoDataYetError, load_config
    from pipelines.previous.trained_data import check_follows

    said = False
    while True:
        try:
            load_config(config, overrides)
        except NoDataYetError as error:
            check_follows(error.config)
            if not said:
                echo(f"{'no' if until_idle else 'waiting for the first'} file of {error.config.data.path!r}", err=True)
                said = True
            if until_idle:
                return False
            time.sleep(error.config.follow.poll_seconds)
        else:
            return True


def _stopped() -> int:
    echo(
        "stopped. The same command resumes the run: finished components come from the cache, and training resumes "
        "at its last checkpoint.",
        err=True,
    )
    return STOPPED
