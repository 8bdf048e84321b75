"""What a model was made of, and what was made of a file: the graph of artifacts in ML Metadata.

Walks events breadth first (OUTPUT of which execution, INPUT of that one), which works with every build of
ML Metadata; the query language that could do it in one call needs a part that some builds lack.
Reads only: the store is opened read-only, and no file of an artifact is touched.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_metadata
from google.protobuf import json_format
from ml_metadata.proto import metadata_store_pb2 as mlmd
from rich.markup import escape
from rich.tree import Tree

from embedding_core.errors import DataError

__all__ = [
    "Execution",
    "Node",
    "artifacts_of",
    "downstream",
    "is_fact",
    "lineage_tree",
    "newest_artifact",
    "node_of",
    "open_store",
    "outputs_of",
    "plain_value",
    "read_graph",
    "trace",
    "upstream",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """One run of one pipeline node.

    Attributes:
      id: its id in ML Metadata.
      node: id of the pipeline node.
      state: ML Metadata's word for its state, such as "COMPLETE" or "CACHED".
      seconds: wall time between its creation and its last update; None where it was not recorded.
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
      uri: where its files are.
      facts: its custom properties, JSON texts decoded.
      producer: the execution that made it; None for an imported artifact.
      inputs: ids of the artifacts that went into it, in order.
    """

    id: int
    type: str
    uri: str
    facts: Mapping[str, Any]
    producer: Execution | None
    inputs: tuple[int, ...]


def open_store(metadata_path: str | Path) -> Any:
    """Open the sqlite ML Metadata store at that path, read-only.

    Raises:
      DataError: there is no such file, or it is no such store.
    """
    if not Path(metadata_path).is_file():
        raise DataError(
            f"metadata is {str(metadata_path)!r}: no such file; run the pipeline first, or name its work_dir."
        )
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(metadata_path)
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READONLY
    try:
        return ml_metadata.MetadataStore(connection)
    except (RuntimeError, ml_metadata.errors.StatusError) as error:
        raise DataError(
            f"metadata {str(metadata_path)!r} cannot be opened ({' '.join(str(error).split())[:80]}): it is no store "
            "of ML Metadata, or it is damaged; restore it, or read the records beside the artifacts with --recorded."
        ) from error


def newest_artifact(
    store: Any, type_name: str, *, having: Mapping[str, Any] | None = None, pipeline: str | None = None
) -> int | None:
    """The newest of `artifacts_of`; None where there is none."""
    return max(artifacts_of(store, type_name, having=having, pipeline=pipeline), default=None)


def artifacts_of(
    store: Any, type_name: str, *, having: Mapping[str, Any] | None = None, pipeline: str | None = None
) -> list[int]:
    """The ids of the live artifacts of that type, the oldest first.

    Args:
      store: the metadata.
      type_name: of the artifacts.
      having: what their facts must include.
      pipeline: name of the pipeline that they are of; None is any in the store.
    """
    wanted = having or {}
    return sorted(
        artifact.id
        for artifact in _artifacts(store, pipeline)
        if artifact.type == type_name
        and artifact.state == mlmd.Artifact.LIVE
        and all(_facts(artifact).get(key) == value for key, value in wanted.items())
    )


def _artifacts(store: Any, pipeline: str | None) -> Sequence[Any]:
    if pipeline is None:
        every: Sequence[Any] = store.get_artifacts()
        return every
    context = store.get_context_by_type_and_name("pipeline", pipeline)
    return [] if context is None else store.get_artifacts_by_context(context.id)


def outputs_of(store: Any, execution_id: int) -> list[int]:
    """The ids of the artifacts that the execution put out, in order; for a cached one, those taken from the cache."""
    kinds = (mlmd.Event.OUTPUT, mlmd.Event.DECLARED_OUTPUT)
    return [event.artifact_id for event in store.get_events_by_execution_ids([execution_id]) if event.type in kinds]


def trace(store: Any, artifact_id: int) -> dict[int, Node]:
    """The artifact of that id and everything it was made of, by id, the artifact itself first."""
    nodes: dict[int, Node] = {}
    waiting = [artifact_id]
    while waiting:
        fresh = [found for found in dict.fromkeys(waiting) if found not in nodes]
        nodes.update({node.id: node for node in _read_nodes(store, fresh)})
        waiting = [parent for found in fresh for parent in nodes[found].inputs if parent not in nodes]
    return nodes


def read_graph(store: Any, pipeline: str | None = None) -> dict[int, Node]:
    """Every artifact of the pipeline (None: of the store), by id."""
    return {node.id: node for node in _read_nodes(store, sorted(found.id for found in _artifacts(store, pipeline)))}


def upstream(graph: Mapping[int, Node], start: int) -> dict[int, Node]:
    """The artifact and everything in the graph that it was made of, by id, the artifact itself first."""
    return _reached(graph, [start], {node.id: node.inputs for node in graph.values()})


def node_of(lineage: Mapping[int, Node], kind: str) -> Node | None:
    """The artifact of that type that is the fewest steps away in what `upstream` gives, or None.

    That is the one of the run itself: a run may share it with others, so it need not be the newest, and numbers of
    artifacts that were read from records tell no order at all.
    """
    return next((node for node in lineage.values() if node.type == kind), None)


def downstream(graph: Mapping[int, Node], starts: Sequence[int]) -> dict[int, Node]:
    """The artifacts and everything in the graph that was made of them, by id, the artifacts themselves first."""
    made: dict[int, list[int]] = {}
    for node in graph.values():
        for source in node.inputs:
            made.setdefault(source, []).append(node.id)
    return _reached(graph, starts, made)


def _reached(graph: Mapping[int, Node], starts: Sequence[int], edges: Mapping[int, Sequence[int]]) -> dict[int, Node]:
    found: dict[int, Node] = {}
    waiting = list(starts)
    while waiting:
        found.update({one: graph[one] for one in waiting})
        waiting = [other for one in waiting for other in dict.fromkeys(edges.get(one, ())) if other not in found]
    return found


def lineage_tree(nodes: Mapping[int, Node]) -> Tree:
    """The lineage as a tree for a terminal; an artifact that stands in it twice is written out once."""
    root = next(iter(nodes.values()))
    tree = Tree(_label(root))
    _grow(tree, root, nodes, {root.id})
    return tree


def _grow(tree: Tree, node: Node, nodes: Mapping[int, Node], shown: set[int]) -> None:
    for parent in (nodes[found] for found in node.inputs):
        if parent.id in shown:
            tree.add(f"[dim]{parent.type} #{parent.id} (above)[/dim]")
            continue
        shown.add(parent.id)
        _grow(tree.add(_label(parent)), parent, nodes, shown)


def _label(node: Node) -> str:
    made = "imported" if node.producer is None else node.producer.node
    if node.producer is not None and node.producer.seconds is not None:
        made += f", {node.producer.seconds:.1f} s"
    facts = "".join(
        f"\n  {key}: {_short(value)}" for key, value in sorted(node.facts.items()) if value not in ("", None)
    )
    return f"[bold]{node.type}[/bold] #{node.id} [dim]({made})[/dim]\n  {escape(node.uri)}{facts}"


def _short(value: Any, limit: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return escape(text if len(text) <= limit else f"{text[: limit - 1]}…")


def _read_nodes(store: Any, artifact_ids: Iterable[int]) -> Iterator[Node]:
    ids = list(artifact_ids)
    artifacts = {artifact.id: artifact for artifact in store.get_artifacts_by_id(ids)}
    makers: dict[int, int] = {}
    for event in store.get_events_by_artifact_ids(ids):
        if event.type in (mlmd.Event.OUTPUT, mlmd.Event.DECLARED_OUTPUT):
            # A cached execution names the artifact as its output too; the oldest one is the one that made it.
            makers[event.artifact_id] = min(event.execution_id, makers.get(event.artifact_id, event.execution_id))
    executions = {found.id: found for found in store.get_executions_by_id(sorted(set(makers.values())))}
    inputs: dict[int, list[int]] = {}
    for event in store.get_events_by_execution_ids(list(executions)):
        if event.type in (mlmd.Event.INPUT, mlmd.Event.DECLARED_INPUT):
            inputs.setdefault(event.execution_id, []).append(event.artifact_id)
    for found in ids:
        maker = makers.get(found)
        artifact = artifacts[found]
        yield Node(
            id=found,
            type=artifact.type,
            uri=artifact.uri,
            facts=_facts(artifact),
            producer=None if maker is None else _execution(store, executions[maker]),
            inputs=() if maker is None else tuple(dict.fromkeys(inputs.get(maker, []))),
        )


def _execution(store: Any, found: Any) -> Execution:
    contexts = store.get_contexts_by_execution(found.id)
    names = [context.name.rpartition(".")[2] for context in contexts if context.type == "node"]
    return Execution(
        id=found.id,
        node=names[0] if names else found.type,
        state=mlmd.Execution.State.Name(found.last_known_state),
        seconds=(found.last_update_time_since_epoch - found.create_time_since_epoch) / 1000,
    )


def _facts(artifact: Any) -> dict[str, Any]:
    return {key: _decoded(value) for key, value in artifact.custom_properties.items() if is_fact(key)}


def is_fact(key: str) -> bool:
    """Whether a custom property says something of the artifact, and not of TFX."""
    return key not in {"name", "tfx_version", "state", "is_external"} and not key.startswith("__")


def _decoded(value: Any) -> Any:
    """A property of ML Metadata as a plain value; a text that is JSON is read."""
    kind = value.WhichOneof("value")
    if kind in (None, "proto_value"):
        return None
    plain = getattr(value, kind)
    if kind != "struct_value":
        return plain_value(plain)
    found = json_format.MessageToDict(plain)
    return plain_value(found["__value__"]) if found.keys() == {"__value__"} else found  # as TFX wraps a JSON value


def plain_value(value: Any) -> Any:
    """The value; a text that is JSON is read."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
