"""Remaps an embedding checkpoint to other vocabularies: every row, and its slots, move with its token."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, Rows, rows_per_slice
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, VOCABULARIES, Manifest, verify
from embedding_core.checkpoint.dense import DENSE
from embedding_core.checkpoint.load import rename_hint
from embedding_core.checkpoint.retrieve import Progress, used_vocabularies, write_tables
from embedding_core.checkpoint.row_order import reordered
from embedding_core.checkpoint.row_sources import RowSources, row_sources, sources_report
from embedding_core.checkpoint.slot_policy import carried_slots, ftrl_linears
from embedding_core.checkpoint.token_rows import token_rows
from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import FTRL
from embedding_core.schema import Json
from embedding_core.storage import StrPath
from embedding_core.vocabulary import Vocabulary, load_vocabulary
from embedding_core.warm_start import RemapPolicy

REPORT = "remap.json"


def remap(
    source: StrPath,
    config: EmbeddingConfig,
    vocabularies: Mapping[str, Vocabulary],
    destination: StrPath,
    *,
    policy: RemapPolicy | None = None,
    slice_bytes: int = SLICE_BYTES,
    progress: Progress | None = None,
) -> tuple[Manifest, Json]:
    """Write the checkpoint of a previous run for the tables and vocabularies of a new one.

    Args:
      source: the embedding checkpoint of the previous run; its files are verified first.
      config: the new tables.
      vocabularies: the new vocabularies, by name.
      destination: the folder to write, which must be absent or empty.
      policy: how to initialize what the checkpoint does not have; None for the defaults.
      slice_bytes: bytes of a table held in memory at once.
      progress: called with table, rows done and rows in total.

    Returns:
      The new manifest, and the report: the policy, and `sources_report` per table. The file `remap.json` of the
      checkpoint contains the same report.

    Raises:
      CheckpointError: a file is damaged, or the policy refuses a difference, such as another dim. Nothing is written.
    """
    policy = policy or RemapPolicy()
    source = os.fspath(source)
    manifest = verify(source)
    _check(source, manifest.config, config, policy)
    vocabularies = used_vocabularies(config, vocabularies)
    earlier = {table.name: table for table in manifest.config.tables}
    kept = checkpoint_vocabularies(source, manifest)
    sources = {
        table.name: row_sources(table, earlier[table.name], vocabularies, kept, policy.new_rows)
        for table in config.tables
        if table.name in earlier and (policy.changed_dim != "reset" or earlier[table.name].dim == table.dim)
    }
    report = {"policy": policy.to_mapping(), **_report(sources, earlier, config)}
    sources = {name: dataclasses.replace(each, earlier=None) for name, each in sources.items()}
    kept.clear()  # the previous vocabularies are not needed any more, and may take as much memory as all the rest
    reader = BundleReader(os.path.join(source, BUNDLE))

    def rows_of(key: str) -> Iterable[tuple[int, Rows]]:
        name, _, slot = key.partition("/")
        table = config.table(name)
        fill = _fill(table, slot, sources.get(name), vocabularies, policy.seed)
        if name not in sources:
            return _filled(table, fill, slice_bytes)
        old = earlier[name]
        if not slot or slot in carried_slots(old.optimizer, table.optimizer, policy.changed_optimizer):
            slices = reader.slices(key, slice_bytes)
            return _moved(slices, sources[name].rows, old.dim, table.dim, fill, slice_bytes)
        if slot == "linears" and isinstance(table.optimizer, FTRL):
            parts = zip(rows_of(name), rows_of(f"{name}/accumulators"), strict=True)
            return _linears(table.optimizer, parts, sources[name].rows)
        return _filled(table, fill, slice_bytes)

    written = write_tables(
        destination,
        config,
        rows_of,
        step=manifest.step,
        vocabularies=vocabularies,
        files={REPORT: json.dumps(report, indent=2)},
        dense=os.path.join(source, DENSE),
        nonfinite="keep",  # such rows were counted when the previous checkpoint was written
        slice_bytes=slice_bytes,
        progress=progress,
    )
    return written, report


def _moved(
    slices: Iterable[tuple[int, Rows]],
    sources: npt.NDArray[np.int64],
    old_dim: int,
    dim: int,
    fill: Callable[[npt.NDArray[np.int64]], Rows],
    slice_bytes: int,
) -> Iterator[tuple[int, Rows]]:
    """Yield rows in their new order; if the dim changed, drop columns, or add some from `fill`."""
    columns = ((0, 0), (0, max(0, dim - old_dim)))
    sized = slices if dim == old_dim else ((start, np.pad(rows[:, :dim], columns)) for start, rows in slices)
    for start, rows in reordered(sized, sources, dim, fill, slice_bytes):
        kept = np.flatnonzero(sources[start : start + len(rows)] >= 0)
        if dim > old_dim and len(kept):
            rows[kept, old_dim:] = fill(kept + start)[:, old_dim:]
        yield start, rows


def _linears(
    optimizer: FTRL,
    parts: Iterable[tuple[tuple[int, Rows], tuple[int, Rows]]],
    sources: npt.NDArray[np.int64],
) -> Iterator[tuple[int, Rows]]:
    """Compute FTRL's linear terms from rows and their accumulators; zeros for a new row, as in a new table."""
    for (start, rows), (_, accumulators) in parts:
        linears = ftrl_linears(optimizer, rows, accumulators)
        linears[sources[start : start + len(rows)] < 0] = 0.0
        yield start, linears


def _fill(
    table: TableConfig, slot: str, sources: RowSources | None, vocabularies: Mapping[str, Vocabulary], seed: int
) -> Callable[[npt.NDArray[np.int64]], Rows]:
    """Make a function that maps new row numbers to their initial rows, in the table itself or in a slot."""
    if slot:
        slots = table.optimizer.slots if table.optimizer else ()
        initial = {each.name: each.initial for each in slots}[slot]
        return lambda rows: np.full((len(rows), table.dim), initial, np.float32)
    names = sources or _all_new(table, vocabularies)
    return lambda rows: token_rows(table, [names.name_of(int(row)) for row in rows], seed=seed)


def _all_new(table: TableConfig, vocabularies: Mapping[str, Vocabulary]) -> RowSources:
    vocabulary = vocabularies[table.vocabulary] if table.vocabulary is not None else None
    kept = np.zeros(0 if vocabulary is None else len(vocabulary), np.bool_)
    rows = np.full(table.vocabulary_size, -1, np.int64)
    return RowSources(table=table, rows=rows, vocabulary=vocabulary, earlier=None, kept=kept)


def _filled(
    table: TableConfig, fill: Callable[[npt.NDArray[np.int64]], Rows], slice_bytes: int
) -> Iterator[tuple[int, Rows]]:
    count = rows_per_slice((table.vocabulary_size, table.dim), slice_bytes)
    for start in range(0, table.vocabulary_size, count):
        yield start, fill(np.arange(start, min(start + count, table.vocabulary_size)))


def checkpoint_vocabularies(source: str, manifest: Manifest) -> dict[str, Vocabulary]:
    """Load the vocabularies that the rows of an embedding checkpoint belong to, by name."""
    folder = os.path.join(source, VOCABULARIES)
    return {name: load_vocabulary(folder, name, open_file=tf.io.gfile.GFile) for name in manifest.vocabularies}


def _check(source: str, earlier: EmbeddingConfig, config: EmbeddingConfig, policy: RemapPolicy) -> None:
    problems = []
    old = {table.name: table for table in earlier.tables}
    new = {table.name: table for table in config.tables}
    if policy.new_tables == "error":
        extra = {name: (table.dim,) for name, table in old.items() if name not in new}
        for name in new.keys() - old.keys():
            problems.append(f"{name!r} is not in the checkpoint{rename_hint((new[name].dim,), extra)}")
        problems += [f"{name!r} of the checkpoint belongs to no configured table" for name in old if name not in new]
    for name in new.keys() & old.keys():
        if new[name].dim != old[name].dim and policy.changed_dim == "error":
            problems.append(f"`dim` of {name!r} is {new[name].dim}, {old[name].dim} in the checkpoint")
        same = type(new[name].optimizer) is type(old[name].optimizer)
        if not same and policy.changed_optimizer == "error":
            problems.append(f"slots of {name!r} are of {old[name].optimizer!r} instead of {new[name].optimizer!r}")
    if problems:
        raise CheckpointError(
            f"checkpoint {source!r} cannot be continued: {'; '.join(sorted(problems))}. Keep names, `dim` and "
            "optimizers, or allow `new_tables`='initialize', `changed_optimizer`='reset' or 'convert', or "
            "`changed_dim`='reset' or 'resize'."
        )


def _report(sources: Mapping[str, RowSources], earlier: Mapping[str, TableConfig], config: EmbeddingConfig) -> Json:
    names = [table.name for table in config.tables]
    return {
        "tables": {name: sources_report(each) for name, each in sources.items()},
        "tables_new": [name for name in names if name not in sources],
        "tables_dropped": [name for name in earlier if name not in names],
    }
