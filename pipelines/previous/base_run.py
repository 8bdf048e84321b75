"""Finds the earlier run that a run starts from: the same one for every call on the same data.

A word of the configuration stands for the newest training of its kind. If that one was trained on the very data of this
run, an earlier call of this run finished: then this run starts from what that one started from, so that a retry comes
from the cache, and a changed configuration trains the data in its place and not on top of it. Data that the tables were
trained on in any other way is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from embedding_core.errors import ConfigError
from pipelines.config import PipelineConfig
from pipelines.config.bases import LATEST, PUSHED, WORDS
from pipelines.config.paths import is_remote
from pipelines.lineage.graph import Node
from pipelines.lineage.rollbacks import pushes_of
from pipelines.previous.earlier import BASE, BASELINE, START, EarlierRun, check_earlier, meaning
from pipelines.previous.earlier_runs import Candidate, EarlierRuns, earlier_runs, generations_of
from pipelines.previous.repeated_data import AskedData, Overlap, asked_data, compare, trained_data, words_of

__all__ = ["find_base", "find_earlier"]


def find_earlier(config: PipelineConfig, *, again: bool = False) -> EarlierRun:
    """What the run takes over, by the pipeline's own metadata and the files of its data.

    Args:
      config: of the pipeline.
      again: start from the newest training also if it was trained on this run's data.

    Raises:
      ConfigError: see `find_base`, and `check_earlier`.
    """
    given, runs = check_earlier(config), earlier_runs(config)
    rolled_back = runs.rolled_back()
    if all(value is None for value in given.values()) and (again or not rolled_back):
        return EarlierRun()
    asked = asked_data(config)
    repeated = "error" if config.warm_start is None else config.warm_start.repeated_data
    found = find_base(runs, asked, given, again=again, train_again=again or repeated == "train")
    warnings = () if again else _warnings(rolled_back, asked)
    return dataclasses.replace(found, notes=(*found.notes, *warnings))


def _warnings(rolled_back: Iterable[tuple[int, Node | None]], asked: AskedData) -> Iterator[str]:
    """Say of each version that was rolled back that this run makes another model of the same data."""
    for version, examples in rolled_back:
        data = trained_data(examples)
        overlap = None if data is None else compare(asked, data)
        if overlap is not None and overlap.kind == "same" and not overlap.changed:
            yield (
                f"{words_of(asked.pieces)}: version {version} was trained on it, and rolled back. If its model is not "
                "in the cache any more, it is trained and pushed again; change the data or the configuration if it "
                "must not be."
            )


def find_base(
    runs: EarlierRuns,
    asked: AskedData,
    given: Mapping[str, str | None],
    *,
    again: bool = False,
    train_again: bool = False,
) -> EarlierRun:
    """What the run takes over from earlier ones.

    Args:
      runs: the earlier ones.
      asked: the data of this run.
      given: words, addresses or None, by key of the configuration.
      again: a training on this very data counts as any other.
      train_again: data that the tables were trained on may be trained on once more.

    Raises:
      ConfigError: what is asked for is not there or does not belong together, or the data was trained on.
    """
    finder = _Finder(runs, asked, again)
    start, base, baseline = (given[key] for key in (START, BASE, BASELINE))
    checkpoint = finder.checkpoint(start)
    vocabularies = finder.vocabularies(base)
    if start in WORDS and base in WORDS:
        vocabularies = finder.family(checkpoint, vocabularies, same=meaning(START, start) == meaning(BASE, base))
    elif checkpoint is not None and vocabularies is not None:
        finder.note_family(checkpoint, vocabularies)
    if checkpoint is not None and not finder.comes_again:
        finder.check_new(checkpoint, train_again=train_again)
    return EarlierRun(
        checkpoint=checkpoint,
        vocabularies=vocabularies,
        baseline=finder.baseline(baseline),
        repeats=finder.repeats,
        notes=tuple(dict.fromkeys(finder.notes)),
    )


class _Finder:
    """Looks for the base of one run, and notes what it chose."""

    def __init__(self, runs: EarlierRuns, asked: AskedData, again: bool) -> None:
        self._runs, self._asked, self._again = runs, asked, again
        self.notes: list[str] = []
        self.repeats: str | None = None
        self.comes_again = False

    def checkpoint(self, value: str | None) -> str | None:
        """The URI of the tables to start from."""
        if value not in WORDS:
            return value
        word = meaning(START, value)
        self._warn_of_latest(START, value)
        for candidate in self._runs.candidates(word):
            overlap = self._overlap(candidate)
            if overlap is None:
                self.notes.append(f"starts from {candidate.name}{self._trained_on(candidate)}.")
                self._warn_of_unknown(candidate)
                return self._runs.checkpoint_of(candidate).uri
            self._note_repeat(candidate, overlap)
            started = self._runs.start_of(candidate.run)
            if started is not None:
                self.comes_again = not overlap.changed
                return self._still_there(started)
        self.notes.append(f"starts cold: `{START}` is {value!r}, and there is nothing yet that it stands for.")
        return None

    def vocabularies(self, value: str | None) -> str | None:
        """The URI of the vocabularies that the new ones come out of, whatever the tables start from."""
        if value not in WORDS:
            return value
        self._warn_of_latest(BASE, value)
        for candidate in self._runs.candidates(meaning(BASE, value)):
            is_other = self._overlap(candidate) is None
            found = (
                self._runs.vocabularies_of(candidate.run)
                if is_other
                else self._runs.base_vocabularies_of(candidate.run)
            )
            if found is not None:
                return found.uri
        return None

    def baseline(self, value: str | None) -> str | None:
        """The URI of the model to compare with; a run is not compared with what an earlier call of it made."""
        if value not in WORDS:
            return value
        for candidate in self._runs.candidates(meaning(BASELINE, value)):
            same = self._overlap(candidate) is not None
            found = self._runs.baseline_of(candidate.run) if same else self._runs.model_of(candidate.run)
            if found is not None:
                return found.uri
        return None

    def family(self, checkpoint: str | None, vocabularies: str | None, *, same: bool) -> str | None:
        """The vocabularies that the rows belong to: those of one run never meet the rows of another.

        A checkpoint of another pipeline says nothing here of its vocabularies: those stay that its run was given.
        """
        node = None if checkpoint is None else self._runs.at(checkpoint)
        known = None if node is None else self._runs.vocabularies_of(node)
        if checkpoint is not None and known is None:
            return vocabularies
        own = None if known is None else known.uri
        if not same and own != vocabularies:
            raise ConfigError(
                f"`{START}` and `{BASE}` stand for two runs: the rows belong to the vocabularies {own!r}, and the new "
                f"vocabularies would come out of {vocabularies!r}; give both the same word."
            )
        return own

    def note_family(self, checkpoint: str, vocabularies: str) -> None:
        """Say it if addresses give rows of one vocabulary and another one to come out of."""
        rows, base = _digests_of_checkpoint(checkpoint), _digests_of_vocabularies(vocabularies)
        other = sorted(name for name in rows.keys() & base.keys() if rows[name] != base[name])
        if other:
            self.notes.append(
                f"`{BASE}` is not what the rows of `{START}` belong to ({', '.join(other)}): rows move by token, and a "
                "token that the checkpoint does not have starts as a new one."
            )

    def check_new(self, checkpoint: str, *, train_again: bool) -> None:
        """Refuse data that went into the tables.

        Raises:
          ConfigError: some of it did, and it is not asked to be trained on once more.
        """
        trainings = list(generations_of(self._runs, checkpoint))
        if not trainings or any(trained_data(examples) is None for _, examples in trainings):
            self.notes.append("not every run behind these tables recorded its data: what did not is not compared.")
        for run, examples in trainings:
            data = trained_data(examples)
            overlap = None if data is None else compare(self._asked, data)
            if overlap is None or overlap.kind == "none":
                continue
            what = self._repeated(overlap, run)
            if not train_again:
                raise ConfigError(
                    f"{what}, which the tables of `{START}` {checkpoint!r} come from: give newer data; or `--again` to "
                    "train on it once more, or `warm_start.repeated_data: train` if that is meant, as for windows "
                    "that overlap, or row filters that choose other rows of the same files."
                )
            self.notes.append(f"{what}: it is trained on once more.")

    def _overlap(self, candidate: Candidate) -> Overlap | None:
        """What this run's data and a training's have in common if it is the same step; else None."""
        if self._again:
            return None
        data = trained_data(self._runs.examples_of(candidate.run))
        overlap = None if data is None else compare(self._asked, data)
        return overlap if overlap is not None and overlap.kind == "same" else None

    def _note_repeat(self, candidate: Candidate, overlap: Overlap) -> None:
        if self.repeats is None:
            self.repeats = f"{words_of(self._asked.pieces)}: {candidate.name} was trained on it"
        if overlap.changed:
            self.notes.append(
                f"{words_of(overlap.changed)} changed since {candidate.name} was trained on it: it is trained on in "
                "place of that one."
            )

    def _still_there(self, checkpoint: Node) -> str:
        """The checkpoint, or what was made again of the same training if it is gone."""
        training = self._runs.training_of(checkpoint)
        if checkpoint.id in self._runs.live or training is None:
            return checkpoint.uri
        return self._runs.checkpoint_of(Candidate(training, f"the training #{training.id}")).uri

    def _trained_on(self, candidate: Candidate) -> str:
        data = trained_data(self._runs.examples_of(candidate.run))
        return "" if data is None else f", trained on {words_of(data.pieces)}"

    def _repeated(self, overlap: Overlap, run: Node) -> str:
        versions = [version for version, push in pushes_of(self._runs.graph).items() if run.id in push.inputs]
        name = f"version {max(versions)}" if versions else f"the training #{run.id}"
        mine, theirs = (words_of(list(dict.fromkeys(side))) for side in zip(*overlap.shared, strict=True))
        renamed = "" if mine == theirs else f", then {theirs}"
        return f"{mine}{renamed} was trained on by {name}"

    def _warn_of_unknown(self, candidate: Candidate) -> None:
        if candidate.version is None:
            return
        unknown = self._runs.unknown_above(candidate.version)
        if unknown:
            self.notes.append(
                f"{len(unknown)} newer versions in {self._runs.destination!r}, the newest {unknown[-1]}, are of "
                "trainings that the metadata does not know, so this run does not go on from them: if the metadata was "
                "restored, restore a newer backup, or give the address of an EmbeddingCheckpoint."
            )

    def _warn_of_latest(self, key: str, value: str | None) -> None:
        if value == LATEST:
            now, then = (next(self._runs.candidates(word), None) for word in (meaning(key, LATEST), PUSHED))
            names = [one.name if one else "nothing" for one in (now, then)]
            self.notes.append(
                f"`{key}` is {LATEST!r}, an earlier name of {meaning(key, LATEST)!r}, pushed or not: that is "
                f"{names[0]}; {PUSHED!r} would be {names[1]}."
            )


def _digests_of_checkpoint(folder: str) -> dict[str, str]:
    path = os.path.join(folder, "manifest.json")
    return {} if is_remote(folder) else dict(_json(path).get("vocabularies", {}))


def _digests_of_vocabularies(folder: str) -> dict[str, str]:
    if is_remote(folder):
        return {}
    names = [name.removesuffix(".counts.npy") for name in os.listdir(folder) if name.endswith(".counts.npy")]
    return {name: str(_json(os.path.join(folder, f"{name}.json")).get("digest")) for name in names}


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):  # the component that reads it says what is wrong with it
        return {}
