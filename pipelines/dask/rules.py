"""Checks the rules on the section `beam` that involve other sections."""

from __future__ import annotations

from components.dask.keys import dask_address
from embedding_core.schema import Mistakes
from pipelines.config.pipeline_config import PipelineConfig


def _one_kind_of_workers(config: PipelineConfig) -> Mistakes:
    if dask_address(config) is not None and config.data.workers > 1:
        given = f"is {config.data.workers}, but `beam.runner` is 'dask', whose cluster has workers of its own"
        yield "data.workers", f"{given}: leave it out."


def _one_runner(config: PipelineConfig) -> Mistakes:
    if dask_address(config) is not None and config.kubeflow is not None and config.kubeflow.beam_args:
        yield "kubeflow.beam_args", "is given, but `beam.runner` is 'dask': leave out one of the two."


RULES = [
    (frozenset({"beam", "data"}), _one_kind_of_workers),
    (frozenset({"beam", "kubeflow"}), _one_runner),
]
"""Rules with the sections that each reads."""
