"""Says what a run takes over from earlier ones, and checks what can be checked before anything heavy is loaded."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping
from typing import Any

from components.pusher.served import served_versions
from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig
from pipelines.config.bases import LATEST, PUSHED, TRAINED, WORDS
from pipelines.config.paths import is_remote
from pipelines.lineage.graph import Node, newest_artifact, trace
from pipelines.previous.earlier_runs import earlier_runs

__all__ = ["BASE", "BASELINE", "START", "EarlierRun", "check_earlier", "given_bases", "meaning", "served_push"]

START, BASE, BASELINE = "warm_start.checkpoint", "vocabulary_evolution.base", "evaluation.baseline"
"""The keys that name an earlier run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """What this run takes over from an earlier one.

    Attributes:
      checkpoint: URI of an EmbeddingCheckpoint to start the tables from, or None to start cold.
      baseline: URI of a Model that the Evaluator compares with, or None.
      vocabularies: URI of Vocabularies that the new ones come out of, or None to count anew.
      repeats: in words the earlier training on this run's data, whose place this run takes; None without one.
      notes: what was chosen and why, a sentence each, for the console and the report.
    """

    checkpoint: str | None = None
    baseline: str | None = None
    vocabularies: str | None = None
    repeats: str | None = None
    notes: tuple[str, ...] = ()


def check_earlier(config: PipelineConfig) -> dict[str, str | None]:
    """Check addresses, and that there is something that words may stand for.

    Returns:
      What the configuration gives: words, addresses or None, by `START`, `BASE` and `BASELINE`.

    Raises:
      ConfigError: there is nothing at an address of this machine; or see `EarlierRuns.candidates`.
    """
    given = given_bases(config)
    files = {START: ("manifest.json", "an EmbeddingCheckpoint"), BASE: ("*.counts.npy", "Vocabularies")}
    for key, (file, kind) in files.items():
        value = given[key]
        if value is not None and value not in WORDS:
            _check_there(value, key, file, kind)
    words = {meaning(key, value) for key, value in given.items() if value in WORDS}
    if words:
        runs = earlier_runs(config)
        for word in sorted(words):
            next(runs.candidates(word), None)
    return given


def given_bases(config: PipelineConfig) -> dict[str, str | None]:
    """Words, addresses or None, by `START`, `BASE` and `BASELINE`."""
    return {
        START: None if config.warm_start is None else config.warm_start.checkpoint,
        BASE: None if config.vocabulary_evolution is None else config.vocabulary_evolution.base,
        BASELINE: config.evaluation.baseline,
    }


def meaning(key: str, value: str | None) -> str:
    """The word that is meant by a key's value: "latest" is the earlier name of another one."""
    if value != LATEST:
        return str(value)
    return PUSHED if key == BASELINE else TRAINED


def _check_there(uri: str, key: str, file: str, kind: str) -> None:
    """Refuse an address with nothing in it; what is in a bucket, the component will see."""
    if not is_remote(uri) and not glob.glob(os.path.join(glob.escape(uri), file)):
        raise ConfigError(
            f'`{key}` is {uri!r}: there is no {file} in it; give "pushed", or the folder of {kind}, such as '
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
    newest = max(served_versions(destination), default=None)
    if newest is not None and int(nodes[pushed].facts["pushed_version"]) == newest:
        return pushed
    other = newest_artifact(store, "PushedModel", having={"pushed": 1, "pushed_version": newest})
    if newest is None or other is None:
        return None
    return other if _model(trace(store, other)) == _model(nodes) else None


def _model(nodes: Mapping[int, Node]) -> list[int]:
    return [node.id for node in nodes.values() if node.type == "Model"]
