"""Describes the machine or cluster that a pipeline runs on: everything that differs between a laptop and a cluster."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from embedding_core.schema import Json
from pipelines.config import PipelineConfig
from pipelines.pipeline import component_inputs
from pipelines.pipeline.metadata_connection import metadata_connection

NO_CONTAINER = "--sdk_container_image=none"
"""Keeps TFX from packaging itself for workers (42 MB in the temporary folder, for each component), as it does unless an
argument names a container image."""
IN_PROCESS = ("--runner=FnApiRunner", "--direct_running_mode=in_memory", NO_CONTAINER)
"""Arguments that run Beam in the task's own process. DirectRunner would try to download another runner and run it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTarget:
    """Machine or cluster that a pipeline runs on.

    A field of type Any may also be a runtime parameter, given when the pipeline is started.

    Attributes:
      name: name of the pipeline, as the orchestrator wants it.
      root: folder or address below which every node writes.
      input_base: folder of the data, below which the pattern finds its files.
      push_destination: folder of served versions.
      resume_dir: folder of checkpoints while training.
      beam_args: arguments of every Beam node.
      metadata: connection to ML Metadata, if the orchestrator does not provide one.
      spans: "<first>/<last>" to read instead of the configured ones, or None.
      training_steps: replaces the configured steps if above 0; or None.
      vertex_job: the Vertex CustomJob that trains; None trains in the node itself.
    """

    name: str
    root: str
    input_base: Any
    push_destination: Any
    resume_dir: Any
    beam_args: tuple[str, ...] = IN_PROCESS
    metadata: Any = None
    spans: Any = None
    training_steps: Any = None
    vertex_job: Json | None = None


def local_target(config: PipelineConfig) -> RunTarget:
    """Describe this machine: everything in the work_dir, ML Metadata in a sqlite file."""
    return RunTarget(
        name=config.name,
        root=os.path.join(config.work_dir, "artifacts"),
        input_base=component_inputs.input_location(config)[0],
        push_destination=config.push_destination,
        resume_dir=os.path.join(config.work_dir, "resume"),
        beam_args=beam_args(config, config.data.workers),
        metadata=metadata_connection(config.metadata_path),
    )


def beam_args(config: PipelineConfig, workers: int = 1) -> tuple[str, ...]:
    """Return the arguments of Beam: those of a Dask cluster, or of `workers` processes on this machine."""
    if config.beam.runner == "dask":
        return on_dask(str(config.beam.address))
    if workers == 1:
        return IN_PROCESS
    return (*IN_PROCESS, "--direct_running_mode=multi_processing", f"--direct_num_workers={workers}")


def on_dask(address: str) -> tuple[str, ...]:
    """Return the arguments that run Beam on the Dask cluster whose scheduler is at `address`."""
    return ("--runner=components.dask_runner.DaskRunner", f"--dask_cluster={address}", NO_CONTAINER)
