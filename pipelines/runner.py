"""Runs a pipeline on this machine, node by node, and says of each what became of it.

TFX's `LocalDagRunner` does the same work silently; this runner adds the figures that a person and
the report want: which of how many nodes runs, how long each took, and which came from the cache.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from ml_metadata.proto import metadata_store_pb2

from components import compat
from pipelines.upkeep import record_content

__all__ = ["Finished", "NodeRun", "ReportingDagRunner"]

State: TypeAlias = Literal["running", "executed", "cached", "skipped", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeRun:
    """One node of one run.

    Attributes:
      node: id of the node.
      index, count: its place among the nodes of the pipeline, from 1.
      state: what became of it.
      seconds: wall time that it took; 0 while it runs.
      execution: id of its execution in ML Metadata, where it has one.
    """

    node: str
    index: int
    count: int
    state: State
    seconds: float = 0.0
    execution: int | None = None


Finished: TypeAlias = Callable[[NodeRun], None]


class ReportingDagRunner(compat.IrBasedRunner):
    """Runs the nodes one after another in this process, in topological order.

    Args:
      on_change: called when a node starts (state "running") and when it ends.
    """

    def __init__(self, on_change: Finished) -> None:
        self._on_change = on_change
        self.nodes: list[NodeRun] = []

    def run_with_ir(self, pipeline: Any, run_options: Any = None, **_: Any) -> None:
        """Run the compiled pipeline; an error of a node ends the run and is raised as it is.

        Args:
          pipeline: a `pipeline_pb2.Pipeline`.
          run_options: not supported by this runner.

        Raises:
          ValueError: `run_options` is given.
        """
        if run_options:
            raise ValueError(f"`run_options` is {run_options!r}: this runner runs whole pipelines; leave it out.")
        run_id = datetime.datetime.now().isoformat()
        compat.substitute_runtime_parameter(pipeline, {compat.PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
        deployment = compat.runner_utils.extract_local_deployment_config(pipeline)
        connection = deployment.metadata_connection_config
        connection = getattr(connection, connection.WhichOneof("connection_config"))
        nodes = [node.pipeline_node for node in pipeline.nodes]
        for index, node in enumerate(nodes, start=1):
            self._run_node(pipeline, deployment, connection, node, index, len(nodes))

    def _run_node(self, pipeline: Any, deployment: Any, connection: Any, node: Any, index: int, count: int) -> None:
        name = node.node_info.id
        self._on_change(NodeRun(node=name, index=index, count=count, state="running"))
        launcher = compat.Launcher(
            pipeline_node=node,
            mlmd_connection=compat.metadata.Metadata(connection),
            pipeline_info=pipeline.pipeline_info,
            pipeline_runtime_spec=pipeline.runtime_spec,
            executor_spec=compat.runner_utils.extract_executor_spec(deployment, name),
            custom_driver_spec=compat.runner_utils.extract_custom_driver_spec(deployment, name),
        )
        started = time.monotonic()
        state: State = "failed"
        execution = None
        try:
            info = launcher.launch()
            execution = None if info is None else info.execution_id
            state = _published(connection, execution)
        finally:
            seconds = time.monotonic() - started
            run = NodeRun(node=name, index=index, count=count, state=state, seconds=seconds, execution=execution)
            self.nodes.append(run)
            self._on_change(run)


def _published(connection: Any, execution: int | None) -> State:
    """What became of a node that did not fail; what it put out is recorded, so that damage is seen later."""
    if execution is None:
        return "skipped"
    with compat.metadata.Metadata(connection) as handle:
        (found,) = handle.store.get_executions_by_id([execution])
        if found.last_known_state == metadata_store_pb2.Execution.CACHED:
            return "cached"
        record_content(handle.store, execution)
    return "executed"
