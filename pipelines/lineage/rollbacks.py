"""Finds and records the versions that rollbacks published: copies of previous versions, marked in their manifests.

A rollback publishes a previous version again, under a new number. The manifest of the copy names the version that was
copied. ML Metadata has the copy as a PushedModel, made by an execution of "Rollback" whose input is the PushedModel of
the copied version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping

import ml_metadata
from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.pusher.served import manifest_facts, served_versions
from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote
from pipelines.lineage.graph import Execution, Facts, Node

ROLLBACK = "rollback"
"""Fact of a PushedModel and of a version's manifest, with `of`, `from` and `made`; see `components.pusher.rollback`."""

_OF_DELTAS = ("pushed_delta", "state_digest")
_PUSHED_MODEL, _NODE = "PushedModel", "Rollback"


@dataclasses.dataclass(frozen=True)
class _Copy:
    """A version that a rollback published, as its manifest describes it."""

    version: int
    path: str
    facts: Facts


def pushes_of(graph: Mapping[int, Node], destination: str | None = None) -> dict[int, Node]:
    """Return the PushedModel of every version that was pushed, copies included; None means any destination.

    If deltas were pushed to a version, the PushedModel is that of the last one.
    """
    return {
        int(node.facts["pushed_version"]): node
        for node in sorted(graph.values(), key=lambda node: node.id)
        if node.type == _PUSHED_MODEL
        and node.facts.get("pushed")
        and (destination is None or _folder(node.facts["pushed_destination"]) == _folder(f"{destination}/1"))
    }


def newest_first(pushes: Mapping[int, Node]) -> Iterator[tuple[int, Node]]:
    """Yield the versions that were pushed and not rolled back, the newest first, each with the push of its model.

    A copy counts as the version that was copied; whatever was pushed between the two was rolled back.
    """
    left = sorted(pushes)
    while left:
        version = left[-1]
        while ROLLBACK in pushes[version].facts and int(pushes[version].facts[ROLLBACK]["of"]) in pushes:
            version = int(pushes[version].facts[ROLLBACK]["of"])
        yield left[-1], pushes[version]
        left = [one for one in left if one < version]


def is_rolled_back(graph: Mapping[int, Node], pushed: int, destination: str) -> bool:
    """Return whether the version of a PushedModel was pushed, and later rolled back."""
    pushes = pushes_of(with_rollbacks(graph), destination)
    valid = {push.id for _, push in newest_first(pushes)}
    return pushed in {push.id for push in pushes.values()} and pushed not in valid


def with_rollbacks(graph: Mapping[int, Node]) -> dict[int, Node]:
    """Add to the graph the copies that are beside its pushed versions and that ML Metadata does not have yet."""
    whole = dict(graph)
    for destination in sorted(
        {os.path.dirname(node.facts["pushed_destination"]) for node in pushes_of(graph).values()}
    ):
        known = pushes_of(whole, destination)
        for copy in _copies(destination):
            source = known.get(int(copy.facts[ROLLBACK]["of"]))
            if copy.version in known or source is None:
                continue
            made = Execution(id=0, node=_NODE, state="COMPLETE", seconds=None)
            facts = {**source.facts, **_facts(copy), ROLLBACK: copy.facts[ROLLBACK]}
            number = max(whole) + 1
            whole[number] = Node(
                id=number, type=_PUSHED_MODEL, uri=copy.path, facts=facts, producer=made, inputs=(source.id,)
            )
    return whole


def record_rollbacks(store: MetadataStore, destination: str) -> list[int]:
    """Record every copy in the folder that ML Metadata does not have yet; return their versions.

    Args:
      store: the metadata, open for writing.
      destination: folder of the served versions.
    """
    pushed = {
        int(one.custom_properties["pushed_version"].string_value): one
        for one in store.get_artifacts_by_type(_PUSHED_MODEL)
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
    """Record a copy at once if its manifest leads to a pipeline's metadata; return the metadata's path, else None.

    Args:
      path: path of the copy. Its training run is in `<work_dir>/artifacts`; the metadata is found only at its default
        path, beside that folder.
    """
    facts = manifest_facts(os.path.dirname(path), int(os.path.basename(path)))
    run = str(facts.get("sources", {}).get("model_run", ""))
    metadata = os.path.join(run.rpartition("/artifacts/EmbeddingTrainer/")[0], "metadata.sqlite")
    if is_remote(metadata) or not os.path.isfile(metadata):
        return None
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = metadata
    return metadata if record_rollbacks(ml_metadata.MetadataStore(connection), os.path.dirname(path)) else None


def _record(store: MetadataStore, copy: _Copy, source: mlmd.Artifact) -> None:
    artifact = mlmd.Artifact(type_id=source.type_id, uri=copy.path, state=mlmd.Artifact.LIVE)
    for key in ("pushed", "parity", "vocabularies", "vocabularies_digest", "model_digest", "reason", *_OF_DELTAS):
        if key in source.custom_properties:
            artifact.custom_properties[key].CopyFrom(source.custom_properties[key])
    for key, value in {**_facts(copy), ROLLBACK: json.dumps(copy.facts[ROLLBACK])}.items():
        artifact.custom_properties[key].string_value = str(value)
    contexts = [one for one in store.get_contexts_by_artifact(source.id) if one.type == "pipeline"]
    node = _node_context(store, contexts[0].name) if contexts else []
    kind = store.put_execution_type(mlmd.ExecutionType(name=f"pipelines.{_NODE}"))
    execution = mlmd.Execution(type_id=kind, last_known_state=mlmd.Execution.COMPLETE)
    read, written = mlmd.Event(type=mlmd.Event.INPUT), mlmd.Event(type=mlmd.Event.OUTPUT)
    store.put_execution(execution, [(source, read), (artifact, written)], [*contexts, *node])


def _node_context(store: MetadataStore, pipeline: str) -> list[mlmd.Context]:
    kind = store.put_context_type(mlmd.ContextType(name="node"))
    name = f"{pipeline}.{_NODE}"
    return [store.get_context_by_type_and_name("node", name) or mlmd.Context(type_id=kind, name=name)]


def _facts(copy: _Copy) -> Facts:
    return {"pushed_version": str(copy.version), "pushed_destination": copy.path}


def _folder(version: str) -> str:
    """Return the folder of a version, in its normal form."""
    folder = os.path.dirname(version)
    return folder.rstrip("/") if is_remote(folder) else os.path.normpath(folder)


def _copies(destination: str) -> list[_Copy]:
    """Return the copies in the folder, the oldest first; rollbacks only work in local or mounted folders."""
    if is_remote(destination):
        return []
    copies = []
    for version in served_versions(destination):
        with contextlib.suppress(ConfigError):  # damaged, or written by another program
            facts = manifest_facts(destination, version)
            if ROLLBACK in facts:
                copies.append(_Copy(version, os.path.join(destination, str(version)), facts))
    return copies
