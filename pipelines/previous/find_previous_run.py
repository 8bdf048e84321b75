"""Finds the previous run that a run starts from; every call on the same data finds the same one.

A word in the configuration, such as "pushed", refers to the newest training of its kind. If that training used this
run's own data, it is a previous call of this run, and this run starts from what that call started from. A retry
therefore comes from the cache, and a run with a changed configuration replaces the previous training instead of
training on the same data a second time. In all other cases, data that the tables were already trained on is refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from components.piece_names import describe_pieces
from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote
from pipelines.config import PipelineConfig
from pipelines.config.pipeline_config import LATEST, PUSHED, WORDS
from pipelines.lineage.ancestors import pushes_of
from pipelines.lineage.graph import Node, json_if_readable
from pipelines.pipeline.run_target import PreviousRun
from pipelines.previous.finished_trainings import (
    BASE,
    BASELINE,
    START,
    FinishedTrainings,
    References,
    Training,
    check_addresses,
    finished_trainings,
    meaning,
    references,
    trainings_behind,
)
from pipelines.previous.trained_data import Overlap, RunData, compare, data_of_run, trained_data

ArtifactOf: TypeAlias = Callable[[Node], Node | None]


def find_previous_run(config: PipelineConfig, *, again: bool = False, keep_transform: bool = False) -> PreviousRun:
    """Find the artifacts that the run starts from, using the pipeline's own metadata and its data files.

    Args:
      config: configuration of the pipeline.
      again: start from the newest training even if it was trained on this run's data.
      keep_transform: keep the TransformGraph of the tables' training instead of analysing this run's data.

    Raises:
      ConfigError: see `choose_previous_run`, and `check_addresses`.
    """
    given, trainings = references(config), finished_trainings(config)
    check_addresses(given)
    rolled_back = trainings.rolled_back()
    if all(value is None for value in given.values()) and (again or not rolled_back):
        return PreviousRun()
    data = data_of_run(config)
    repeated = "error" if config.warm_start is None else config.warm_start.repeated_data
    previous = choose_previous_run(trainings, data, given, again=again, train_again=again or repeated == "train")
    warnings = () if again else _rollback_warnings(rolled_back, data)
    transform_graph = _transform_graph(trainings, previous.checkpoint) if keep_transform else None
    return dataclasses.replace(previous, transform_graph=transform_graph, notes=(*previous.notes, *warnings))


def _transform_graph(trainings: FinishedTrainings, checkpoint: str | None) -> str | None:
    """Return the URI of the TransformGraph that a checkpoint's training used; None if another pipeline made it."""
    node = None if checkpoint is None else trainings.artifact_at(checkpoint)
    run = None if node is None else trainings.run_of(node)
    graph = None if run is None else next(trainings.transform_graphs_of(run), None)
    return None if graph is None else graph.uri


def _rollback_warnings(rolled_back: Iterable[tuple[int, Node | None]], data: RunData) -> Iterator[str]:
    """Yield a warning for each rolled-back version that was trained on the same data as this run."""
    for version, examples in rolled_back:
        overlap = _overlap(data, examples)
        if overlap is not None and overlap.kind == "same" and not overlap.changed:
            yield (
                f"{describe_pieces(data.pieces)}: version {version} was trained on it, and rolled back. If its model "
                "has left the cache, this run trains and pushes it again. To prevent that, change the data or "
                "the configuration."
            )


def _overlap(data: RunData, examples: Node | None) -> Overlap | None:
    """Compare this run's data with that of a previous run; return None if its Examples do not record it."""
    trained = trained_data(examples)
    return None if trained is None else compare(data, trained)


def choose_previous_run(
    trainings: FinishedTrainings, data: RunData, given: References, *, again: bool = False, train_again: bool = False
) -> PreviousRun:
    """Choose the artifacts of previous runs that the run starts from.

    Args:
      trainings: the finished trainings.
      data: data of this run.
      given: words, addresses or None, by key of the configuration.
      again: treat a training on this run's data like any other.
      train_again: allow data that the tables were already trained on.

    Raises:
      ConfigError: the requested artifacts do not exist or do not belong together, or the tables were already trained
        on the data.
    """
    search = _Search(trainings, data, again)
    start, base, baseline = (given[key] for key in (START, BASE, BASELINE))
    checkpoint = search.checkpoint(start)
    vocabularies = search.vocabularies(base)
    if start in WORDS and base in WORDS:
        same = meaning(START, start) == meaning(BASE, base)
        vocabularies = search.matching_vocabularies(checkpoint, vocabularies, same=same)
    elif checkpoint is not None and vocabularies is not None:
        search.note_mismatch(checkpoint, vocabularies)
    if checkpoint is not None and data.for_eval:
        search.check_not_trained(checkpoint)
    if checkpoint is not None and not search.is_repeat:
        search.check_new(checkpoint, train_again=train_again)
    return PreviousRun(
        checkpoint=checkpoint,
        vocabularies=vocabularies,
        table_configs=search.table_configs(checkpoint),
        baseline=search.baseline(baseline),
        versions=search.versions(given),
        repeats=search.repeats,
        notes=tuple(dict.fromkeys(search.notes)),
    )


class _Search:
    """Looks for the previous run of one run, and notes what it chose."""

    def __init__(self, trainings: FinishedTrainings, data: RunData, again: bool) -> None:
        self._trainings, self._data, self._again = trainings, data, again
        self.notes: list[str] = []
        self.repeats: str | None = None
        self.is_repeat = False

    def checkpoint(self, value: str | None) -> str | None:
        """Return the URI of the tables to start from."""
        if value not in WORDS:
            return value
        self._warn_of_latest(START, value)
        for training in self._trainings.candidates(meaning(START, value)):
            overlap = self._same_step(training)
            if overlap is None:
                self.notes.append(f"starts from {training.name}{self._trained_on(training)}.")
                self._warn_of_unknown(training)
                return self._trainings.checkpoint_of(training).uri
            self._note_repeat(training, overlap)
            started = self._trainings.start_of(training.run)
            if started is not None:
                self.is_repeat = not overlap.changed
                return self._available(started)
        self.notes.append(f"starts cold: `{START}` is {value!r}, and nothing was trained yet that it can refer to.")
        return None

    def vocabularies(self, value: str | None) -> str | None:
        """Return the URI of the vocabularies that the new ones extend, whatever the tables start from."""
        if value in WORDS:
            self._warn_of_latest(BASE, value)
        known = self._trainings
        return self._uri(BASE, value, known.vocabularies_of, known.base_vocabularies_of)

    def table_configs(self, checkpoint: str | None) -> str | None:
        """Return the URI of the tables' configuration, if this pipeline made the checkpoint."""
        node = None if checkpoint is None else self._trainings.artifact_at(checkpoint)
        made = None if node is None else self._trainings.table_configs_of(node)
        return None if made is None else made.uri

    def baseline(self, value: str | None) -> str | None:
        """Return the URI of the model to compare with, which is never one that a previous call of this run made."""
        return self._uri(BASELINE, value, self._trainings.model_of, self._trainings.baseline_of)

    def versions(self, given: References) -> dict[str, str]:
        """Return the URIs of the versions that gates compare with, which are never ones that a previous call pushed."""
        made, known = self._trainings.pushed_model_of, self._trainings.compared_version_of
        uris = {key: self._uri(key, given[key], made, known) for key in given if key not in (START, BASE, BASELINE)}
        return {key: uri for key, uri in uris.items() if uri is not None}

    def _uri(self, key: str, value: str | None, made: ArtifactOf, given: ArtifactOf) -> str | None:
        """Return the URI that a key's value means.

        Args:
          key: the key of the configuration.
          value: a word, a URI or None.
          made: returns the artifact that a run made.
          given: returns the artifact that a run was given; used if that run is a previous call of this one.
        """
        if value not in WORDS:
            return value
        for training in self._trainings.candidates(meaning(key, value)):
            artifact = (made if self._same_step(training) is None else given)(training.run)
            if artifact is not None:
                return artifact.uri
        return None

    def matching_vocabularies(self, checkpoint: str | None, vocabularies: str | None, *, same: bool) -> str | None:
        """Return the vocabularies that the rows belong to: one run's vocabularies are never used with another's rows.

        If another pipeline made the checkpoint, its vocabularies are unknown here, and `vocabularies` is returned.
        """
        node = None if checkpoint is None else self._trainings.artifact_at(checkpoint)
        known = None if node is None else self._trainings.vocabularies_of(node)
        if checkpoint is not None and known is None:
            return vocabularies
        of_rows = None if known is None else known.uri
        if not same and of_rows != vocabularies:
            raise ConfigError(
                f"`{START}` and `{BASE}` refer to two different runs: the rows belong to the vocabularies {of_rows!r}, "
                f"but the new vocabularies would extend {vocabularies!r}; give both the same word."
            )
        return of_rows

    def note_mismatch(self, checkpoint: str, vocabularies: str) -> None:
        """Add a note if the rows of the checkpoint do not belong to the vocabularies to extend."""
        rows, base = _digests_of_checkpoint(checkpoint), _digests_of_vocabularies(vocabularies)
        differing = sorted(name for name in rows.keys() & base.keys() if rows[name] != base[name])
        if differing:
            self.notes.append(
                f"the rows of `{START}` do not belong to `{BASE}` ({', '.join(differing)}): rows move by token, "
                "and a token that the checkpoint does not have starts as a new one."
            )

    def check_new(self, checkpoint: str, *, train_again: bool) -> None:
        """Refuse data that the tables were trained on.

        Raises:
          ConfigError: the tables were trained on some of the data, and `train_again` is false.
        """
        behind = list(trainings_behind(self._trainings, checkpoint))
        if not behind or any(trained_data(examples) is None for _, examples in behind):
            self.notes.append("not every run behind these tables recorded its data: unrecorded data is not compared.")
        for run, examples in behind:
            overlap = _overlap(self._data, examples)
            if overlap is None or overlap.kind == "none":
                continue
            what = self._repeated(overlap, run)
            if not train_again:
                raise ConfigError(
                    f"{what}, which the tables of `{START}` {checkpoint!r} come from: give newer data; or `--again` to "
                    "train on it once more, or `warm_start.repeated_data: train` if that is intended, as for windows "
                    "that overlap, or row filters that choose other rows of the same files."
                )
            self.notes.append(f"{what}: it is trained on once more.")

    def check_not_trained(self, checkpoint: str) -> None:
        """Refuse files of `data.eval_path` that the tables were trained on: the figures would be too good.

        Raises:
          ConfigError: the content of one of the files is that of data behind the tables.
        """
        judged = dataclasses.replace(self._data, pieces=self._data.for_eval)
        for run, examples in trainings_behind(self._trainings, checkpoint):
            overlap = _overlap(judged, examples)
            if overlap is not None and overlap.shared:
                raise ConfigError(
                    f"`data.eval_path`: {self._repeated(overlap, run)}, which the tables of `{START}` {checkpoint!r} "
                    "come from: a model cannot be judged by rows that it has seen; give others."
                )

    def _same_step(self, training: Training) -> Overlap | None:
        """Return the overlap with a training on this run's own data; None for others, or if `again` is true."""
        if self._again:
            return None
        overlap = _overlap(self._data, self._trainings.examples_of(training.run))
        return overlap if overlap is not None and overlap.kind == "same" else None

    def _note_repeat(self, training: Training, overlap: Overlap) -> None:
        if self.repeats is None:
            self.repeats = f"{describe_pieces(self._data.pieces)}: {training.name} was trained on it"
        if overlap.changed:
            self.notes.append(
                f"{describe_pieces(overlap.changed)} changed since {training.name} was trained on it: this run "
                "replaces that training."
            )

    def _available(self, checkpoint: Node) -> str:
        """Return the URI of the checkpoint or, if it is gone, of the one restored from the same training."""
        run = self._trainings.run_of(checkpoint)
        if checkpoint.id in self._trainings.live or run is None:
            return checkpoint.uri
        return self._trainings.checkpoint_of(Training(run, f"the training #{run.id}")).uri

    def _trained_on(self, training: Training) -> str:
        trained = trained_data(self._trainings.examples_of(training.run))
        return "" if trained is None else f", trained on {describe_pieces(trained.pieces)}"

    def _repeated(self, overlap: Overlap, run: Node) -> str:
        versions = [version for version, push in pushes_of(self._trainings.graph).items() if run.id in push.inputs]
        name = f"version {max(versions)}" if versions else f"the training #{run.id}"
        now, then = (describe_pieces(list(dict.fromkeys(side))) for side in zip(*overlap.shared, strict=True))
        renamed = "" if now == then else f", then {then}"
        return f"{now}{renamed} was trained on by {name}"

    def _warn_of_unknown(self, training: Training) -> None:
        if training.version is None:
            return
        unknown = self._trainings.unknown_after(training.version)
        if unknown:
            self.notes.append(
                f"{len(unknown)} newer versions in {self._trainings.destination!r}, the newest {unknown[-1]}, are of "
                "trainings that the metadata does not know, so this run does not continue from them: if the metadata "
                "was restored, restore a newer backup, or give the address of an EmbeddingCheckpoint."
            )

    def _warn_of_latest(self, key: str, value: str | None) -> None:
        if value == LATEST:
            now, pushed = (next(self._trainings.candidates(word), None) for word in (meaning(key, LATEST), PUSHED))
            names = [run.name if run else "nothing" for run in (now, pushed)]
            self.notes.append(
                f"`{key}` is {LATEST!r}, a former name of {meaning(key, LATEST)!r}. It selects the newest training, "
                f"pushed or not: {names[0]}; {PUSHED!r} would be {names[1]}."
            )


def _digests_of_checkpoint(folder: str) -> dict[str, str]:
    path = os.path.join(folder, "manifest.json")
    return {} if is_remote(folder) else dict(json_if_readable(path).get("vocabularies", {}))


def _digests_of_vocabularies(folder: str) -> dict[str, str]:
    if is_remote(folder) or not os.path.isdir(folder):
        return {}
    names = [name.removesuffix(".counts.npy") for name in os.listdir(folder) if name.endswith(".counts.npy")]
    return {name: str(json_if_readable(os.path.join(folder, f"{name}.json")).get("digest")) for name in names}
