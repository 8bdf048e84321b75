"""Describes the machine or cluster that a pipeline runs on, its ML Metadata, and the artifacts of previous runs."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.rooms import hooks
from embedding_core.schema import Json
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import MetadataServer, is_server
from pipelines.config.sections import data_location

# Makes the connection to ML Metadata: a sqlite file, or a MySQL server.


def metadata_connection(metadata: str, *, read_only: bool = False) -> mlmd.ConnectionConfig:
    """Return the connection to a store.

    Args:
      metadata: path of a sqlite file, or address of a server.
      read_only: whether sqlite refuses to write; a server's user has the rights that the server gives.

    Raises:
      ConfigError: the address breaks its rule, or the password is missing.
    """
    connection = mlmd.ConnectionConfig()
    if is_server(metadata):
        server = MetadataServer.of(metadata)
        connection.mysql.database, connection.mysql.user = server.database, server.user
        connection.mysql.password = server.password
        connection.mysql.socket = server.socket
        logging.getLogger("absl").addFilter(_holds_no_password)
        return connection
    connection.sqlite.filename_uri = metadata
    modes = mlmd.SqliteMetadataSourceConfig
    connection.sqlite.connection_mode = modes.READONLY if read_only else modes.READWRITE_OPENCREATE
    return connection


def _holds_no_password(record: logging.LogRecord) -> bool:
    """Keep a record of the log, unless it holds the password: ML Metadata logs its connection at level DEBUG."""
    # The connection is logged as the text of its proto, which may write the password in another form.
    return not str(record.msg).startswith("ConnectionConfig")


# Describes the machine or cluster that a pipeline runs on: everything that differs between a laptop and a cluster.

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
    """Describe this machine: nodes write into the work_dir; ML Metadata is the file or server of `metadata`."""
    return RunTarget(
        name=config.name,
        root=os.path.join(config.work_dir, "artifacts"),
        input_base=data_location(config.data)[0],
        push_destination=config.push_destination,
        resume_dir=os.path.join(config.work_dir, "resume"),
        beam_args=beam_args(config, config.data.workers),
        metadata=metadata_connection(config.metadata_path),
    )


def beam_args(config: PipelineConfig, workers: int = 1) -> tuple[str, ...]:
    """Return the arguments of Beam: those of a room's runner, or of `workers` processes on this machine."""
    for room in hooks("pipelines", "beam_runner"):
        if arguments := room.beam_args(config):
            return tuple(arguments)
    if workers == 1:
        return IN_PROCESS
    return (*IN_PROCESS, "--direct_running_mode=multi_processing", f"--direct_num_workers={workers}")


# Names the artifacts of previous runs that a run starts from.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreviousRun:
    """Artifacts of previous runs that a run starts from; in a compiled pipeline the URIs are runtime parameters.

    Attributes:
      checkpoint: URI of an EmbeddingCheckpoint to start the tables from, or None to start cold.
      baseline: URI of a Model that the Evaluator compares with, or None.
      versions: URIs of earlier versions that gates compare with, by the key of the YAML file that names each.
      vocabularies: URI of Vocabularies that the new ones extend, or None to count from this run's data alone.
      transform_graph: URI of the TransformGraph to keep, or None to analyse this run's data.
      table_configs: URI of the TableConfigs that the checkpoint was trained with, to compare limits with; or None.
      repeats: description of a previous training on this run's data, which this run repeats or replaces; or None.
      notes: sentences for the console and the report: what was chosen and why.
    """

    checkpoint: str | None = None
    baseline: str | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vocabularies: str | None = None
    transform_graph: str | None = None
    table_configs: str | None = None
    repeats: str | None = None
    notes: tuple[str, ...] = ()
