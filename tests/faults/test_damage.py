"""Damages every file of checkpoints and vocabularies: the result is an error or a correct state, never a wrong row."""

import json
import logging
import os
import random
import shutil
import sys

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from embedding_core.checkpoint import CheckpointSeries, Tables, TrainingState, load_checkpoint_into, retrieve
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, VocabularyError
from embedding_core.optimizers import Adam
from embedding_core.vocabulary import FeatureSummary, Vocabulary, evolved_vocabulary, load_vocabulary, save_vocabulary
from tests.faults.damaging import KINDS, damage
from tests.support.vocabularies import vocabulary_of

ROWS = 301
STEPS = (5, 10)
CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="item", vocabulary_size=ROWS, dim=8, optimizer=Adam(), vocabulary="item", oov_rows=1),),
    features=(FeatureConfig(name="item", table="item"),),
)
ITEMS = vocabulary_of([b"token %d" % row for row in range(ROWS - 1)], "item")
TRAINING_FILES = ("ckpt-{}.data-00000-of-00001", "ckpt-{}.index", "checkpoint", "manifest.json", "history.json")
EMBEDDING_FILES = ("tables.data-00000-of-00001", "tables.index", "manifest.json", "vocabularies/item.txt")
EMBEDDING_FILES += ("vocabularies/item.counts.npy", "vocabularies/item.json")
VOCABULARY_FILES = ("item.txt", "item.counts.npy", "item.json", "item.evolution.npy")


class Run:
    """Tables whose values all equal the step, and the training state to save and restore them."""

    def __init__(self) -> None:
        engine = HostEngine(CONFIG)
        self.variables = engine.table_variables
        self.step = tf.Variable(0, dtype=tf.int64)
        self.state = TrainingState(Tables(self.variables, engine.tables), {"step": self.step})

    def set(self, step: int) -> None:
        self.step.assign(step)
        for variable in self.variables.values():
            variable.assign(tf.fill(variable.shape, float(step)))

    def holds(self, step: int) -> bool:
        rows = all(bool(tf.reduce_all(variable == float(step))) for variable in self.variables.values())
        return rows and int(self.step.numpy()) == step


@pytest.fixture(scope="module")
def run():
    return Run()


@pytest.fixture(scope="module")
def good(run, tmp_path_factory):
    """A series with two states, and an embedding checkpoint and a vocabulary for each."""
    folder = tmp_path_factory.mktemp("good")
    series = CheckpointSeries(folder / "series")
    for step in STEPS:
        run.set(step)
        series.save(step, run.state.write, files={"history.json": json.dumps({"step": step})})
        prefix = os.path.join(series.path(step), f"ckpt-{step}")
        retrieve(prefix, CONFIG, folder / f"embedding-{step}", vocabularies={"item": ITEMS})
        (folder / f"vocabularies-{step}").mkdir()
        save_vocabulary(evolved(step), folder / f"vocabularies-{step}")
    return folder


def evolved(step: int) -> Vocabulary:
    """An evolved vocabulary, as VocabularyGen writes it if there is a base: no manifest seals its files."""
    tokens, counts = pa.array([b"token 3", b"new %d" % step], pa.large_binary()), np.array([step, 2], np.int64)
    lengths = {"p50": 1, "max": step}
    summary = FeatureSummary(column=ColumnConfig(name="i"), rows=9, missing=1, token_count=step + 2, lengths=lengths)
    return evolved_vocabulary(ITEMS, tokens, counts, mode="append", expire_after=3, features={"item": summary})


def restored(run, folder, caplog) -> str:
    """Restart from a damaged series; return the outcome."""
    run.set(0)
    caplog.clear()
    try:
        found = CheckpointSeries(folder / "series").restore(lambda checkpoint: run.state.restore(checkpoint.prefix))
    except CheckpointError:
        return "stopped"
    if found is None:
        return "SILENT COLD START"
    if not run.holds(found.step):
        return "SILENTLY WRONG"
    if found.step == STEPS[-1]:
        return "harmless"
    return "fell back" if "is passed over" in caplog.text else "SILENT FALL-BACK"


def loaded(run, folder) -> str:
    """Start from a damaged embedding checkpoint; return the outcome."""
    run.set(0)
    try:
        load_checkpoint_into(folder / "embedding-10", run.variables, CONFIG, vocabulary_digests={"item": ITEMS.digest})
    except CheckpointError:
        return "stopped"
    run.step.assign(10)
    return "harmless" if run.holds(10) else "SILENTLY WRONG"


def read(good, folder) -> str:
    """Load a damaged vocabulary; return the outcome. The damage is harmless if all loaded bytes are those written."""
    try:
        found = load_vocabulary(folder / "vocabularies-10", "item")
    except VocabularyError:
        return "stopped"
    (folder / "again").mkdir()
    save_vocabulary(found, folder / "again")
    again, written = (
        [(place / name).read_bytes() for name in VOCABULARY_FILES]
        for place in (folder / "again", good / "vocabularies-10")
    )
    return "harmless" if again == written else "SILENTLY WRONG"


def outcomes(good, tmp_path, random_, trials, name, paths, restart) -> dict[str, int]:
    """Damage a file, in the newest checkpoint or in both, `trials` times; count the outcomes."""
    counts: dict[str, int] = {}
    for trial in range(trials):
        folder = tmp_path / "damaged"
        shutil.copytree(good, folder)
        kind = KINDS[trial % len(KINDS)]
        older, newest = (str(folder / path) for path in paths)
        damage(newest, kind, random_, older)
        if random_.random() < 0.3 and kind != "swap":
            damage(older, random_.choice([each for each in KINDS if each != "swap"]), random_, newest)
        outcome = restart(folder)
        counts[outcome] = counts.get(outcome, 0) + 1
        shutil.rmtree(folder)
    figures = {"campaign": f"damage to {name}", "trials": trials, **dict(sorted(counts.items()))}
    sys.stdout.write(json.dumps(figures) + "\n")
    return counts


SHORT_AND_LONG = [pytest.param(5, id="short"), pytest.param(500, id="long", marks=pytest.mark.slow)]


@pytest.mark.parametrize("trials", SHORT_AND_LONG)
@pytest.mark.parametrize("name", TRAINING_FILES)
def test_damaged_training_checkpoint_is_never_silent(run, good, tmp_path, caplog, name, trials):
    caplog.set_level(logging.WARNING)
    paths = [os.path.join("series", f"step-{step}", name.format(step)) for step in STEPS]
    counts = outcomes(
        good, tmp_path, random.Random(trials), trials, name, paths, lambda folder: restored(run, folder, caplog)
    )
    assert counts.keys() <= {"stopped", "fell back", "harmless"}
    assert counts["fell back"] > counts.get("harmless", 0)


@pytest.mark.parametrize("trials", SHORT_AND_LONG)
@pytest.mark.parametrize("name", EMBEDDING_FILES)
def test_damaged_embedding_checkpoint_is_never_loaded(run, good, tmp_path, name, trials):
    paths = [os.path.join(f"embedding-{step}", name) for step in STEPS]
    counts = outcomes(good, tmp_path, random.Random(trials), trials, name, paths, lambda folder: loaded(run, folder))
    assert counts.keys() <= {"stopped", "harmless"}
    assert counts["stopped"] > counts.get("harmless", 0)


@pytest.mark.parametrize("trials", SHORT_AND_LONG)
@pytest.mark.parametrize("name", VOCABULARY_FILES)
def test_damaged_vocabulary_is_never_read(good, tmp_path, name, trials):
    paths = [os.path.join(f"vocabularies-{step}", name) for step in STEPS]
    counts = outcomes(good, tmp_path, random.Random(trials), trials, name, paths, lambda folder: read(good, folder))
    assert counts.keys() <= {"stopped", "harmless"}
    assert counts["stopped"] > counts.get("harmless", 0)
