"""Reads the graph of artifacts in ML Metadata, or from the records beside the artifacts.

The search walks events breadth first, from an artifact to the execution that has it as OUTPUT, and from there to that
execution's INPUTs. This works with every build of ML Metadata; some builds lack the query language that could do it in
one call. The store is opened read-only, and no file of an artifact is touched.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import ml_metadata
from google.protobuf import json_format
from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.artifact_files import RECORD_SUFFIX
from embedding_core.errors import DataError
from embedding_core.schema import Json
from embedding_core.storage import is_remote, read_json
from pipelines.config.metadata_server import has_store, is_server, without_password
from pipelines.pipeline.run_target import metadata_connection

Facts: TypeAlias = Mapping[str, Any]
"""Custom properties of an artifact by name, JSON texts decoded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """One run of one pipeline node.

    Attributes:
      id: its id in ML Metadata.
      node: id of the pipeline node.
      state: its state in ML Metadata, such as "COMPLETE" or "CACHED".
      seconds: wall time between its creation and its last update; None if it was not recorded.
    """

    id: int
    node: str
    state: str
    seconds: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """One artifact of a lineage, its facts, and what made it.

    Attributes:
      id: its id in ML Metadata.
      type: name of its type, such as "components.Vocabularies".
      uri: address of its files.
      facts: its custom properties.
      producer: the execution that made it; None for an imported artifact.
      inputs: ids of the artifacts that went into it, in order.
    """

    id: int
    type: str
    uri: str
    facts: Facts
    producer: Execution | None
    inputs: tuple[int, ...]


KnownNodes: TypeAlias = dict[int, tuple[mlmd.Artifact, Node]]
"""Nodes that were read, by id, each with its artifact; times in ms do not tell two updates apart."""

_KNOWN: dict[tuple[str, int, int], KnownNodes] = {}
"""What this process read of each store, by its path, device and inode: a store that is restored has another inode."""


def open_store(metadata_path: str | Path) -> MetadataStore:
    """Open the ML Metadata store at that path or address; a sqlite file read-only.

    Raises:
      DataError: the file does not exist, or is not a store of ML Metadata.
      StorageError: the server does not answer, or refuses the user.
    """
    metadata = str(metadata_path)
    if not has_store(metadata):
        missing = "there is no store of ML Metadata" if is_server(metadata) else "no such file, or an empty one"
        raise DataError(f"metadata is {metadata!r}: {missing}; run the pipeline first, or name its work_dir.")
    try:
        return ml_metadata.MetadataStore(metadata_connection(metadata, read_only=True))
    except (RuntimeError, ml_metadata.errors.StatusError) as error:
        text = " ".join(without_password(str(error)).split())[:80]
        raise DataError(
            f"metadata {metadata!r} cannot be opened ({text}): it is not a store of ML Metadata, or it is damaged; "
            "restore it, or read the records beside the artifacts (--recorded)."
        ) from error


def artifacts_of(store: MetadataStore, type_name: str, *, pipeline: str) -> list[int]:
    """Return the ids of a pipeline's live artifacts of a type, the oldest first."""
    return sorted(
        artifact.id
        for artifact in _artifacts(store, pipeline)
        if artifact.type == type_name and artifact.state == mlmd.Artifact.LIVE
    )


def _artifacts(store: MetadataStore, pipeline: str | None) -> list[mlmd.Artifact]:
    if pipeline is None:
        return list(store.get_artifacts())
    context = store.get_context_by_type_and_name("pipeline", pipeline)
    return [] if context is None else list(store.get_artifacts_by_context(context.id))


def outputs_of(store: MetadataStore, execution_id: int) -> list[int]:
    """Return the ids of the artifacts that the execution produced, or took from the cache, in order."""
    kinds = (mlmd.Event.OUTPUT, mlmd.Event.DECLARED_OUTPUT)
    return [event.artifact_id for event in store.get_events_by_execution_ids([execution_id]) if event.type in kinds]


def trace(store: MetadataStore, artifact_id: int, known: Mapping[int, Node] | None = None) -> dict[int, Node]:
    """Read an artifact and everything it was made of, by id, the artifact itself first; `known` is not read again."""
    known = known or {}
    nodes: dict[int, Node] = {}
    waiting = [artifact_id]
    while waiting:
        fresh = [number for number in dict.fromkeys(waiting) if number not in nodes]
        read = {node.id: node for node in _read_nodes(store, [number for number in fresh if number not in known])}
        nodes.update({number: known.get(number) or read[number] for number in fresh})
        waiting = [parent for number in fresh for parent in nodes[number].inputs if parent not in nodes]
    return nodes


def read_node(store: MetadataStore, artifact_id: int) -> Node:
    """Read one artifact, without those that it was made of, whose number grows with every run."""
    (node,) = _read_nodes(store, [artifact_id])
    return node


def read_graph(store: MetadataStore, pipeline: str | None = None, known: KnownNodes | None = None) -> dict[int, Node]:
    """Read every artifact of the pipeline (None: of the store), by id.

    Args:
      store: the metadata.
      pipeline: name of the pipeline.
      known: nodes of previous reads of this store. Those whose artifacts did not change since are not read again; the
        others, and new ones, are added. None reads all.
    """
    known = {} if known is None else known
    artifacts = {artifact.id: artifact for artifact in _artifacts(store, pipeline)}
    changed = [
        artifact for artifact in sorted(artifacts) if artifact not in known or known[artifact][0] != artifacts[artifact]
    ]
    known.update({node.id: (artifacts[node.id], node) for node in _read_nodes(store, changed)})
    return {artifact: known[artifact][1] for artifact in sorted(artifacts)}


def reread_graph(store: MetadataStore, metadata_path: str, pipeline: str) -> dict[int, Node]:
    """Read every artifact of the pipeline, by id; reads only what changed since this process read it last.

    `follow` needs the graph several times in each run, and the graph grows with every run. From a server, all is read.

    Args:
      store: the metadata.
      metadata_path: path of the store.
      pipeline: name of the pipeline.
    """
    if is_server(metadata_path):  # nothing tells whether it was restored from a backup, which may give ids again
        return read_graph(store, pipeline)
    state = os.stat(metadata_path)
    return read_graph(store, pipeline, _KNOWN.setdefault((metadata_path, state.st_dev, state.st_ino), {}))


def upstream(graph: Mapping[int, Node], start: int) -> dict[int, Node]:
    """Return the artifact and everything in the graph that it was made of, by id, the artifact itself first."""
    return _reached(graph, [start], {node.id: node.inputs for node in graph.values()})


def node_of(lineage: Mapping[int, Node], kind: str) -> Node | None:
    """Return the first artifact of that type in the result of `upstream`, which is the nearest one, or None.

    The nearest artifact belongs to the run itself. The highest id does not identify it: runs share artifacts, so
    the run's own need not be the newest, and the ids of artifacts that were read from records have no order.
    """
    return next((node for node in lineage.values() if node.type == kind), None)


def started_from(lineage: Mapping[int, Node]) -> Node | None:
    """Return the remapped checkpoint that the run itself started from; None for a cold start.

    A checkpoint of another model in the lineage, such as that which the evaluation compares with, does not count.
    """
    run = node_of(lineage, "ModelRun")
    inputs = [] if run is None else [lineage[number] for number in run.inputs]
    return next((node for node in inputs if "remap" in node.facts), None)


def downstream(graph: Mapping[int, Node], starts: Sequence[int]) -> dict[int, Node]:
    """Return the artifacts and everything in the graph that was made of them, by id, the artifacts themselves first."""
    made: dict[int, list[int]] = {}
    for node in graph.values():
        for source in node.inputs:
            made.setdefault(source, []).append(node.id)
    return _reached(graph, starts, made)


def _reached(graph: Mapping[int, Node], starts: Sequence[int], edges: Mapping[int, Sequence[int]]) -> dict[int, Node]:
    reached: dict[int, Node] = {}
    waiting = list(starts)
    while waiting:
        reached.update({number: graph[number] for number in waiting})
        waiting = [
            other for number in waiting for other in dict.fromkeys(edges.get(number, ())) if other not in reached
        ]
    return reached


def _read_nodes(store: MetadataStore, artifact_ids: Iterable[int]) -> Iterator[Node]:
    ids = list(artifact_ids)
    if not ids:
        return
    artifacts = {artifact.id: artifact for artifact in store.get_artifacts_by_id(ids)}
    makers: dict[int, int] = {}
    for event in store.get_events_by_artifact_ids(ids):
        if event.type in (mlmd.Event.OUTPUT, mlmd.Event.DECLARED_OUTPUT):
            # Cached executions name the artifact as their output too; the oldest execution made it.
            makers[event.artifact_id] = min(event.execution_id, makers.get(event.artifact_id, event.execution_id))
    executions = {execution.id: execution for execution in store.get_executions_by_id(sorted(set(makers.values())))}
    inputs: dict[int, list[int]] = {}
    for event in store.get_events_by_execution_ids(list(executions)):
        if event.type in (mlmd.Event.INPUT, mlmd.Event.DECLARED_INPUT):
            inputs.setdefault(event.execution_id, []).append(event.artifact_id)
    for number in ids:
        maker, artifact = makers.get(number), artifacts[number]
        yield Node(
            id=number,
            type=artifact.type,
            uri=artifact.uri,
            facts=_facts(artifact),
            producer=None if maker is None else _execution(store, executions[maker]),
            inputs=() if maker is None else tuple(dict.fromkeys(inputs.get(maker, []))),
        )


def _execution(store: MetadataStore, execution: mlmd.Execution) -> Execution:
    contexts = store.get_contexts_by_execution(execution.id)
    names = [context.name.rpartition(".")[2] for context in contexts if context.type == "node"]
    return Execution(
        id=execution.id,
        node=names[0] if names else execution.type,
        state=mlmd.Execution.State.Name(execution.last_known_state),
        seconds=(execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000,
    )


def _facts(artifact: mlmd.Artifact) -> Facts:
    return {key: _decoded(value) for key, value in artifact.custom_properties.items() if is_fact(key)}


def is_fact(key: str) -> bool:
    """Whether a custom property describes the artifact, and is not one that TFX needs for itself."""
    return key not in {"name", "tfx_version", "state", "is_external"} and not key.startswith("__")


def _decoded(value: mlmd.Value) -> Any:
    """Convert a property of ML Metadata to a plain value; a text that is JSON is parsed."""
    kind = value.WhichOneof("value")
    if kind in (None, "proto_value"):
        return None
    plain = getattr(value, kind)
    if kind != "struct_value":
        return plain_value(plain)
    content = json_format.MessageToDict(plain)
    return plain_value(content["__value__"]) if content.keys() == {"__value__"} else content  # as TFX wraps JSON


def plain_value(value: Any) -> Any:
    """Return the value, parsed if it is a text that is JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


# Reads lineage from the records beside the artifacts (see `components.base_executor`), without ML Metadata.


def read_records(folder: str) -> dict[int, Node]:
    """Return, by number, every artifact that a record below the folder names.

    An artifact that another project's component made has no record: in the graph it is an input without a producer.

    Args:
      folder: the pipeline's root: a local folder, or an address that TensorFlow can read.

    Raises:
      DataError: records are missing, or one cannot be read.
    """
    records = sorted(_records(folder), key=lambda record: str(record["uri"]))
    if not records:
        raise DataError(f"{folder!r} has no *{RECORD_SUFFIX}: give the folder that the pipeline wrote to.")
    return _graph(records)


def recorded_lineage(uri: str) -> dict[int, Node]:
    """Return an artifact, then everything that it was made of, by following the records beside the artifacts.

    Args:
      uri: address of the artifact, which may belong to another pipeline.

    Returns:
      The numbered nodes; empty without a record beside the artifact.
    """
    records: dict[str, Json] = {}
    waiting = [uri.rstrip("/")]
    while waiting:
        made = waiting.pop()
        record = {} if made in records else json_if_readable(made + RECORD_SUFFIX)
        if record:
            records[made] = record
            waiting += [source["uri"].rstrip("/") for source in record["inputs"]]
    graph = _graph(sorted(records.values(), key=lambda record: str(record["uri"])))
    first = [number for number, node in graph.items() if node.uri.rstrip("/") == uri.rstrip("/")]
    return upstream(graph, first[0]) if first else {}


def _graph(records: Iterable[Json]) -> dict[int, Node]:
    records = [
        {**_without_slash(record), "inputs": [_without_slash(entry) for entry in record["inputs"]]}
        for record in records
    ]
    types = {entry["uri"]: entry["type"] for record in records for entry in record["inputs"]}
    types.update({record["uri"]: record["type"] for record in records})
    numbers = {uri: number for number, uri in enumerate(sorted(types), start=1)}
    by_uri = {record["uri"]: record for record in records}
    return {number: _node(number, uri, types[uri], by_uri.get(uri), numbers) for uri, number in numbers.items()}


def _without_slash(entry: Json) -> Json:
    return {**entry, "uri": entry["uri"].rstrip("/")}


def _node(number: int, uri: str, kind: str, record: Json | None, numbers: Mapping[str, int]) -> Node:
    made = record or {"facts": {}, "inputs": []}
    return Node(
        id=number,
        type=kind,
        uri=uri,
        facts={key: plain_value(value) for key, value in made["facts"].items() if is_fact(key)},
        producer=Execution(id=0, node=record["node"], state="COMPLETE", seconds=None) if record else None,
        inputs=tuple(dict.fromkeys(numbers[entry["uri"]] for entry in made["inputs"])),
    )


def files_of(node: Node) -> list[Json]:
    """Return the external files that the artifact was made of; empty if none were recorded.

    Each has `path` and `size`; those that only the eval split was made of have `split`, "eval".
    """
    files: list[Json] = json_if_readable(node.uri.rstrip("/") + RECORD_SUFFIX).get("files", [])
    return files


def json_if_readable(path: str) -> Json:
    """Return the content of a JSON file; an empty mapping if it was deleted, is damaged or cannot be read."""
    try:
        return _read(path)
    except DataError:
        return {}


def _records(folder: str) -> Iterator[Json]:
    for path in _walk(folder):
        if path.endswith(RECORD_SUFFIX):
            yield _read(path)


def _walk(folder: str) -> Iterator[str]:
    walk = os.walk
    if is_remote(folder):
        import tensorflow as tf  # only for addresses: it takes seconds to load

        walk = tf.io.gfile.walk
    for parent, _, names in walk(folder):
        yield from (os.path.join(parent, name) for name in names)


def _read(path: str) -> Json:
    try:
        return dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"the record {path!r} cannot be read ({error}); remove it, or run the pipeline again."
        ) from error
