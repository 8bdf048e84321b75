"""Runs a pipeline on this machine node by node, and reports the result of each.

TFX's `LocalDagRunner` does the same silently; this runner adds the figures for the user and the report: which node
runs, how long each took, and which came from the cache.

It also checks what a node reads. The digest of every output is recorded in the transaction that publishes it. Before a
node runs, each of its inputs is read and compared with its digest, once in a run. A damaged input is set aside and made
again.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ml_metadata import MetadataStore
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

from components import compat
from embedding_core.errors import DataError
from pipelines.local.metadata_repair import is_as_recorded, note_content, record_content, recorded_content, set_aside
from pipelines.report.run_report import NodeRun, State

Say: TypeAlias = Callable[[str], None]
Message: TypeAlias = Any  # a protocol buffer of TFX's private intermediate representation

_ATTEMPTS = 3
"""Maximum number of passes while damaged inputs are found: a failing disk could damage every new output."""


class _DamagedInputsError(Exception):
    """Some inputs changed since they were published; `artifacts` are their entries in ML Metadata."""

    def __init__(self, artifacts: list[Artifact]) -> None:
        super().__init__(f"damaged: {', '.join(artifact.uri for artifact in artifacts)}")
        self.artifacts = artifacts


class ReportingDagRunner(compat.IrBasedRunner):
    """Runs the nodes one after another in this process, in topological order.

    Args:
      on_change: called when a node starts (state "running") and when it ends.
      say: called with a line for the user when a damaged artifact is made again.
      stage: makes the context that a node runs in, from the node's id.
    """

    def __init__(
        self,
        on_change: Callable[[NodeRun], None],
        say: Say = lambda _: None,
        stage: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._on_change = on_change
        self._say = say
        self._stage = stage
        self._checked: set[int] = set()
        self.nodes: list[NodeRun] = []

    def run_with_ir(self, pipeline: Message, run_options: object = None, **_: object) -> None:
        """Run the compiled pipeline; an error of a node ends the run and is raised as it is.

        Args:
          pipeline: a `pipeline_pb2.Pipeline`.
          run_options: not supported by this runner.

        Raises:
          ValueError: `run_options` is given.
          DataError: a damaged artifact cannot be made again, or is damaged again each time it is made.
        """
        if run_options:
            raise ValueError(f"`run_options` is {run_options!r}: this runner runs whole pipelines; leave it out.")
        deployment = compat.runner_utils.extract_local_deployment_config(pipeline)
        connection = deployment.metadata_connection_config
        connection = getattr(connection, connection.WhichOneof("connection_config"))
        executed: dict[str, NodeRun] = {}
        for attempt in range(1, _ATTEMPTS + 1):
            self.nodes = []
            try:
                current = _with_run_id(pipeline)
                for index, node in enumerate(current.nodes, start=1):
                    self._run_node(current, deployment, connection, node.pipeline_node, index, len(current.nodes))
            except _DamagedInputsError as error:
                self._set_aside(connection, error.artifacts, _imported(pipeline), is_last=attempt == _ATTEMPTS)
                executed.update({run.node: run for run in self.nodes if run.state == "executed"})
                continue
            # A node that ran before a damaged input was found comes from the cache afterwards: report it as executed.
            self.nodes = [executed.get(run.node, run) if run.state == "cached" else run for run in self.nodes]
            return

    def _run_node(
        self, pipeline: Message, deployment: Message, connection: Message, node: Message, index: int, count: int
    ) -> None:
        name = node.node_info.id
        self._on_change(NodeRun(node=name, index=index, count=count, state="running"))
        launcher = compat.CheckedLauncher(
            before_run=self._check,
            before_publication=_record,
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
            with self._stage(name):
                info = launcher.launch()
            execution = None if info is None else info.execution_id
            state = _published(connection, execution)
        except _DamagedInputsError:
            state = "damaged"
            raise
        finally:
            seconds = time.monotonic() - started
            run = NodeRun(node=name, index=index, count=count, state=state, seconds=seconds, execution=execution)
            self.nodes.append(run)
            self._on_change(run)

    def _check(self, artifacts: Iterable[Artifact]) -> None:
        """Read the inputs of a node, and compare them with what was published."""
        damaged = []
        for artifact in artifacts:
            recorded = recorded_content(artifact)
            if recorded is None or artifact.id in self._checked:
                continue
            if is_as_recorded(artifact.uri, recorded, by_digest=True):
                self._checked.add(artifact.id)
            else:
                damaged.append(artifact)
        if damaged:
            raise _DamagedInputsError(damaged)

    def _set_aside(self, connection: Message, artifacts: list[Artifact], imported: set[str], *, is_last: bool) -> None:
        with compat.metadata.Metadata(connection) as handle:
            for artifact in artifacts:
                if not set_aside(handle.store, artifact):
                    raise DataError(
                        f"{artifact.uri!r} is damaged: its files are not those that were imported, though sizes and "
                        "times are equal; restore it, or give the address of another one."
                    )
                if is_last:
                    raise DataError(
                        f"{artifact.uri!r} is damaged, and so were other artifacts that this run made again: check "
                        "the disk and the memory of this machine, and run the pipeline again."
                    )
                if artifact.uri not in imported:
                    self._say(f"{artifact.uri} is damaged: it is set aside, and made again")
        lost = [artifact.uri for artifact in artifacts if artifact.uri in imported]
        if lost:
            raise DataError(_not_made_here(lost[0]))


def _imported(pipeline: Message) -> set[str]:
    """Return the addresses that Importers bring in: no node of this pipeline makes them, even if a previous run did."""
    parameters = (node.pipeline_node.parameters.parameters for node in pipeline.nodes)
    return {
        parameter["artifact_uri"].field_value.string_value for parameter in parameters if "artifact_uri" in parameter
    }


def _with_run_id(pipeline: Message) -> Message:
    """Copy the pipeline, with a new run id: TFX does not run a node twice under one id."""
    numbered = type(pipeline)()
    numbered.CopyFrom(pipeline)
    run_id = datetime.datetime.now().isoformat()
    compat.substitute_runtime_parameter(numbered, {compat.PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    return numbered


def _record(artifacts: Iterable[Artifact]) -> None:
    """Record the content of outputs, so that damage can be detected later."""
    for artifact in artifacts:
        note_content(artifact)


def _published(connection: Message, execution: int | None) -> State:
    """Return the state of a node that did not fail. An Importer's output is recorded here, as it has no executor."""
    if execution is None:
        return "skipped"
    with compat.metadata.Metadata(connection) as handle:
        (published,) = handle.store.get_executions_by_id([execution])
        if published.last_known_state == Execution.CACHED:
            _require_live(handle.store, execution)
            return "cached"
        if published.last_known_state != Execution.COMPLETE:
            raise DataError(
                f"execution {execution} could not start: one of its inputs was not made; run the pipeline again."
            )
        _require_live(handle.store, execution)
        record_content(handle.store, execution)
    return "executed"


def _require_live(store: MetadataStore, execution: int) -> None:
    """Raise an error for outputs that were set aside; if their recorded content was restored, make them live again.

    Without this check, TFX's Importer would import these outputs, and a node whose optional inputs they are would run
    without them.
    """
    events = store.get_events_by_execution_ids([execution])
    ids = [event.artifact_id for event in events if event.type == Event.OUTPUT]
    outputs = store.get_artifacts_by_id(ids)
    for artifact in (output for output in outputs if output.state == Artifact.DELETED):
        recorded = recorded_content(artifact)
        if recorded is None or not is_as_recorded(artifact.uri, recorded, by_digest=True):
            raise DataError(_not_made_here(artifact.uri))
        artifact.state = Artifact.LIVE
        store.put_artifacts([artifact])


def _not_made_here(uri: str) -> str:
    return (
        f"{uri!r} is damaged, and was set aside: this run starts from it and cannot make it again. Run the pipeline on "
        "the data that it was made from, which restores it, or give the address of another one."
    )
