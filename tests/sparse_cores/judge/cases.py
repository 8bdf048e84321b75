"""Writes the cases that `judge.py` judges: batches, and the limits that `embedding_core.sparse_cores` computes.

A case is a folder with `case.json`: the "program" as `SparseCoreCompiler.compile` takes it, and the file of its batches
(`<feature>.values.<n>` and `<feature>.splits.<n>` of each batch). "exact" cases hold all batches that
their limits were computed from; the limits of the others are bounds, from the first batches alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import Adagrad
from embedding_core.planning.topology import named_topology
from embedding_core.schema import Json
from embedding_core.sparse_cores import BatchIds, Ids, LimitCounter, limits_in_all_forms, slice_of, stacks_of

TOPOLOGIES = ("v5p-8", "v5p-16", "v5p-32", "v5p-64", "v6e-1", "v6e-4", "v6e-8", "v6e-16")
CONFIDENCE = 0.99
_BATCH = 1024
_BATCHES = 40

MODEL = EmbeddingConfig(
    tables=(
        TableConfig(name="item", vocabulary_size=3659, dim=16, combiner="sum"),
        TableConfig(name="user", vocabulary_size=20011, dim=16, combiner="sum"),
        TableConfig(name="country", vocabulary_size=37, dim=12, combiner="sum"),
        TableConfig(name="word", vocabulary_size=997, dim=8),
    ),
    features=(
        FeatureConfig(name="user", table="user"),
        FeatureConfig(name="item", table="item"),
        FeatureConfig(name="history", table="item"),
        FeatureConfig(name="country", table="country"),
        FeatureConfig(name="words", table="word"),
    ),
)
"""Four tables in two stacks: user, item and country (padded to 16 columns) are one. History and words are lists."""


def drawn(distribution: str, seed: int, batches: int = _BATCHES, size: int = _BATCH) -> Iterator[BatchIds]:
    """Draw batches of `MODEL`, the last one short: ids are "uniform", or by Zipf's law with exponent 1.2.

    The recorded verdicts are about these batches, so they are the same with every numpy: the draws of `Generator.zipf`
    changed between 1.26 and 2.4.
    """
    random = np.random.default_rng(seed)
    for number in range(batches):
        rows = size if number < batches - 1 else size // 3
        batch = {}
        for feature in MODEL.features:
            lists = feature.name in ("history", "words")
            lengths = random.integers(0, 9, rows) if lists else np.ones(rows, np.int64)
            known, count = MODEL.table_of(feature.name).vocabulary_size, lengths.sum()
            if distribution == "uniform":
                ids = random.integers(0, known, count)
            else:
                shares = np.cumsum(np.arange(1, known + 1) ** -1.2)
                ids = np.searchsorted(shares, random.random(count) * shares[-1])
            batch[feature.name] = Ids(ids.astype(np.int64), np.concatenate([[0], np.cumsum(lengths)]))
        yield batch


def write_case(
    folder: Path,
    config: EmbeddingConfig,
    topology: str,
    batch_size: int,
    batches: Sequence[BatchIds],
    counted: int | None = None,
) -> None:
    """Write a case and its batches; with `counted`, its limits are bounds from so many of the batches."""
    slice_ = slice_of(named_topology(topology))
    assert slice_ is not None
    counters = [
        LimitCounter(config, slice_, batch_size, stacks_of(config, slice_, batch_size, by_combiner=by_combiner))
        for by_combiner in (False, True)
    ]
    for batch in batches[:counted]:
        for counter in counters:
            counter.add(batch)
    limits = [counter.bounds(len(batches), CONFIDENCE) if counted else counter.limits() for counter in counters]
    folder.mkdir(parents=True)
    write_batches(folder / "batches.npz", batches)
    forms = limits_in_all_forms(*limits)
    describe(folder, config, topology, batch_size, len(batches), forms, exact=counted is None)


def describe(
    folder: Path,
    config: EmbeddingConfig,
    topology: str,
    batch_size: int,
    batches: int,
    forms: Json,
    *,
    exact: bool = True,
    batches_file: str = "batches.npz",
) -> None:
    """Write `case.json`."""
    from embedding_core.tpu_compiler.compiler_check import program_of

    slice_ = slice_of(named_topology(topology))
    assert slice_ is not None
    limits = {"chips": slice_.chips, "sparse_cores_per_chip": slice_.per_chip, "batch_size": batch_size, "forms": forms}
    tables = (table.replace(optimizer=Adagrad(learning_rate=0.1)) for table in config.tables)
    case = {
        "name": folder.name,
        "exact": exact,
        "generation": topology.partition("-")[0],
        "batches": batches,
        "batches_file": batches_file,
        "program": program_of(config.replace(tables=tuple(tables)), limits),
    }
    (folder / "case.json").write_text(json.dumps(case, indent=2))


def write_batches(path: Path, batches: Iterable[BatchIds]) -> None:
    """Write the ids of batches."""
    arrays = {}
    for number, batch in enumerate(batches):
        for name, ids in batch.items():
            arrays[f"{name}.values.{number}"] = ids.values.astype(np.int32)
            arrays[f"{name}.splits.{number}"] = ids.row_splits.astype(np.int32)
    np.savez(path, **arrays)


def write_drawn(folder: Path, topologies: Iterable[str] = TOPOLOGIES, batches: int = _BATCHES) -> None:
    """Write an exact case of each topology and distribution."""
    for topology in topologies:
        for distribution in ("uniform", "zipf"):
            given = list(drawn(distribution, seed=len(topology), batches=batches))
            write_case(folder / f"{topology} {distribution}", MODEL, topology, _BATCH, given)


def write_bounds(folder: Path) -> None:
    """Write cases whose limits are bounds from the first tenth of 400 batches."""
    for topology in ("v5p-8", "v6e-16"):
        for distribution in ("uniform", "zipf"):
            given = list(drawn(distribution, seed=7, batches=400))
            write_case(folder / f"{topology} {distribution} bound", MODEL, topology, _BATCH, given, counted=40)


def write_all(folder: Path, retail: str) -> None:
    """Write all cases; those of Online Retail only if the folder of its data is given."""
    write_drawn(folder)
    write_bounds(folder)
    if retail:
        from tests.sparse_cores.judge.retail_cases import write_retail  # it needs TensorFlow

        write_retail(folder, Path(retail), TOPOLOGIES)
