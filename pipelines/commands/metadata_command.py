"""Defines `tfx-embeddings metadata backup | restore | check`, which work on the ML Metadata of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embedding_core.errors import StorageError
from pipelines.commands.shared_options import Config, Override
from pipelines.config import PipelineConfig, load_config
from pipelines.console.terminal import echo
from pipelines.local.metadata_store import back_up, check_store, restore

app = typer.Typer(
    name="metadata", help="Back up, restore and check the ML Metadata of a pipeline.", no_args_is_help=True
)


@app.command()
def backup(
    config: Config,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; by default it is beside the metadata.")
    ] = None,
    overrides: Override = None,
) -> None:
    """Copy the metadata of CONFIG. A run may be using it."""
    checked = load_config(config, overrides or ())
    echo(f"wrote {back_up(checked.metadata_path, None if out is None else str(out))}")


@app.command(name="restore")
def restore_(
    config: Config,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `backup` wrote.", show_default=False)],
    overrides: Override = None,
) -> None:
    """Replace the metadata of CONFIG by FILE; the replaced file is kept under another name."""
    from pipelines.local.work_dir import run_lock

    checked = load_config(config, overrides or ())
    with run_lock(checked):
        aside = restore(checked.metadata_path, str(file))
    echo(f"restored {checked.metadata_path}" + ("" if aside is None else f"; the replaced file is now {aside}"))


@app.command()
def check(config: Config, overrides: Override = None) -> None:
    """Check the metadata of CONFIG and every artifact in it.

    Exit code 1: something is damaged or gone.
    """
    checked = load_config(config, overrides or ())
    if check_store(checked.metadata_path, for_writing=False) is None:
        raise StorageError(f"metadata {checked.metadata_path!r} does not exist or is empty: run the pipeline first.")
    known, wrong = _artifacts(checked)
    if wrong:
        raise StorageError(
            "\n".join(f"{uri!r} is damaged or gone: the next run that reads it restores it." for uri in wrong)
        )
    echo(f"{checked.metadata_path} is intact; {known} artifacts are as they were recorded")


def _artifacts(config: PipelineConfig) -> tuple[int, list[str]]:
    """Count the artifacts with a recorded content, and list the URIs of those that differ from it."""
    from pipelines.lineage.graph import open_store
    from pipelines.local.content import is_as_recorded, recorded_content
    from pipelines.local.metadata_repair import is_output

    store = open_store(config.metadata_path)
    context = store.get_context_by_type_and_name("pipeline", config.name)
    artifacts = [] if context is None else store.get_artifacts_by_context(context.id)
    live = [(one.uri, recorded_content(one)) for one in artifacts if is_output(one)]
    known = [(uri, recorded) for uri, recorded in live if recorded is not None]
    return len(known), [uri for uri, recorded in known if not is_as_recorded(uri, recorded, by_digest=True)]
