"""Follows warm starts and rollbacks back to the pushed models that a model descends from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ml_metadata import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.pusher.served import manifest_facts, served_versions, version_updates
from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote
from pipelines.lineage.graph import Execution, Facts, Node, files_of, node_of, started_from, upstream
from pipelines.pipeline.run_target import metadata_connection

# Finds and records the versions that rollbacks published: copies of previous versions, marked in their manifests.
#
# A rollback publishes a previous version again, under a new number. The manifest of the copy names the version that was
# copied. ML Metadata has the copy as a PushedModel, made by an execution of "Rollback" whose input is the PushedModel
# of the copied version.

ROLLBACK = "rollback"
"""Fact of a PushedModel and of a version's manifest, with `of`, `from` and `made`; see `components.pusher.publish`."""

_PUSHED_MODEL, _NODE = "PushedModel", "Rollback"


@dataclasses.dataclass(frozen=True)
class _Copy:
    """A version that a rollback published, as its manifest describes it."""

    version: int
    path: str
    facts: Facts


def pushes_of(graph: Mapping[int, Node], destination: str | None = None) -> dict[int, Node]:
    """Return the PushedModel of every version that was pushed, copies included; None means any destination.

    If updates of a version were pushed, the PushedModel is that of the last one.
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

    A rollback's version counts as the version that it restores; versions between the two are skipped.
    """
    left = sorted(pushes)
    while left:
        version = left[-1]
        while ROLLBACK in pushes[version].facts and int(pushes[version].facts[ROLLBACK]["of"]) in pushes:
            version = int(pushes[version].facts[ROLLBACK]["of"])
        yield left[-1], pushes[version]
        left = [number for number in left if number < version]


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
        int(artifact.custom_properties["pushed_version"].string_value): artifact
        for artifact in store.get_artifacts_by_type(_PUSHED_MODEL)
        if artifact.custom_properties["pushed"].int_value
        and _folder(artifact.custom_properties["pushed_destination"].string_value) == _folder(f"{destination}/1")
    }
    recorded = []
    for copy in _copies(destination):
        source = pushed.get(int(copy.facts[ROLLBACK]["of"]))
        if copy.version not in pushed and source is not None:
            _record(store, copy, source)
            recorded.append(copy.version)
    return recorded


def record_rollback(path: str) -> str | None:
    """Record a rollback now if the pipeline's metadata is at its default path; otherwise the next run records it.

    Args:
      path: path of the copy. Its training run is in `<work_dir>/artifacts`; the metadata is found only at its default
        path, beside that folder.

    Returns:
      The path of the metadata; None if nothing was recorded.
    """
    facts = manifest_facts(os.path.dirname(path), int(os.path.basename(path)))
    run = str(facts.get("sources", {}).get("model_run", ""))
    metadata = os.path.join(run.rpartition("/artifacts/EmbeddingTrainer/")[0], "metadata.sqlite")
    if is_remote(metadata) or not os.path.isfile(metadata):
        return None
    store = MetadataStore(metadata_connection(metadata))
    return metadata if record_rollbacks(store, os.path.dirname(path)) else None


def _record(store: MetadataStore, copy: _Copy, source: mlmd.Artifact) -> None:
    artifact = mlmd.Artifact(type_id=source.type_id, uri=copy.path, state=mlmd.Artifact.LIVE)
    properties = version_updates().properties
    for key in ("pushed", "parity", "vocabularies", "vocabularies_digest", "model_digest", "reason", *properties):
        if key in source.custom_properties:
            artifact.custom_properties[key].CopyFrom(source.custom_properties[key])
    for key, value in {**_facts(copy), ROLLBACK: json.dumps(copy.facts[ROLLBACK])}.items():
        artifact.custom_properties[key].string_value = str(value)
    contexts = [context for context in store.get_contexts_by_artifact(source.id) if context.type == "pipeline"]
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


# Follows warm starts back to the pushed models that a model descends from, and reads the figures of each.

Lineage: TypeAlias = Mapping[int, Node]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """One pushed model in a line of warm starts.

    Attributes:
      version: number of the pushed version.
      nodes: its lineage without the artifacts of previous generations, the newest artifact first.
      sources: artifacts of previous generations that it was made of.
      data: the first and the last file of data that it was trained on.
      rows: number of rows that it was trained on, or None.
      auc: AUC on its eval split, or None.
      sizes: number of tokens by vocabulary.
      new: number of new tokens by vocabulary; empty if the vocabularies do not extend previous ones.
      dropped: number of dropped tokens by vocabulary; empty if `new` is.
      drift: by feature the share of rows with a token that the previous generation did not have.
      health: by table the figures of TableHealth; empty if they were not measured.
      kept: by table the share of token occurrences whose rows were kept; empty without a warm start.
    """

    version: str
    nodes: Lineage
    sources: Lineage
    data: Sequence[str]
    rows: int | None
    auc: float | None
    sizes: Mapping[str, int]
    new: Mapping[str, int]
    dropped: Mapping[str, int]
    drift: Mapping[str, float]
    health: Mapping[str, Mapping[str, float]]
    kept: Mapping[str, float]


def lineages_of(graph: Lineage, start: int, pushes: Mapping[int, int]) -> list[dict[int, Node]]:
    """Return the lineages of the pushes that an artifact descends from, in order of version, then its own lineage.

    Args:
      graph: all artifacts.
      start: id of the artifact.
      pushes: id of the PushedModel of every version.
    """
    lineage = upstream(graph, start)
    runs = {node for node in lineage if lineage[node].type == "ModelRun"}.difference(_first_push(graph, start).inputs)
    first_push: dict[int, int] = {}  # by previous run: a version that was pushed again is the same generation
    for _, pushed in sorted(pushes.items()):
        for run in runs.intersection(graph[pushed].inputs):
            first_push.setdefault(run, pushed)
    return [*(upstream(graph, pushed) for pushed in first_push.values()), lineage]


def _first_push(graph: Lineage, start: int) -> Node:
    """Return the original push of the model: a copy that a rollback published belongs to the same generation."""
    node = graph[start]
    while ROLLBACK in node.facts:
        (source,) = node.inputs
        node = graph[source]
    return node


def generations(lineages: Sequence[Lineage]) -> list[Generation]:
    """Read the figures of each push from the lineages of `lineages_of`."""
    result: list[Generation] = []
    before: set[int] = set()
    for lineage in lineages:
        added = {number: node for number, node in lineage.items() if number not in before}
        result.append(_generation(added, lineage))
        before |= added.keys()
    return result


def _generation(added: Lineage, lineage: Lineage) -> Generation:
    push = next(iter(lineage.values()))
    examples, run = node_of(lineage, "Examples"), node_of(lineage, "ModelRun")
    health = next((node for node in lineage.values() if "health" in node.facts), None)
    counted = node_of(lineage, "components.Vocabularies")
    vocabularies: Facts = counted.facts.get("vocabularies", {}) if counted else {}
    evolved = {name: vocabulary["evolution"] for name, vocabulary in vocabularies.items() if "evolution" in vocabulary}
    drift = {name: part for vocabulary in vocabularies.values() for name, part in vocabulary.get("drift", {}).items()}
    started = started_from(lineage)
    remap: Facts = started.facts["remap"] if started else {}
    paths = sorted(file["path"] for file in files_of(examples) if "split" not in file) if examples else []
    return Generation(
        version=str(push.facts.get("pushed_version", push.id)),
        nodes=added,
        sources={input_: lineage[input_] for node in added.values() for input_ in node.inputs if input_ not in added},
        data=tuple(dict.fromkeys(os.path.basename(path) for path in (*paths[:1], *paths[-1:]))),
        rows=examples.facts.get("ingest", {}).get("splits", {}).get("train") if examples else None,
        auc=run.facts.get("eval_auc") if run else None,
        sizes={name: vocabulary["size"] for name, vocabulary in vocabularies.items()},
        new={name: evolution["new"] for name, evolution in evolved.items()},
        dropped={name: evolution["dropped"] for name, evolution in evolved.items()},
        drift={name: part["new_rows"] for name, part in drift.items() if "new_rows" in part},
        health=health.facts["health"]["tables"] if health else {},
        kept={name: table["kept_traffic"] for name, table in remap.items() if "kept_traffic" in table},
    )
