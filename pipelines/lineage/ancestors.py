"""The pushed models that a model came out of, one warm start after another, and the figures of each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.lineage.graph import Node, node_of, upstream
from pipelines.lineage.records import files_of
from pipelines.lineage.rollbacks import ROLLBACK

__all__ = ["Generation", "generations", "lineages_of"]

Lineage = Mapping[int, Node]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """One pushed model in the line.

    Attributes:
      version: that was pushed.
      nodes: its lineage without what earlier generations are made of, the newest artifact first.
      sources: artifacts of earlier generations that it was made of.
      data: the first and the last file of data that it read.
      rows: how many rows it was trained on, or None.
      auc: on its eval split, or None.
      sizes: tokens by vocabulary.
      new: tokens that came, by vocabulary; empty where the vocabularies did not come out of earlier ones.
      dropped: tokens that went, likewise.
      drift: by feature the share of rows with a token that the generation before did not have.
      kept: by table the share of token occurrences whose rows were taken over; empty without a warm start.
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
    kept: Mapping[str, float]


def lineages_of(graph: Lineage, start: int, pushes: Mapping[int, int]) -> list[dict[int, Node]]:
    """The lineages of the pushes that an artifact came out of, by version, its own last.

    Args:
      graph: all artifacts.
      start: the artifact.
      pushes: the artifact of every version that was pushed.
    """
    own = upstream(graph, start)
    made_of = {one for one in own if own[one].type == "ModelRun"}.difference(_pushed_first(graph, start).inputs)
    first_push: dict[int, int] = {}  # of every earlier run: a version that was pushed again is one generation
    for _, pushed in sorted(pushes.items()):
        for run in made_of.intersection(graph[pushed].inputs):
            first_push.setdefault(run, pushed)
    return [*(upstream(graph, pushed) for pushed in first_push.values()), own]


def _pushed_first(graph: Lineage, start: int) -> Node:
    """The push that made the model: a copy that a rollback published is a version of the same generation."""
    node = graph[start]
    while ROLLBACK in node.facts:
        (source,) = node.inputs
        node = graph[source]
    return node


def generations(lineages: Sequence[Lineage]) -> list[Generation]:
    """The figures of each push, of lineages as `lineages_of` gives them."""
    found: list[Generation] = []
    before: set[int] = set()
    for lineage in lineages:
        own = {number: node for number, node in lineage.items() if number not in before}
        found.append(_generation(own, lineage))
        before |= own.keys()
    return found


def _generation(own: Lineage, lineage: Lineage) -> Generation:
    push = next(iter(lineage.values()))
    examples, run = node_of(lineage, "Examples"), node_of(lineage, "ModelRun")
    counted = node_of(lineage, "components.Vocabularies")
    vocabularies: Mapping[str, Any] = counted.facts.get("vocabularies", {}) if counted else {}
    evolved = {name: one["evolution"] for name, one in vocabularies.items() if "evolution" in one}
    drift = {name: part for one in vocabularies.values() for name, part in one.get("drift", {}).items()}
    started = [lineage[one].facts["remap"] for one in (run.inputs if run else ()) if "remap" in lineage[one].facts]
    remap: Mapping[str, Any] = started[0] if started else {}
    paths = sorted(file["path"] for file in files_of(examples)) if examples else []
    return Generation(
        version=str(push.facts.get("pushed_version", push.id)),
        nodes=own,
        sources={one: lineage[one] for node in own.values() for one in node.inputs if one not in own},
        data=tuple(dict.fromkeys(os.path.basename(path) for path in (*paths[:1], *paths[-1:]))),
        rows=examples.facts.get("ingest", {}).get("splits", {}).get("train") if examples else None,
        auc=run.facts.get("eval_auc") if run else None,
        sizes={name: one["size"] for name, one in vocabularies.items()},
        new={name: one["new"] for name, one in evolved.items()},
        dropped={name: one["dropped"] for name, one in evolved.items()},
        drift={name: part["new_rows"] for name, part in drift.items() if "new_rows" in part},
        kept={name: one["kept_traffic"] for name, one in remap.items() if "kept_traffic" in one},
    )
