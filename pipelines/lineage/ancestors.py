"""Follows warm starts back to the pushed models that a model descends from, and reads the figures of each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pipelines.lineage.graph import Facts, Node, node_of, upstream
from pipelines.lineage.records import files_of
from pipelines.lineage.rollbacks import ROLLBACK

Lineage: TypeAlias = Mapping[int, Node]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """One pushed model in a line of warm starts.

    Attributes:
      version: number of the pushed version.
      nodes: its lineage without the artifacts of previous generations, the newest artifact first.
      sources: artifacts of previous generations that it was made of.
      data: the first and the last file of data that it read.
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
    runs = {one for one in lineage if lineage[one].type == "ModelRun"}.difference(_first_push(graph, start).inputs)
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
    evolved = {name: one["evolution"] for name, one in vocabularies.items() if "evolution" in one}
    drift = {name: part for one in vocabularies.values() for name, part in one.get("drift", {}).items()}
    started = [lineage[one].facts["remap"] for one in (run.inputs if run else ()) if "remap" in lineage[one].facts]
    remap: Facts = started[0] if started else {}
    paths = sorted(file["path"] for file in files_of(examples)) if examples else []
    return Generation(
        version=str(push.facts.get("pushed_version", push.id)),
        nodes=added,
        sources={one: lineage[one] for node in added.values() for one in node.inputs if one not in added},
        data=tuple(dict.fromkeys(os.path.basename(path) for path in (*paths[:1], *paths[-1:]))),
        rows=examples.facts.get("ingest", {}).get("splits", {}).get("train") if examples else None,
        auc=run.facts.get("eval_auc") if run else None,
        sizes={name: one["size"] for name, one in vocabularies.items()},
        new={name: one["new"] for name, one in evolved.items()},
        dropped={name: one["dropped"] for name, one in evolved.items()},
        drift={name: part["new_rows"] for name, part in drift.items() if "new_rows" in part},
        health=health.facts["health"]["tables"] if health else {},
        kept={name: one["kept_traffic"] for name, one in remap.items() if "kept_traffic" in one},
    )
