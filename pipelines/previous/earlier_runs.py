"""Finds the trainings that earlier runs finished, what they left, and what they came out of."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from components.pusher.served import manifest_facts, served_versions
from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig
from pipelines.config.bases import SERVED, TRAINED
from pipelines.lineage.graph import Node, artifacts_of, open_store, read_graph
from pipelines.lineage.recorded import recorded_lineage
from pipelines.lineage.rollbacks import newest_first, pushes_of, with_rollbacks

__all__ = ["Candidate", "EarlierRuns", "earlier_runs", "generations_of"]

CHECKPOINT, VOCABULARIES, MODEL_RUN, MODEL = (
    "components.EmbeddingCheckpoint",
    "components.Vocabularies",
    "ModelRun",
    "Model",
)
Graph = Mapping[int, Node]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A training that a run may start from.

    Attributes:
      run: its ModelRun.
      name: in words: "version 7", or "the training #12".
      version: that was pushed of it; None for a training that is named by itself.
    """

    run: Node
    name: str
    version: int | None = None


@dataclasses.dataclass(frozen=True)
class EarlierRuns:
    """The finished trainings of one pipeline.

    Attributes:
      graph: its artifacts, copies that a rollback published included.
      live: ids of those that are there and as they were recorded.
      destination: the folder of versions.
    """

    graph: Graph
    live: frozenset[int]
    destination: str

    def candidates(self, word: str) -> Iterator[Candidate]:
        """The trainings that a word stands for, the newest first.

        Raises:
          ConfigError: there are versions that the metadata does not know, or versions in another folder alone.
        """
        if word == TRAINED:
            return self._trained()
        return self._served() if word == SERVED else self._pushed()

    def checkpoint_of(self, candidate: Candidate) -> Node:
        """The tables of a training, with the vocabularies that their rows belong to.

        Raises:
          ConfigError: they are gone.
        """
        found = [one for one in self._checkpoints() if candidate.run.id in one.inputs]
        if not found:
            raise ConfigError(
                f"the EmbeddingCheckpoint of {candidate.name} is gone or damaged: run the pipeline on the data of that "
                "version again, which makes it again from the training, or give the address of another one."
            )
        return found[0]

    def unknown_above(self, version: int) -> list[int]:
        """The versions in the folder, newer than that one, that the metadata does not know."""
        known = {**pushes_of(self.graph, self.destination), **self._unrecorded()}
        return [one for one in served_versions(self.destination) if one > version and one not in known]

    def rolled_back(self) -> list[tuple[int, Node | None]]:
        """The versions that were pushed and rolled back, each with the Examples that it was trained on."""
        pushes = pushes_of(self.graph, self.destination)
        standing = {push.id for _, push in newest_first(pushes)}
        gone = {version: push for version, push in pushes.items() if push.id not in standing}
        runs = {version: next(self._inputs(push, MODEL_RUN), None) for version, push in gone.items()}
        return [(version, self.examples_of(run)) for version, run in sorted(runs.items()) if run is not None]

    def model_of(self, run: Node) -> Node | None:
        """The Model that a training exported."""
        models = (one for one in self.graph.values() if one.type == MODEL)
        return next((one for one in models if one.producer is not None and one.producer == run.producer), None)

    def vocabularies_of(self, node: Node) -> Node | None:
        """The Vocabularies that a checkpoint's rows, or a training's, belong to; None if another pipeline made it."""
        return next(self._inputs(node, VOCABULARIES), None)

    def start_of(self, run: Node) -> Node | None:
        """The checkpoint that a training started from, before its rows were moved; None if it started cold."""
        loaded = next(self._inputs(run, CHECKPOINT), None)
        return None if loaded is None else next(self._inputs(loaded, CHECKPOINT), None)

    def base_vocabularies_of(self, run: Node) -> Node | None:
        """The Vocabularies that those of a training came out of; None if they were counted from its data alone."""
        own = self.vocabularies_of(run)
        return None if own is None else next(self._inputs(own, VOCABULARIES), None)

    def baseline_of(self, run: Node) -> Node | None:
        """The Model that the newest evaluation of a training compared with; None if there was none."""
        model = self.model_of(run)
        if model is None:
            return None
        blessings = [one for one in self.graph.values() if one.type == "ModelBlessing" and model.id in one.inputs]
        blessings.sort(key=lambda one: -one.id)
        others = (one for blessing in blessings for one in self._inputs(blessing, MODEL) if one.id != model.id)
        return next(others, None)

    def examples_of(self, run: Node) -> Node | None:
        """The Examples that a training read."""
        return next(self._inputs(run, "Examples"), None)

    def training_of(self, checkpoint: Node) -> Node | None:
        """The ModelRun that a checkpoint was taken out of; None if another pipeline made it."""
        return next(self._inputs(checkpoint, MODEL_RUN), None)

    def at(self, uri: str) -> Node | None:
        """The artifact with that address."""
        return next((node for node in self.graph.values() if node.uri.rstrip("/") == uri.rstrip("/")), None)

    def _inputs(self, node: Node, kind: str) -> Iterator[Node]:
        return (self.graph[one] for one in node.inputs if one in self.graph and self.graph[one].type == kind)

    def _checkpoints(self) -> list[Node]:
        """Those of finished trainings, the newest first: a loader's belongs to a run that may never have trained."""
        every = (self.graph[one] for one in sorted(self.live, reverse=True))
        return [one for one in every if one.producer is not None and one.producer.node == "CheckpointRetriever"]

    def _trained(self) -> Iterator[Candidate]:
        for run in dict.fromkeys(next(self._inputs(one, MODEL_RUN)).id for one in self._checkpoints()):
            yield Candidate(self.graph[run], f"the training #{run}")

    def _pushed(self) -> Iterator[Candidate]:
        pushes = {**pushes_of(self.graph, self.destination), **self._unrecorded()}
        self._check_known(pushes)
        for version, push in newest_first(pushes):
            yield Candidate(next(self._inputs(push, MODEL_RUN)), f"version {version}", version)

    def _served(self) -> Iterator[Candidate]:
        for version in reversed(served_versions(self.destination)):
            run = self._run_of_version(version)
            if run is None:
                raise ConfigError(
                    f"version {version} of {self.destination!r} is of a training that the metadata of this pipeline "
                    "does not know: give the address of its EmbeddingCheckpoint, or restore the metadata."
                )
            yield Candidate(run, f"version {version}")

    def _unrecorded(self) -> dict[int, Node]:
        """Versions of this pipeline's trainings whose push ended before the metadata knew of it."""
        known, found = pushes_of(self.graph, self.destination), {}
        for version in served_versions(self.destination):
            run = None if version in known else self._run_of_version(version)
            if run is not None:
                found[version] = Node(id=0, type="PushedModel", uri="", facts={}, producer=None, inputs=(run.id,))
        return found

    def _run_of_version(self, version: int) -> Node | None:
        try:
            facts = manifest_facts(self.destination, version)
        except ConfigError:  # another program's folder, or a damaged one: it names no training of ours
            return None
        return self.at(str(facts.get("sources", {}).get("model_run", "")))

    def _check_known(self, pushes: Mapping[int, Node]) -> None:
        """Refuse to start cold if versions were pushed that a word cannot stand for."""
        if pushes:
            return
        elsewhere = sorted({os.path.dirname(one.facts["pushed_destination"]) for one in pushes_of(self.graph).values()})
        there = served_versions(self.destination)
        if there or elsewhere:
            what = f"{len(there)} versions there, which the metadata does not know" if there else f"but to {elsewhere}"
            raise ConfigError(
                f"nothing was pushed to {self.destination!r} by this pipeline, {what}: restore the metadata or give "
                "that `push.destination`; or give the address of an EmbeddingCheckpoint, or null to start cold."
            )


def earlier_runs(config: PipelineConfig) -> EarlierRuns:
    """The finished trainings of the pipeline; none before its first run."""
    if not os.path.isfile(config.metadata_path):
        return EarlierRuns({}, frozenset(), config.push_destination)
    store: Any = open_store(config.metadata_path)
    graph = with_rollbacks(read_graph(store, config.name))
    live = frozenset(artifacts_of(store, CHECKPOINT, pipeline=config.name))
    return EarlierRuns(graph, live, config.push_destination)


def generations_of(runs: EarlierRuns, uri: str) -> Iterator[tuple[Node, Node | None]]:
    """Every training that went into the tables of a checkpoint, the newest first, and the Examples that it read.

    What comes from another pipeline goes on in the records beside its artifacts.

    Args:
      runs: of the pipeline that starts from the checkpoint.
      uri: of the checkpoint.
    """
    graph: Graph = runs.graph
    at = runs.at(uri)
    if at is None or not at.inputs:
        graph = recorded_lineage(uri)
        at = next(iter(graph.values()), None)
    while at is not None:
        run = _first(graph, at, MODEL_RUN)
        if run is not None:
            yield run, _first(graph, run, "Examples")
        at = _first(graph, run or at, CHECKPOINT)
        if at is not None and not at.inputs:
            graph = recorded_lineage(at.uri)
            at = next(iter(graph.values()), None)


def _first(graph: Graph, node: Node, kind: str) -> Node | None:
    return next((graph[one] for one in node.inputs if one in graph and graph[one].type == kind), None)
