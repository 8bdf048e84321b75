"""Checks the rules on clusters and servers: where Beam works, and where the metadata is."""

from __future__ import annotations

from collections.abc import Callable

from embedding_core.errors import ConfigError
from embedding_core.schema import Mistakes
from pipelines.config.metadata_server import MetadataServer, is_server
from pipelines.config.pipeline_config import PipelineConfig


def _one_kind_of_workers(config: PipelineConfig) -> Mistakes:
    if config.beam.runner == "dask" and config.data.workers > 1:
        given = f"is {config.data.workers}, but `beam.runner` is 'dask', whose cluster has workers of its own"
        yield "data.workers", f"{given}: leave it out."


def _one_runner(config: PipelineConfig) -> Mistakes:
    if config.beam.runner == "dask" and config.kubeflow is not None and config.kubeflow.beam_args:
        yield "kubeflow.beam_args", "is given, but `beam.runner` is 'dask': leave out one of the two."


def _server_has_an_address(config: PipelineConfig) -> Mistakes:
    if config.metadata is None or not is_server(config.metadata):
        return
    try:
        MetadataServer.of(config.metadata)
    except ConfigError as error:
        yield "metadata", str(error).removeprefix("`metadata` ")


CLUSTER_RULES: list[tuple[frozenset[str], Callable[[PipelineConfig], Mistakes]]] = [
    (frozenset({"beam", "data"}), _one_kind_of_workers),
    (frozenset({"beam", "kubeflow"}), _one_runner),
    (frozenset({"metadata"}), _server_has_an_address),
]
"""Rules with the sections that each reads."""
