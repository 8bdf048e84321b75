"""Defines `tfx-embeddings metadata check`, which checks the ML Metadata of a pipeline."""

from __future__ import annotations

import typer

from embedding_core.errors import StorageError
from pipelines.commands.shared_options import Config, Override
from pipelines.config import PipelineConfig, load_config
from pipelines.console.terminal import echo
from pipelines.local.metadata_store import check_store

app = typer.Typer(name="metadata", help="Check the ML Metadata of a pipeline.", no_args_is_help=True)


@app.command()
def check(config: Config, overrides: Override = None) -> None:
    """Check the metadata of CONFIG and every artifact in it.

    Exit code 1: something is damaged or gone.
    """
    checked = load_config(config, overrides or ())
    if check_store(checked.metadata_path, for_writing=False) is None:
        raise StorageError(f"metadata {checked.metadata_path!r} does not exist or is empty: run the pipeline first.")
    known, wrong, replaced = _artifacts(checked)
    for uri in replaced:
        echo(f"{uri!r} changed since it was imported, or is gone; it is yours", err=True)
    if wrong:
        raise StorageError(
            "\n".join(f"{uri!r} is damaged or gone: the next run that reads it restores it." for uri in wrong)
        )
    echo(f"{checked.metadata_path} is intact; {known - len(replaced)} artifacts are as they were recorded")


def _artifacts(config: PipelineConfig) -> tuple[int, list[str], list[str]]:
    """Count the artifacts with a recorded content; list the URIs of those that differ from it: made, and imported."""
    from pipelines.lineage.graph import open_store
    from pipelines.local.metadata_repair import is_as_recorded, is_imported, is_output, recorded_content

    store = open_store(config.metadata_path)
    context = store.get_context_by_type_and_name("pipeline", config.name)
    artifacts = [] if context is None else store.get_artifacts_by_context(context.id)
    live = [(artifact, recorded_content(artifact)) for artifact in artifacts if is_output(artifact)]
    known = [(artifact, recorded) for artifact, recorded in live if recorded is not None]
    wrong = [artifact for artifact, recorded in known if not is_as_recorded(artifact.uri, recorded, by_digest=True)]
    made, imported = ([each.uri for each in wrong if is_imported(each) == kind] for kind in (False, True))
    return len(known), made, imported
