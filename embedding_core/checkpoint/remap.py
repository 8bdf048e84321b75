"""Remaps an embedding checkpoint to other vocabularies: every row, and its slots, move with its token."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, Rows, rows_per_slice
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, VOCABULARIES, Manifest, verify
from embedding_core.checkpoint.dense import DENSE
from embedding_core.checkpoint.retrieve import (
    Progress,
    rename_hint,
    row_rule,
    same_slots,
    sums_squares,
    used_vocabularies,
    write_tables,
)
from embedding_core.checkpoint.row_sources import RowSources, reordered, row_sources, sources_report
from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import FTRL, Optimizer
from embedding_core.schema import Json
from embedding_core.storage import StrPath
from embedding_core.training_config import ChangedOptimizer, RemapPolicy
from embedding_core.vocabulary import Vocabulary, load_vocabulary

# Decides which slots a changed optimizer inherits from the previous one.


def carried_slots(old: Optimizer | None, new: Optimizer | None, policy: ChangedOptimizer) -> set[str]:
    """Return the slots that the new optimizer inherits from the old one; the others get their initial value.

    An optimizer with slots of the same meaning keeps all slots; FTRL keeps its linear terms only if the hyperparameters
    that turn them into a row are the same. Otherwise "convert" keeps the accumulators if both optimizers are Adagrad,
    FTRL or AdagradMomentum with `beta2` 1, whose accumulators are all sums of squared gradients.
    """
    if new is not None and same_slots(old, new):
        stale = {"linears"} if row_rule(old) != row_rule(new) else set()
        return {slot.name for slot in new.slots} - stale
    both = policy == "convert" and sums_squares(old) and sums_squares(new)
    return {"accumulators"} if both else set()


def ftrl_linears(optimizer: FTRL, rows: Rows, accumulators: Rows) -> Rows:
    """Compute the linear terms from which FTRL reproduces rows that were trained by another rule.

    FTRL recomputes a row from its slots at every update, so with linear terms of zero a trained row would be lost at
    its next gradient. The formula is that of `update_rules.ftrl`, solved for the linear term.

    Raises:
      CheckpointError: the optimizer's learning rate is a schedule.
    """
    rate = optimizer.learning_rate
    if callable(rate):
        raise CheckpointError(
            f"`learning_rate` of {optimizer!r} is a schedule: slots of FTRL cannot be made from trained rows then; "
            "give a number, or keep the optimizer."
        )
    power = np.power(accumulators.astype(np.float64), -optimizer.learning_rate_power)
    scale = rate if optimizer.multiply_linear_by_learning_rate else 1.0
    l1, l2 = optimizer.l1_regularization_strength, optimizer.l2_regularization_strength
    denominator = ((power + optimizer.beta) / rate + 2.0 * l2) * scale
    linears: Rows = (-rows * denominator - np.sign(rows) * l1 * scale).astype(np.float32)
    return linears


# Computes initial rows that depend on the token, not on the number of its row.

_TOKENS_AT_ONCE = 8192  # float64 numbers of a whole slice would take several times its memory
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def token_rows(table: TableConfig, tokens: Sequence[bytes], *, seed: int) -> npt.NDArray[np.float32]:
    """Compute the initial rows of tokens, by the table's initializer.

    Each number is a function of seed, table name, token and column: SplitMix64 (Steele et al., 2014), seeded with the
    token's keyed BLAKE2b digest, gives a uniform number, which the inverse distribution function converts.

    Returns:
      float32 [number of tokens, dim].
    """
    scale = 1 / math.sqrt(table.dim) if table.initializer.scale is None else table.initializer.scale
    if table.initializer.name == "constant":
        return np.full((len(tokens), table.dim), scale, np.float32)
    rows = np.empty((len(tokens), table.dim), np.float32)
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        part = tokens[start : start + _TOKENS_AT_ONCE]
        uniform = _uniform(_keys(f"{seed}/{table.name}".encode(), part), table.dim)
        rows[start : start + len(part)] = _distributed(table.initializer.name, uniform) * scale
    return rows


def _distributed(name: str, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert uniform numbers in (0, 1) to the initializer's distribution, with scale 1."""
    if name == "uniform":
        return 2 * uniform - 1
    low = 0.5 * math.erfc(math.sqrt(2))  # a truncated normal distribution ends at two standard deviations
    normal: npt.NDArray[np.float64] = tf.math.ndtri(tf.constant(low + uniform * (1 - 2 * low), tf.float64)).numpy()
    return normal


def _keys(salt: bytes, tokens: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    key = hashlib.sha256(salt).digest()
    digests = b"".join(hashlib.blake2b(token, digest_size=8, key=key).digest() for token in tokens)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _uniform(keys: npt.NDArray[np.uint64], columns: int) -> npt.NDArray[np.float64]:
    """Return uniform numbers in (0, 1): [number of keys, columns]."""
    with np.errstate(over="ignore"):
        state = keys[:, None] + np.arange(1, columns + 1, dtype=np.uint64) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state ^= state >> np.uint64(31)
    uniform: npt.NDArray[np.float64] = ((state >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return uniform


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
        nonfinite="keep",  # the previous checkpoint already reported these rows
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
    return {name: load_vocabulary(folder, name) for name in manifest.vocabularies}


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
        if not same_slots(old[name].optimizer, new[name].optimizer) and policy.changed_optimizer == "error":
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
