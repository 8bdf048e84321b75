"""Finds the trainings that previous runs finished, and checks the settings that refer to them."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from components.pusher.served import MODEL, served_facts, served_versions, version_updates
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig
from pipelines.config.metadata_server import has_store
from pipelines.config.pipeline_config import LATEST, PUSHED, SERVED, TRAINED, WORDS
from pipelines.lineage.ancestors import newest_first, pushes_of, with_rollbacks
from pipelines.lineage.graph import Node, artifacts_of, open_store, recorded_lineage, reread_graph
from pipelines.pipeline.gates import gates

_CHECKPOINT, _VOCABULARIES = "components.EmbeddingCheckpoint", "components.Vocabularies"
_TABLE_CONFIGS, _TRANSFORM_GRAPH = "components.TableConfigs", "TransformGraph"
_MODEL_RUN, _MODEL, _EXAMPLES = "ModelRun", "Model", "Examples"
_BLESSING, _PUSHED_MODEL = "ModelBlessing", "PushedModel"
Graph: TypeAlias = Mapping[int, Node]


@dataclasses.dataclass(frozen=True)
class Training:
    """A finished training that a run may start from.

    Attributes:
      run: its ModelRun.
      name: "version 7", or "the training #12".
      version: number of the pushed version through which the training was found; None if it was found otherwise.
    """

    run: Node
    name: str
    version: int | None = None


@dataclasses.dataclass(frozen=True)
class FinishedTrainings:
    """The finished trainings of one pipeline.

    Attributes:
      graph: its artifacts, including the copies that rollbacks published.
      live: ids of the EmbeddingCheckpoints that are LIVE in ML Metadata, which means present and unchanged.
      destination: folder of the served versions.
    """

    graph: Graph
    live: frozenset[int]
    destination: str

    def candidates(self, word: str) -> Iterator[Training]:
        """Yield the trainings that a word of `pipelines.config.pipeline_config` refers to, the newest first.

        Raises:
          ConfigError: the serving folder has versions of trainings that the metadata does not know, or all versions
            were pushed to another folder.
        """
        if word == TRAINED:
            return self._trained()
        return self._served() if word == SERVED else self._pushed()

    def checkpoint_of(self, training: Training) -> Node:
        """Return the EmbeddingCheckpoint that was taken from a training.

        Raises:
          ConfigError: it is gone or damaged.
        """
        for checkpoint in self._checkpoints():
            if training.run.id in checkpoint.inputs:
                return checkpoint
        raise ConfigError(
            f"the EmbeddingCheckpoint of {training.name} is gone or damaged: run the pipeline on the data of that "
            "version again, which restores it from the training, or give the address of another one."
        )

    def unknown_after(self, version: int) -> list[int]:
        """Return the served versions newer than the given one whose trainings the metadata does not know."""
        known = self._pushes()
        return [number for number in served_versions(self.destination) if number > version and number not in known]

    def rolled_back(self) -> list[tuple[int, Node | None]]:
        """Return the versions that were pushed and rolled back, each with the Examples that it was trained on."""
        pushes = pushes_of(self.graph, self.destination)
        valid = {push.id for _, push in newest_first(pushes)}
        runs = {version: self._input(push, _MODEL_RUN) for version, push in pushes.items() if push.id not in valid}
        return [(version, self.examples_of(run)) for version, run in sorted(runs.items()) if run is not None]

    def model_of(self, run: Node) -> Node | None:
        """Return the Model that a training exported."""
        models = (node for node in self.graph.values() if node.type == _MODEL)
        return next((model for model in models if model.producer is not None and model.producer == run.producer), None)

    def vocabularies_of(self, node: Node) -> Node | None:
        """Return the Vocabularies of the rows of a checkpoint or training; None if another pipeline made them."""
        return self._input(node, _VOCABULARIES)

    def table_configs_of(self, node: Node) -> Node | None:
        """Return the TableConfigs of a checkpoint or training; None if another pipeline made them."""
        return self._input(node, _TABLE_CONFIGS)

    def transform_graphs_of(self, run: Node) -> Iterator[Node]:
        """Yield the TransformGraph of a training, then the one that it was copied from, and so on."""
        graph = self._input(run, _TRANSFORM_GRAPH)
        while graph is not None:
            yield graph
            graph = self._input(graph, _TRANSFORM_GRAPH)

    def start_of(self, run: Node) -> Node | None:
        """Return the checkpoint that a training started from, before it was remapped; None for a cold start."""
        loaded = self._input(run, _CHECKPOINT)
        return None if loaded is None else self._input(loaded, _CHECKPOINT)

    def base_vocabularies_of(self, run: Node) -> Node | None:
        """Return the Vocabularies that a training's own Vocabularies extend; None if they do not extend any."""
        vocabularies = self.vocabularies_of(run)
        return None if vocabularies is None else self._input(vocabularies, _VOCABULARIES)

    def baseline_of(self, run: Node) -> Node | None:
        """Return the baseline Model of a training's newest evaluation that had a baseline, or None."""
        model = self.model_of(run)
        if model is None:
            return None
        blessings = self._blessings_of(model)
        others = (
            input_
            for blessing in blessings
            for input_ in _inputs(self.graph, blessing, _MODEL)
            if input_.id != model.id
        )
        return next(others, None)

    def pushed_model_of(self, run: Node) -> Node | None:
        """Return the newest PushedModel of a training; None if it was not pushed, or to another folder."""
        pushes = [push for push in self._pushes().values() if run.id in push.inputs]
        return max(pushes, key=lambda push: push.id, default=None)

    def compared_version_of(self, run: Node) -> Node | None:
        """Return the PushedModel that a gate compared a training's model with, or None."""
        model = self.model_of(run)
        blessings = [] if model is None else self._blessings_of(model)
        return next((input_ for blessing in blessings for input_ in _inputs(self.graph, blessing, _PUSHED_MODEL)), None)

    def _blessings_of(self, model: Node) -> list[Node]:
        """Return the blessings and refusals of a model, the newest first."""
        blessings = [node for node in self.graph.values() if node.type == _BLESSING and model.id in node.inputs]
        return sorted(blessings, key=lambda node: -node.id)

    def examples_of(self, run: Node) -> Node | None:
        """Return the Examples that a training read."""
        return self._input(run, _EXAMPLES)

    def run_of(self, checkpoint: Node) -> Node | None:
        """Return the ModelRun that a checkpoint was taken from; None if another pipeline made it."""
        return self._input(checkpoint, _MODEL_RUN)

    def artifact_at(self, uri: str) -> Node | None:
        """Return the artifact with that address, or None."""
        return next((node for node in self.graph.values() if node.uri.rstrip("/") == uri.rstrip("/")), None)

    def _input(self, node: Node, kind: str) -> Node | None:
        return next(_inputs(self.graph, node, kind), None)

    def _checkpoints(self) -> list[Node]:
        """Return the live checkpoints of finished trainings, the newest first.

        Those of CheckpointLoader are left out, because they may belong to a run that never trained.
        """
        every = (self.graph[number] for number in sorted(self.live, reverse=True))
        return [node for node in every if node.producer is not None and node.producer.node == "CheckpointRetriever"]

    def _trained(self) -> Iterator[Training]:
        for run in dict.fromkeys(
            next(_inputs(self.graph, checkpoint, _MODEL_RUN)).id for checkpoint in self._checkpoints()
        ):
            yield Training(self.graph[run], f"the training #{run}")

    def _pushed(self) -> Iterator[Training]:
        pushes = self._pushes()
        self._check_known(pushes)
        for version, push in newest_first(pushes):
            yield Training(next(_inputs(self.graph, push, _MODEL_RUN)), f"version {version}", version)

    def _served(self) -> Iterator[Training]:
        for version in reversed(served_versions(self.destination)):
            run = self._run_of_version(version)
            if run is None:
                raise ConfigError(
                    f"version {version} of {self.destination!r} is of a training that the metadata of this pipeline "
                    "does not know: give the address of its EmbeddingCheckpoint, or restore the metadata."
                )
            yield Training(run, f"version {version}")

    def _pushes(self) -> dict[int, Node]:
        """Return the PushedModel of every version, by version, whether or not the push was recorded."""
        return {**pushes_of(self.graph, self.destination), **self._unrecorded()}

    def _unrecorded(self) -> dict[int, Node]:
        """Make a PushedModel, by version, for each push of this pipeline that was killed before it was recorded."""
        known, unrecorded, updates = pushes_of(self.graph, self.destination), {}, version_updates()
        for version in served_versions(self.destination):
            recorded = known.get(version)
            update = -1 if recorded is None else updates.pushed(recorded.facts)
            run = None if update >= updates.last(self.destination, version) else self._run_of_version(version)
            if run is not None:
                uri = os.path.join(self.destination, str(version))
                unrecorded[version] = Node(id=0, type=_PUSHED_MODEL, uri=uri, facts={}, producer=None, inputs=(run.id,))
        return unrecorded

    def _run_of_version(self, version: int) -> Node | None:
        try:
            facts = served_facts(self.destination, version)
        except (CheckpointError, ConfigError):  # damaged, or written by another program: it does not name a training
            return None
        return self.artifact_at(str(facts.get("sources", {}).get("model_run", "")))

    def _check_known(self, pushes: Graph) -> None:
        """Refuse to start cold if there are versions, but none that this pipeline pushed to the folder."""
        if pushes:
            return
        elsewhere = sorted(
            {os.path.dirname(push.facts["pushed_destination"]) for push in pushes_of(self.graph).values()}
        )
        there = served_versions(self.destination)
        if there or elsewhere:
            what = f"but has {len(there)} versions that the metadata does not know" if there else f"but to {elsewhere}"
            raise ConfigError(
                f"nothing was pushed to {self.destination!r} by this pipeline, {what}: restore the metadata or give "
                "that `push.destination`; or give the address of an EmbeddingCheckpoint, or null to start cold."
            )


def finished_trainings(config: PipelineConfig) -> FinishedTrainings:
    """Read the finished trainings of the pipeline; there are none before its first run."""
    if not has_store(config.metadata_path):
        return FinishedTrainings({}, frozenset(), config.push_destination)
    store = open_store(config.metadata_path)
    graph = with_rollbacks(reread_graph(store, config.metadata_path, config.name))
    live = frozenset(artifacts_of(store, _CHECKPOINT, pipeline=config.name))
    return FinishedTrainings(graph, live, config.push_destination)


def trainings_behind(trainings: FinishedTrainings, uri: str) -> Iterator[tuple[Node, Node | None]]:
    """Yield the ModelRun and the Examples of every training that a checkpoint's tables come from, the newest first.

    Trainings of other pipelines are found by the records beside the artifacts.

    Args:
      trainings: finished trainings of the pipeline that starts from the checkpoint.
      uri: address of the checkpoint.
    """
    graph: Graph = trainings.graph
    checkpoint = trainings.artifact_at(uri)
    if checkpoint is None or not checkpoint.inputs:
        graph = recorded_lineage(uri)
        checkpoint = next(iter(graph.values()), None)
    while checkpoint is not None:
        run = next(_inputs(graph, checkpoint, _MODEL_RUN), None)
        if run is not None:
            yield run, next(_inputs(graph, run, _EXAMPLES), None)
        checkpoint = next(_inputs(graph, run or checkpoint, _CHECKPOINT), None)
        if checkpoint is not None and not checkpoint.inputs:
            graph = recorded_lineage(checkpoint.uri)
            checkpoint = next(iter(graph.values()), None)


def _inputs(graph: Graph, node: Node, kind: str) -> Iterator[Node]:
    return (graph[input_] for input_ in node.inputs if input_ in graph and graph[input_].type == kind)


# Reads and checks the settings that refer to a previous run, before anything heavy is loaded.

START, BASE, BASELINE = "warm_start.checkpoint", "vocabulary_evolution.base", "evaluation.baseline"
"""The keys that refer to a previous run, besides those of gates (`Gate.compares_with`)."""

_MODEL_FOLDERS = ("Format-Serving", "serving_model_dir", "serving_model_dir/export/*/*")  # of TFX, the newest first
_FILES: Mapping[str, tuple[Sequence[str], str]] = {
    START: (("manifest.json",), "an EmbeddingCheckpoint"),
    BASE: (("*.counts.npy",), "Vocabularies"),
    BASELINE: ([f"{folder}/saved_model.pb" for folder in _MODEL_FOLDERS], "a Model"),
    **{gate.compares_with: ((MODEL,), "a version") for gate in gates() if gate.compares_with},
}

References: TypeAlias = Mapping[str, str | None]
"""By `START`, `BASE`, `BASELINE` and the keys of gates a word such as "pushed", an address, or None."""


def check_references(config: PipelineConfig) -> None:
    """Check the addresses, and that the metadata knows the versions that words may refer to.

    Raises:
      ConfigError: a local address has no such artifact; or see `FinishedTrainings.candidates`.
    """
    given = references(config)
    check_addresses(given)
    words = {meaning(key, value) for key, value in given.items() if value in WORDS}
    if words:
        trainings = finished_trainings(config)
        for word in sorted(words):
            next(trainings.candidates(word), None)


def references(config: PipelineConfig) -> References:
    """Return what the configuration gives for each key that refers to a previous run."""
    return {
        START: None if config.warm_start is None else config.warm_start.checkpoint,
        BASE: None if config.vocabulary_evolution is None else config.vocabulary_evolution.base,
        BASELINE: config.evaluation.baseline,
        **{gate.compares_with: gate.version(config) for gate in gates() if gate.compares_with},
    }


def meaning(key: str, value: str | None) -> str:
    """Return the word that a key's value means: "latest" is the former name of "pushed" or "trained"."""
    if value != LATEST:
        return str(value)
    return TRAINED if key in (START, BASE) else PUSHED


def check_addresses(given: References) -> None:
    """Check that local addresses hold an artifact of their kind; the component checks what is in a bucket.

    Raises:
      ConfigError: a local address does not hold such an artifact.
    """
    for key, (files, kind) in _FILES.items():
        uri = given.get(key)
        if uri is None or uri in WORDS or is_remote(uri):
            continue
        if any(glob.glob(os.path.join(glob.escape(uri), file)) for file in files):
            continue
        raise ConfigError(
            f'`{key}` is {uri!r}: it has no {files[0]}; give "pushed", or the folder of {kind}, such as '
            "artifacts/<component>/<output>/<number> of the work_dir of another pipeline."
        )
