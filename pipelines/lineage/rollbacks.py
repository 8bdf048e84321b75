"""Finds and records the versions that a rollback published: copies of earlier ones, known by their own manifests.

A rollback publishes an earlier version again, under a number of its own. The manifest of the copy says which version it
is of; ML Metadata has it as a PushedModel made of the earlier one by an execution of "Rollback".
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ml_metadata
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.pusher.served import manifest_facts, served_versions
from embedding_core.errors import ConfigError
from pipelines.config.paths import is_remote
from pipelines.lineage.graph import Execution, Node

__all__ = [
    "ROLLBACK",
    "is_rolled_back",
    "newest_first",
    "pushes_of",
    "record_rollback",
    "record_rollbacks",
    "with_rollbacks",
]

ROLLBACK = "rollback"
"""Fact of a PushedModel, and of a version's manifest: `of`, `from` and `made`, see `components.pusher.rollback`."""

PUSHED_MODEL, NODE = "PushedModel", "Rollback"


@dataclasses.dataclass(frozen=True)
class _Copy:
    """A version that a rollback published, as its manifest says."""

    version: int
    path: str
    facts: Mapping[str, Any]


def pushes_of(graph: Mapping[int, Node], destination: str | None = None) -> dict[int, Node]:
    """The PushedModel of every version that was pushed, copies included; None is any destination."""
    return {
        int(node.facts["pushed_version"]): node
        for node in graph.values()
        if node.type == PUSHED_MODEL
        and node.facts.get("pushed")
        and (destination is None or _folder(node.facts["pushed_destination"]) == _folder(f"{destination}/1"))
    }


def newest_first(pushes: Mapping[int, Node]) -> Iterator[tuple[int, Node]]:
    """The versions that were pushed and not rolled back, the newest first, each with the push that made its model.

    A copy stands for the version that it is of; what was pushed between the two was rolled back.
    """
    left = sorted(pushes)
    while left:
        version = left[-1]
        while ROLLBACK in pushes[version].facts and int(pushes[version].facts[ROLLBACK]["of"]) in pushes:
            version = int(pushes[version].facts[ROLLBACK]["of"])
        yield left[-1], pushes[version]
        left = [one for one in left if one < version]


def is_rolled_back(graph: Mapping[int, Node], pushed: int, destination: str) -> bool:
    """Whether the version of a PushedModel was pushed, and a rollback went back to before it."""
    pushes = pushes_of(with_rollbacks(graph), destination)
    standing = {push.id for _, push in newest_first(pushes)}
    return pushed in {push.id for push in pushes.values()} and pushed not in standing


def with_rollbacks(graph: Mapping[int, Node]) -> dict[int, Node]:
    """The graph, and every copy beside its pushed versions that ML Metadata does not have yet."""
    whole = dict(graph)
    for destination in sorted(
        {os.path.dirname(node.facts["pushed_destination"]) for node in pushes_of(graph).values()}
    ):
        known = pushes_of(whole, destination)
        for copy in _copies(destination):
            source = known.get(int(copy.facts[ROLLBACK]["of"]))
            if copy.version in known or source is None:
                continue
            made = Execution(id=0, node=NODE, state="COMPLETE", seconds=None)
            facts = {**source.facts, **_facts(copy), ROLLBACK: copy.facts[ROLLBACK]}
            number = max(whole) + 1
            whole[number] = Node(
                id=number, type=PUSHED_MODEL, uri=copy.path, facts=facts, producer=made, inputs=(source.id,)
            )
    return whole


def record_rollbacks(store: Any, destination: str) -> list[int]:
    """Record in ML Metadata every copy in the folder that it does not have yet; returns their versions.

    Args:
      store: the metadata, open for writing.
      destination: the folder of versions.
    """
    pushed = {
        int(one.custom_properties["pushed_version"].string_value): one
        for one in store.get_artifacts_by_type(PUSHED_MODEL)
        if one.custom_properties["pushed"].int_value
        and _folder(one.custom_properties["pushed_destination"].string_value) == _folder(f"{destination}/1")
    }
    recorded = []
    for copy in _copies(destination):
        source = pushed.get(int(copy.facts[ROLLBACK]["of"]))
        if copy.version not in pushed and source is not None:
            _record(store, copy, source)
            recorded.append(copy.version)
    return recorded


def record_rollback(path: str) -> str | None:
    """Record a copy at once, if its manifest leads to the metadata of a pipeline; returns where, else None.

    Args:
      path: of the copy. It was made of a training in `<work_dir>/artifacts`, beside which the metadata is by default.
    """
    facts = manifest_facts(os.path.dirname(path), int(os.path.basename(path)))
    run = str(facts.get("sources", {}).get("model_run", ""))
    metadata = os.path.join(run.rpartition("/artifacts/EmbeddingTrainer/")[0], "metadata.sqlite")
    if is_remote(metadata) or not os.path.isfile(metadata):
        return None
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = metadata
    return metadata if record_rollbacks(ml_metadata.MetadataStore(connection), os.path.dirname(path)) else None


def _record(store: Any, copy: _Copy, source: Any) -> None:
    artifact = mlmd.Artifact(type_id=source.type_id, uri=copy.path, state=mlmd.Artifact.LIVE)
    for key in ("pushed", "parity", "vocabularies", "vocabularies_digest", "model_digest", "reason"):
        if key in source.custom_properties:
            artifact.custom_properties[key].CopyFrom(source.custom_properties[key])
    for key, value in {**_facts(copy), ROLLBACK: json.dumps(copy.facts[ROLLBACK])}.items():
        artifact.custom_properties[key].string_value = str(value)
    contexts = [one for one in store.get_contexts_by_artifact(source.id) if one.type == "pipeline"]
    node = _node_context(store, contexts[0].name) if contexts else []
    kind = store.put_execution_type(mlmd.ExecutionType(name=f"pipelines.{NODE}"))
    execution = mlmd.Execution(type_id=kind, last_known_state=mlmd.Execution.COMPLETE)
    read, written = mlmd.Event(type=mlmd.Event.INPUT), mlmd.Event(type=mlmd.Event.OUTPUT)
    store.put_execution(execution, [(source, read), (artifact, written)], [*contexts, *node])


def _node_context(store: Any, pipeline: str) -> list[Any]:
    kind = store.put_context_type(mlmd.ContextType(name="node"))
    name = f"{pipeline}.{NODE}"
    return [store.get_context_by_type_and_name("node", name) or mlmd.Context(type_id=kind, name=name)]


def _facts(copy: _Copy) -> dict[str, Any]:
    return {"pushed_version": str(copy.version), "pushed_destination": copy.path}


def _folder(version: str) -> str:
    """The folder of versions that one of them is in, written in one way."""
    folder = os.path.dirname(version)
    return folder.rstrip("/") if is_remote(folder) else os.path.normpath(folder)


def _copies(destination: str) -> list[_Copy]:
    """The copies in the folder, the oldest first; rollbacks are made in local or mounted folders alone."""
    if is_remote(destination):
        return []
    found = []
    for version in served_versions(destination):
        with contextlib.suppress(ConfigError):  # damaged, or of another program: it is not known for a copy
            facts = manifest_facts(destination, version)
            if ROLLBACK in facts:
                found.append(_Copy(version, os.path.join(destination, str(version)), facts))
    return found
