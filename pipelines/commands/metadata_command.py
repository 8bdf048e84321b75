"""Adds the commands `tfx-embeddings metadata backup | restore | check`: the store that knows what was made of what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embedding_core.errors import StorageError
from pipelines.config import PipelineConfig, load_config
from pipelines.console.terminal import echo
from pipelines.local.metadata_store import back_up, check_store, restore

__all__ = ["app"]

app = typer.Typer(name="metadata", help="Back up, restore and check the metadata of a pipeline.", no_args_is_help=True)

_Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the pipeline.", show_default=False)]
_Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Put a value over the file's."),
]


@app.command()
def backup(
    config: _Config,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; by default beside the store.")
    ] = None,
    overrides: _Override = None,
) -> None:
    """Copy the metadata of CONFIG, also while it runs."""
    checked = load_config(config, overrides or ())
    echo(f"wrote {back_up(checked.metadata_path, None if out is None else str(out))}")


@app.command(name="restore")
def restore_(
    config: _Config,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `backup` wrote.", show_default=False)],
    overrides: _Override = None,
) -> None:
    """Put FILE in place of the metadata of CONFIG; the one that was there is kept under another name."""
    from pipelines.local.work_dir import run_lock

    checked = load_config(config, overrides or ())
    with run_lock(checked):
        aside = restore(checked.metadata_path, str(file))
    echo(f"restored {checked.metadata_path}" + ("" if aside is None else f"; what was there is now {aside}"))


@app.command()
def check(config: _Config, overrides: _Override = None) -> None:
    """Read the metadata of CONFIG and every artifact that it knows; exit code 1 if something is damaged or gone."""
    checked = load_config(config, overrides or ())
    if check_store(checked.metadata_path, for_writing=False) is None:
        raise StorageError(f"metadata {checked.metadata_path!r} is not there, or is empty: run the pipeline first.")
    known, wrong = _artifacts(checked)
    if wrong:
        raise StorageError(
            "\n".join(f"{uri!r} is damaged or gone: the next run that reads it makes it again." for uri in wrong)
        )
    echo(f"{checked.metadata_path}: as it should be; {known} artifacts are as they were recorded")


def _artifacts(config: PipelineConfig) -> tuple[int, list[str]]:
    """How many artifacts of the pipeline have a recorded content, and the URIs of those that differ from it."""
    from pipelines.lineage.graph import open_store
    from pipelines.local.content import is_as_recorded, recorded_content
    from pipelines.local.metadata_repair import is_output

    store = open_store(config.metadata_path)
    context = store.get_context_by_type_and_name("pipeline", config.name)
    artifacts = [] if context is None else store.get_artifacts_by_context(context.id)
    live = [(one.uri, recorded_content(one)) for one in artifacts if is_output(one)]
    known = [(uri, recorded) for uri, recorded in live if recorded is not None]
    return len(known), [uri for uri, recorded in known if not is_as_recorded(uri, recorded, by_digest=True)]
