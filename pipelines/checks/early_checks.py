"""Checks whether a command can use a configuration, before TensorFlow or TFX is imported."""

from __future__ import annotations

from collections.abc import Iterator

from embedding_core.errors import ConfigError
from embedding_core.planning.topology import Topology, named_topology
from pipelines.config import PipelineConfig
from pipelines.config.data import missing_spans


def warnings_of(config: PipelineConfig) -> Iterator[str]:
    """Yield warnings about what may be a mistake, but does not stop a run."""
    gaps = missing_spans(config.data)
    if gaps.total:
        yield (
            f"{gaps.total} spans of {config.data.path!r} have no file: {gaps}; the others are read. "
            "`data: {spans: {missing: error}}` makes this an error; `every: 7` says that files are weekly."
        )


def requested_slice(config: PipelineConfig, topology: str | None = None) -> Topology:
    """Return the TPU slice that `preflight` is for.

    Args:
      config: the pipeline.
      topology: name of a slice; None uses `training.topology`.

    Raises:
      ConfigError: neither is given, or the name is unknown.
    """
    name = topology or config.training.topology
    if name is None:
        raise ConfigError("`--slice` is not given, nor is `training.topology`: name a TPU slice, such as v3-8.")
    return named_topology(name)
