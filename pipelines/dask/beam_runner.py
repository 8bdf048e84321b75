"""Gives the arguments that run Beam on a Dask cluster."""

from __future__ import annotations

from components.dask.keys import dask_address
from pipelines.config import PipelineConfig
from pipelines.pipeline.run_target import NO_CONTAINER


def beam_args(config: PipelineConfig) -> tuple[str, ...]:
    """Return the arguments of Beam; none if the configuration does not choose Dask."""
    address = dask_address(config)
    return () if address is None else on_dask(address)


def on_dask(address: str) -> tuple[str, ...]:
    """Return the arguments that run Beam on the Dask cluster whose scheduler is at `address`."""
    return ("--runner=components.dask.dask_runner.DaskRunner", f"--dask_cluster={address}", NO_CONTAINER)
