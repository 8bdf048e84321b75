"""Checks the rules on where Beam works that involve several sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipelines.config.pipeline_config import PipelineConfig

Mistakes = Iterator[tuple[str, str]]


def _one_kind_of_workers(config: PipelineConfig) -> Mistakes:
    if config.beam.runner == "dask" and config.data.workers > 1:
        given = f"is {config.data.workers}, but `beam.runner` is 'dask', whose cluster has workers of its own"
        yield "data.workers", f"{given}: leave it out."


def _one_runner(config: PipelineConfig) -> Mistakes:
    if config.beam.runner == "dask" and config.kubeflow is not None and config.kubeflow.beam_args:
        yield "kubeflow.beam_args", "is given, but `beam.runner` is 'dask': leave out one of the two."


BEAM_RULES: list[tuple[frozenset[str], Callable[[PipelineConfig], Mistakes]]] = [
    (frozenset({"beam", "data"}), _one_kind_of_workers),
    (frozenset({"beam", "kubeflow"}), _one_runner),
]
"""Rules with the sections that each reads."""
