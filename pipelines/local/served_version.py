"""Decides whether the version that a run pushed, or took from the cache, is served or has to be pushed again."""

from __future__ import annotations

from collections.abc import Mapping

from ml_metadata import MetadataStore

from components.pusher.delta_chain import damage_of_chain, last_delta
from components.pusher.served import damage_of, served_versions
from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig
from pipelines.lineage.graph import Node, newest_artifact, read_graph, read_node, trace
from pipelines.lineage.rollbacks import is_rolled_back


def served_push(store: MetadataStore, pushed: int, destination: str) -> int | None:
    """Return the id of the PushedModel of the newest served version, if it has the model of a run.

    Args:
      store: the metadata.
      pushed: id of the PushedModel of the run.
      destination: folder of the served versions.

    Returns:
      `pushed` itself if the model was refused, or if its version and delta are the newest; else the id of the
      newest version's PushedModel if the newest version has the same model. None if another model or no model is
      served: then the run's model has to be pushed again.
    """
    push = read_node(store, pushed)
    if not push.facts.get("pushed"):
        return pushed
    newest = max(served_versions(destination), default=None)
    if newest is not None and _served_by(push) == (newest, last_delta(destination, newest)):
        return pushed
    other = newest_artifact(store, "PushedModel", having={"pushed": 1, "pushed_version": newest})
    if newest is None or other is None:
        return None
    return other if _models(trace(store, other)) == _models(trace(store, pushed)) else None


def _served_by(push: Node) -> tuple[int, int]:
    """Return the version and the delta that a PushedModel was published as; delta 0 is the whole version."""
    return int(push.facts["pushed_version"]), int(push.facts.get("pushed_delta") or 0)


def _models(nodes: Mapping[int, Node]) -> list[int]:
    return [node.id for node in nodes.values() if node.type == "Model"]


def check_not_rolled_back(config: PipelineConfig, store: MetadataStore, pushed: int) -> None:
    """Check that the version of a PushedModel was not rolled back.

    Raises:
      ConfigError: it was rolled back.
    """
    if is_rolled_back(read_graph(store, config.name), pushed, config.push_destination):
        raise ConfigError(
            f"the model of this run was pushed to {config.push_destination!r} before, and rolled back: change its data "
            "or configuration, or give `--again` to push it once more."
        )


def damaged_version(store: MetadataStore, pushed: int, destination: str) -> tuple[int, str] | None:
    """Return the number of a PushedModel's version and what is wrong with it; None if it is intact or was refused."""
    facts = read_node(store, pushed).facts
    if not facts.get("pushed"):
        return None
    version = int(facts["pushed_version"])
    damage = damage_of(destination, version, facts.get("model_digest")) or damage_of_chain(destination, version)
    return None if damage is None else (version, damage)
