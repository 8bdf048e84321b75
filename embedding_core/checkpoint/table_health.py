"""Measures the health of the tables of an embedding checkpoint, alone or against an earlier checkpoint, the base."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from embedding_core.checkpoint.bundle import BundleReader
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, read_manifest, table_keys
from embedding_core.checkpoint.remap import checkpoint_vocabularies
from embedding_core.checkpoint.row_sources import aligned, row_sources
from embedding_core.config import TableConfig
from embedding_core.errors import CheckpointError
from embedding_core.health import Block, Earlier, TableFacts, TableFigures, measure_table
from embedding_core.optimizers import FTRL
from embedding_core.storage import StrPath
from embedding_core.vocabulary import Vocabulary

_SLICE_BYTES = 8 << 20  # a slice is computed on in float64, several arrays at a time


class CheckpointTables:
    """The tables of a checkpoint, with the vocabularies that their rows belong to."""

    def __init__(self, folder: StrPath) -> None:
        """Read the manifest and the vocabularies.

        Raises:
          CheckpointError: the manifest is missing or damaged.
          VocabularyError: a vocabulary is missing or damaged.
        """
        self.folder = os.fspath(folder)
        manifest = read_manifest(self.folder)
        self.tables: Mapping[str, TableConfig] = {table.name: table for table in manifest.config.tables}
        self.features = manifest.config.features
        self.vocabularies: Mapping[str, Vocabulary] = checkpoint_vocabularies(self.folder, manifest)
        self.reader = BundleReader(os.path.join(self.folder, BUNDLE))

    def vocabulary_of(self, table: TableConfig) -> Vocabulary | None:
        """Return the vocabulary of a table; None for raw ids."""
        return None if table.vocabulary is None else self.vocabularies[table.vocabulary]


def measure_checkpoint(
    now: CheckpointTables,
    base: CheckpointTables | None = None,
    *,
    drawn: Collection[str] = (),
    slice_bytes: int = _SLICE_BYTES,
) -> Iterator[TableFigures]:
    """Measure every table of a checkpoint; slices of a table are in memory, never a whole table.

    Args:
      now: the checkpoint to measure.
      base: the checkpoint that the training started from. A table that it does not have, or has with another dim, is
        measured alone.
      drawn: features whose tokens training also draws.
      slice_bytes: bytes of a table held in memory at once.

    Raises:
      CheckpointError: data of a checkpoint are damaged or missing.
    """
    for _, table in sorted(now.tables.items()):
        sources = None if base is None else _sources(now, base, table)
        blocks = _blocks(now, table, slice_bytes)
        if base is not None and sources is not None:
            blocks = _with_base(blocks, base, table, sources, slice_bytes)
        yield measure_table(_facts(now, table, drawn, sources), blocks)


def _sources(now: CheckpointTables, base: CheckpointTables, table: TableConfig) -> npt.NDArray[np.int64] | None:
    """Return the row of the base that each row continues, or -1; None if the base's table cannot be compared."""
    earlier = base.tables.get(table.name)
    if earlier is None or earlier.dim != table.dim:
        return None
    try:
        return row_sources(table, earlier, now.vocabularies, base.vocabularies).rows
    except CheckpointError:  # raw ids on one side: their rows cannot be told apart
        return None


def _blocks(now: CheckpointTables, table: TableConfig, slice_bytes: int) -> Iterator[Block]:
    slices = [now.reader.slices(key, slice_bytes) for key in table_keys(table)]
    for (start, rows), *slots in zip(*slices, strict=True):
        yield Block(start=start, rows=rows, slots=tuple(slot for _, slot in slots))


def _with_base(
    blocks: Iterator[Block],
    base: CheckpointTables,
    table: TableConfig,
    sources: npt.NDArray[np.int64],
    slice_bytes: int,
) -> Iterator[Block]:
    """Add the rows of the base to the blocks, by token."""
    earlier = base.tables[table.name]
    same = type(earlier.optimizer) is type(table.optimizer)  # else the slots may have been initialized again
    slices = [
        aligned(base.reader.slices(key, slice_bytes), sources, earlier, slice_bytes)
        for key in (table_keys(table) if same else [table.name])
    ]
    for block, ((start, rows), *slots) in zip(blocks, zip(*slices, strict=True), strict=True):
        known = sources[start : start + len(rows)] >= 0
        before = Earlier(known=known, rows=rows, slots=tuple(slot for _, slot in slots))
        yield dataclasses.replace(block, earlier=before)


def _facts(
    now: CheckpointTables, table: TableConfig, drawn: Collection[str], sources: npt.NDArray[np.int64] | None
) -> TableFacts:
    vocabulary, optimizer = now.vocabulary_of(table), table.optimizer
    constant = table.initializer.name == "constant"
    features = {feature.name for feature in now.features if feature.table == table.name}
    return TableFacts(
        name=table.name,
        rows=table.vocabulary_size,
        dim=table.dim,
        counts=None if vocabulary is None else vocabulary.counts,
        sources=sources,
        constant=_initial_constant(table) if constant else None,
        zeros=isinstance(optimizer, FTRL) and optimizer.l1_regularization_strength > 0,
        drawn=not features.isdisjoint(drawn),
        sweeps=optimizer is not None and optimizer.moves_all_rows,
    )


def _initial_constant(table: TableConfig) -> float:
    scale = table.initializer.scale
    return 1 / float(np.sqrt(table.dim)) if scale is None else scale
