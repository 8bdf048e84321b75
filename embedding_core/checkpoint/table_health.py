"""Measures the health of the tables of an embedding checkpoint, alone or against the checkpoint of the last push."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from embedding_core.checkpoint.bundle import BundleReader
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, read_manifest
from embedding_core.checkpoint.remap import checkpoint_vocabularies
from embedding_core.checkpoint.row_sources import aligned, row_sources
from embedding_core.config import TableConfig
from embedding_core.errors import CheckpointError
from embedding_core.health import Block, Earlier, TableFacts, TableFigures, measure_table
from embedding_core.optimizers import FTRL, Adam
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
    for name in sorted(now.tables):
        yield measure_table(_Reader(now, base, name, drawn, slice_bytes))


class _Reader:
    """Reads one table for `measure_table`."""

    def __init__(
        self,
        now: CheckpointTables,
        base: CheckpointTables | None,
        name: str,
        drawn: Collection[str],
        slice_bytes: int,
    ) -> None:
        self._now, self._base = now, base
        self._table = now.tables[name]
        self._slice_bytes = slice_bytes
        self._slots = tuple(slot.name for slot in self._table.optimizer.slots) if self._table.optimizer else ()
        sources = self._sources()
        self.facts = dataclasses.replace(_facts(now, self._table, drawn), sources=sources)

    def _sources(self) -> npt.NDArray[np.int64] | None:
        earlier = None if self._base is None else self._base.tables.get(self._table.name)
        if self._base is None or earlier is None or earlier.dim != self._table.dim:
            return None
        try:
            return row_sources(self._table, earlier, self._now.vocabularies, self._base.vocabularies).rows
        except CheckpointError:  # raw ids on one side: their rows cannot be told apart
            return None

    def blocks(self) -> Iterator[Block]:
        keys = [self._table.name, *(f"{self._table.name}/{slot}" for slot in self._slots)]
        parts = [self._now.reader.slices(key, self._slice_bytes) for key in keys]
        if self._base is None or self.facts.sources is None:
            for (start, rows), *slots in zip(*parts, strict=True):
                yield Block(start=start, rows=rows, slots=tuple(slot for _, slot in slots))
            return
        earlier = self._base.tables[self._table.name]
        same = type(earlier.optimizer) is type(self._table.optimizer)  # else the slots may have been initialized again
        old_keys = keys if same else keys[:1]
        sources = self.facts.sources
        read, size = self._base.reader.slices, self._slice_bytes
        olds = [aligned(read(key, size), sources, earlier, size) for key in old_keys]
        for now, before in zip(zip(*parts, strict=True), zip(*olds, strict=True), strict=True):
            start, rows = now[0]
            yield Block(
                start=start,
                rows=rows,
                slots=tuple(slot for _, slot in now[1:]),
                earlier=Earlier(
                    known=sources[start : start + len(rows)] >= 0,
                    rows=before[0][1],
                    slots=tuple(slot for _, slot in before[1:]),
                ),
            )


def _facts(now: CheckpointTables, table: TableConfig, drawn: Collection[str]) -> TableFacts:
    vocabulary, optimizer = now.vocabulary_of(table), table.optimizer
    constant = table.initializer.name == "constant"
    features = {feature.name for feature in now.features if feature.table == table.name}
    return TableFacts(
        name=table.name,
        rows=table.vocabulary_size,
        dim=table.dim,
        counts=None if vocabulary is None else vocabulary.counts,
        constant=_initial_constant(table) if constant else None,
        zeros=isinstance(optimizer, FTRL) and optimizer.l1_regularization_strength > 0,
        drawn=not features.isdisjoint(drawn),
        sweeps=isinstance(optimizer, Adam) and not optimizer.lazy_adam,
    )


def _initial_constant(table: TableConfig) -> float:
    scale = table.initializer.scale
    return 1 / float(np.sqrt(table.dim)) if scale is None else scale
