"""What a run takes over from earlier ones, as their metadata tells: checkpoints, baselines, pushed versions."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping
from typing import Any

from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig
from pipelines.config.paths import is_remote
from pipelines.lineage import Node, artifacts_of, newest_artifact, open_store, trace

__all__ = ["EarlierRun", "find_earlier", "served_push"]

_LATEST = "latest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """What this run takes over from an earlier one.

    Attributes:
      checkpoint: URI of an EmbeddingCheckpoint to start the tables from, or None to start anew.
      baseline: URI of a Model that the Evaluator compares with, or None.
      vocabularies: URI of Vocabularies that the new ones come out of, or None to count anew.
    """

    checkpoint: str | None = None
    baseline: str | None = None
    vocabularies: str | None = None


def find_earlier(config: PipelineConfig) -> EarlierRun:
    """The URIs that "latest" means, from the pipeline's own metadata; other values are URIs themselves.

    Raises:
      ConfigError: "latest" is asked for as warm start or as the base of vocabularies, and there is no earlier
        checkpoint; or there is none at the address given.
    """
    checkpoint = None if config.warm_start is None else config.warm_start.checkpoint
    if checkpoint == _LATEST:
        checkpoint = _latest_checkpoint(config, "warm_start").uri
    elif checkpoint is not None:
        _check_there(checkpoint, "warm_start.checkpoint", "manifest.json", "an EmbeddingCheckpoint")
    vocabularies = None if config.vocabulary_evolution is None else config.vocabulary_evolution.base
    if vocabularies == _LATEST:
        vocabularies = _vocabularies_of(config, _latest_checkpoint(config, "vocabulary_evolution.base"))
    elif vocabularies is not None:
        _check_there(vocabularies, "vocabulary_evolution.base", "*.counts.npy", "Vocabularies")
    baseline = config.evaluation.baseline
    if baseline == _LATEST:
        baseline = _latest_pushed_model(config)
    return EarlierRun(checkpoint=checkpoint, baseline=baseline, vocabularies=vocabularies)


def _check_there(uri: str, key: str, file: str, kind: str) -> None:
    """What is not there is said before anything runs; what is in a bucket, the component will see."""
    if not is_remote(uri) and not glob.glob(os.path.join(glob.escape(uri), file)):
        raise ConfigError(
            f'`{key}` is {uri!r}: there is no {file} in it; give "latest", or the folder of {kind}, such as '
            "artifacts/<component>/<output>/<number> of the work_dir of another pipeline."
        )


def served_push(store: Any, pushed: int, destination: str) -> int | None:
    """The PushedModel that stands for what is served, given the one that a run put out, perhaps from the cache.

    Args:
      store: the metadata.
      pushed: id of the PushedModel of the run.
      destination: the folder of versions.

    Returns:
      `pushed` itself where it was refused or is the newest version; else the push of the newest version, where
      that one is of the same model; None where another model, or none, is served: the run's has to be pushed again.
    """
    nodes = trace(store, pushed)
    if not nodes[pushed].facts.get("pushed"):
        return pushed
    newest = max(_versions(destination), default=None)
    if newest is not None and int(nodes[pushed].facts["pushed_version"]) == newest:
        return pushed
    other = newest_artifact(store, "PushedModel", having={"pushed": 1, "pushed_version": newest})
    if newest is None or other is None:
        return None
    return other if _model(trace(store, other)) == _model(nodes) else None


def _versions(destination: str) -> list[int]:
    if is_remote(destination):
        from components.pusher.remote import remote_versions  # it loads TensorFlow

        return remote_versions(destination)
    names = os.listdir(destination) if os.path.isdir(destination) else []
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _model(nodes: Mapping[int, Node]) -> list[int]:
    return [node.id for node in nodes.values() if node.type == "Model"]


def _latest_checkpoint(config: PipelineConfig, key: str) -> Node:
    """Of what a finished training left: a loader's output belongs to a run that may never have trained."""
    if os.path.isfile(config.metadata_path):
        store = open_store(config.metadata_path)
        for found in reversed(artifacts_of(store, "components.EmbeddingCheckpoint", pipeline=config.name)):
            node = trace(store, found)[found]
            if node.producer is not None and node.producer.node == "CheckpointRetriever":
                return node
    raise ConfigError(
        f"`{key}` is {_LATEST!r}: {config.work_dir!r} has no earlier checkpoint; leave it out for the first run."
    )


def _vocabularies_of(config: PipelineConfig, checkpoint: Node) -> str:
    """The vocabularies that the rows of a checkpoint belong to."""
    nodes = trace(open_store(config.metadata_path), checkpoint.id).values()
    return next(node.uri for node in nodes if node.type == "components.Vocabularies")  # the nearest comes first


def _latest_pushed_model(config: PipelineConfig) -> str | None:
    """The Model of the newest push; None before the first one, which has nothing to be compared with."""
    if not os.path.isfile(config.metadata_path):
        return None
    store = open_store(config.metadata_path)
    pushed = newest_artifact(store, "PushedModel", having={"pushed": 1}, pipeline=config.name)
    models = [] if pushed is None else [node for node in trace(store, pushed).values() if node.type == "Model"]
    return models[0].uri if models else None
