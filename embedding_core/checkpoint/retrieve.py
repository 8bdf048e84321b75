"""Retrieves tables and slots from a training checkpoint of any topology, and loads them into an engine's variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, BundleWriter, Rows
from embedding_core.checkpoint.checkpoint_manifest import (
    BUNDLE,
    VOCABULARIES,
    Manifest,
    read_manifest,
    table_shapes,
    verify,
    write_manifest,
)
from embedding_core.checkpoint.dense import DENSE, copy_dense
from embedding_core.checkpoint.stored_keys import VALUE, find_root, others_at, rows_of_rooms, stored_keys
from embedding_core.config import EmbeddingConfig, NonfiniteRows
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import FTRL, Adagrad, AdagradMomentum, Optimizer
from embedding_core.storage import StrPath, make_folders, open_file, whole_folder
from embedding_core.vocabulary import Vocabulary, save_vocabulary

Blocks: TypeAlias = tf.Variable | Sequence[tf.Variable]  # a table in one variable, or in blocks of consecutive rows


def load_checkpoint_into(
    folder: StrPath,
    tables: Mapping[str, Blocks],
    config: EmbeddingConfig,
    *,
    vocabulary_digests: Mapping[str, str],
    slots: bool = True,
    slice_bytes: int = SLICE_BYTES,
) -> Manifest:
    """Fill variables with the rows of an embedding checkpoint that has the same tables and vocabularies.

    Args:
      folder: the checkpoint; its files are verified first.
      tables: the variables, float32 [rows, dim], by `<table>` and `<table>/<slot>`; a list of variables is a sharded
        table, in blocks of consecutive rows (such as `variables` of TensorFlow's ShardedVariable).
      config: configuration of these tables.
      vocabulary_digests: the digest of every vocabulary in use now.
      slots: whether slots are loaded too.
      slice_bytes: bytes of a table held in memory at once.

    Raises:
      CheckpointError: a file is damaged, or a table, slot, shape, optimizer or vocabulary differs (all
        differences are named). No variable is changed then.
    """
    folder = os.fspath(folder)
    manifest = verify(folder)
    wanted = {key: shape for key, shape in table_shapes(config).items() if slots or "/" not in key}
    _check(folder, manifest, wanted, tables, config, slots)
    _check_digests(folder, manifest, vocabulary_digests)
    reader = BundleReader(os.path.join(folder, BUNDLE))
    for key in wanted:
        for start, rows in reader.slices(key, slice_bytes):
            _write_rows(_blocks(tables[key]), start, rows)
    return manifest


def _blocks(given: Blocks) -> list[tf.Variable]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _write_rows(blocks: list[tf.Variable], start: int, rows: Rows) -> None:
    """Write rows `start`, `start + 1`, ... of a table into its blocks."""
    for first, block in _with_first_rows(blocks):
        low, high = max(start, first), min(start + len(rows), first + block.shape[0])
        if low < high:
            indices = tf.range(low - first, high - first, dtype=tf.int64)
            block.scatter_update(tf.IndexedSlices(tf.constant(rows[low - start : high - start]), indices))


def _with_first_rows(blocks: list[tf.Variable]) -> Iterator[tuple[int, tf.Variable]]:
    first = 0
    for block in blocks:
        yield first, block
        first += block.shape[0]


def _check_digests(folder: str, manifest: Manifest, vocabulary_digests: Mapping[str, str]) -> None:
    """Refuse a checkpoint whose rows belong to other vocabularies than those in use.

    Raises:
      CheckpointError: a vocabulary has another digest, or is not in use.
    """
    for name, digest in manifest.vocabularies.items():
        if vocabulary_digests.get(name) != digest:
            raise CheckpointError(
                f"rows of checkpoint {folder!r} belong to vocabulary {name!r} with digest {digest[:12]}..., but the "
                f"digest in use is {(vocabulary_digests.get(name) or 'none')[:12]}...: every token would read another "
                "token's row; remap the rows by token first (CheckpointLoader)."
            )


def _check(
    folder: str,
    manifest: Manifest,
    wanted: Mapping[str, tuple[int, ...]],
    tables: Mapping[str, Blocks],
    config: EmbeddingConfig,
    slots: bool,
) -> None:
    stored = {key: shape for key, shape in table_shapes(manifest.config).items() if slots or "/" not in key}
    missing = {key: shape for key, shape in wanted.items() if key not in stored}
    extra = {key: shape for key, shape in stored.items() if key not in wanted}
    problems = [f"{key!r} is not in the checkpoint{rename_hint(shape, extra)}" for key, shape in missing.items()]
    problems += [f"{key!r} of the checkpoint belongs to no configured table" for key in extra]
    problems += [f"no variable is given for {key!r}" for key in wanted if key not in tables]
    for key in wanted:
        if key in stored and stored[key] != wanted[key]:
            problems.append(f"{key!r} has shape {list(stored[key])} in the checkpoint instead of {list(wanted[key])}")
        if key in tables:
            problems += _other_shapes(key, wanted[key], _blocks(tables[key]))
    problems += _other_layout(manifest.config, config, slots)
    if problems:
        raise CheckpointError(
            f"checkpoint {folder!r} is not of these tables: {'; '.join(problems)}. Use the table configuration that "
            "it was written with, or bring it to the new one with CheckpointLoader."
        )


def _other_shapes(key: str, wanted: tuple[int, ...], blocks: list[tf.Variable]) -> list[str]:
    shapes = [block.shape.as_list() for block in blocks]
    if sum(shape[0] for shape in shapes) == wanted[0] and all(shape[1:] == list(wanted[1:]) for shape in shapes):
        return []
    if len(shapes) == 1:
        return [f"the variable of {key!r} has shape {shapes[0]}"]
    return [f"the blocks of {key!r} have the shapes {shapes}, which do not make up {list(wanted)}"]


def rename_hint(shape: tuple[int, ...], others: Mapping[str, tuple[int, ...]]) -> str:
    """Return a hint for the message on a missing table or slot: the others that have its shape, or ""."""
    alike = [key for key, other in others.items() if other == shape]
    return f" (renamed from {' or '.join(map(repr, alike))}?)" if alike else ""


def _other_layout(stored: EmbeddingConfig, config: EmbeddingConfig, slots: bool) -> list[str]:
    problems = []
    for table in config.tables:
        old = {other.name: other for other in stored.tables}.get(table.name)
        if old is None:
            continue
        before, now = old.optimizer, table.optimizer
        if slots and not (same_slots(before, now) and row_rule(before) == row_rule(now)):
            problems.append(f"slots of {table.name!r} are of {before!r} instead of {now!r}")
        if (old.vocabulary, old.oov_rows) != (table.vocabulary, table.oov_rows):
            problems.append(
                f"{table.name!r} belongs to vocabulary {old.vocabulary!r} with {old.oov_rows} out-of-vocabulary rows "
                f"instead of {table.vocabulary!r} with {table.oov_rows}"
            )
    return problems


def same_slots(old: Optimizer | None, new: Optimizer | None) -> bool:
    """Return whether the slots of two optimizers mean the same: sums and decayed means of squared gradients do not."""
    return type(old) is type(new) and sums_squares(old) == sums_squares(new)


def sums_squares(optimizer: Optimizer | None) -> bool:
    """Return whether the accumulators are sums of squared gradients."""
    if isinstance(optimizer, AdagradMomentum):
        return optimizer.beta2 == 1.0
    return isinstance(optimizer, Adagrad | FTRL)


def row_rule(optimizer: Optimizer | None) -> list[object]:
    """Return the hyperparameters that turn FTRL's slots into a row; none for another optimizer."""
    if not isinstance(optimizer, FTRL):
        return []
    names = (
        "learning_rate",
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
        "multiply_linear_by_learning_rate",
    )
    return [getattr(optimizer, name) for name in names]


_STEP = f"step{VALUE}"
Progress = Callable[[str, int, int], None]


def retrieve(
    training_checkpoint: StrPath,
    config: EmbeddingConfig,
    destination: StrPath,
    *,
    vocabularies: Mapping[str, Vocabulary],
    root: str | None = None,
    slice_: tuple[int, int] | None = None,
    nonfinite: NonfiniteRows = "error",
    dense: str | None = None,
    slice_bytes: int = SLICE_BYTES,
    progress: Progress | None = None,
) -> Manifest:
    """Write the tables and slots of a training checkpoint as an embedding checkpoint, with its step, if it has one.

    Args:
      training_checkpoint: prefix of a `tf.train.Checkpoint`, without '.index'. The tables were trained by an engine of
        this project, by TensorFlow's `TPUEmbedding`, or by Keras' optimizers (see `stored_keys`); an optional room may
        read other forms (see `rows_of_rooms`).
      config: the tables and their optimizers; a table without an optimizer has no slots.
      destination: the folder to write, which must be absent or empty.
      vocabularies: those that the tables' rows belong to, by name; they are stored in the checkpoint, so that
        its rows can be found by token even after the training run is deleted.
      root: path at which the training checkpoint holds the tables, such as "embedding"; None finds it.
      slice_: chips of the real TPU that wrote the checkpoint and SparseCores of each, if their tables are stacked and
        it does not say how (TensorFlow 2.16).
      nonfinite: whether a NaN or infinity in a table or slot is an "error" or is kept and counted.
      dense: folder of the dense part that was trained with the tables (`checkpoint.dense`), which is copied if it
        exists; or None.
      slice_bytes: bytes of a table held in memory at once.
      progress: called with the key of a table or slot, its rows done and its rows in total.

    Raises:
      CheckpointError: tables or slots are missing, unexpected or of another shape (all are named), a vocabulary is
        missing or does not fit its table, the checkpoint is damaged, a row is not finite (if `nonfinite` is "error"),
        or the destination is not empty. Nothing is written then.
    """
    reader = BundleReader(os.fspath(training_checkpoint))
    rows_of = rows_of_rooms(reader, config, root, slice_, slice_bytes) or _plain_rows(reader, config, root, slice_bytes)
    return write_tables(
        destination,
        config,
        rows_of,
        step=int(reader.tensor(_STEP).numpy()) if _STEP in reader.entries else 0,
        vocabularies=vocabularies,
        dense=dense,
        nonfinite=nonfinite,
        slice_bytes=slice_bytes,
        progress=progress,
    )


def _plain_rows(
    reader: BundleReader, config: EmbeddingConfig, root: str | None, slice_bytes: int
) -> Callable[[str], Iterable[tuple[int, Rows]]]:
    """Return a function that reads the slices of a table or slot from a checkpoint of tables that are not stacked."""
    root = find_root(reader, config) if root is None else root
    stored = stored_keys(reader, config, root)
    _check_keys(reader, table_shapes(config), stored, root)
    return lambda key: reader.slices(stored[key], slice_bytes)


def write_tables(
    destination: StrPath,
    config: EmbeddingConfig,
    rows_of: Callable[[str], Iterable[tuple[int, Rows]]],
    *,
    step: int,
    vocabularies: Mapping[str, Vocabulary],
    files: Mapping[str, str] | None = None,
    dense: str | None = None,
    nonfinite: NonfiniteRows = "error",
    slice_bytes: int = SLICE_BYTES,
    progress: Progress | None = None,
) -> Manifest:
    """Write an embedding checkpoint from slices of rows.

    Args:
      destination: the folder to write, which must be absent or empty.
      config: the tables and their optimizers.
      rows_of: returns the slices of a table or slot, given its key: (number of the first row, rows).
      step: training step.
      vocabularies: by name, at least those that the tables' rows belong to.
      files: texts to keep in the checkpoint, by file name.
      dense: as in `retrieve`.
      nonfinite: as in `retrieve`.
      slice_bytes: as in `retrieve`.
      progress: as in `retrieve`.

    Returns:
      The manifest as written.
    """
    used = used_vocabularies(config, vocabularies)
    bad: dict[str, int] = {}
    with whole_folder(destination) as folder:
        writer = BundleWriter(os.path.join(folder, BUNDLE), slice_bytes)
        for key, shape in table_shapes(config).items():
            for start, rows in rows_of(key):
                count = int(np.count_nonzero(~np.isfinite(rows).all(axis=1)))
                if count:
                    bad[key] = bad.get(key, 0) + count
                writer.add(key, shape, start, rows)
                if progress is not None:
                    progress(key, start + len(rows), shape[0])
        _check_finite(bad, nonfinite)
        writer.close()
        _write_files(folder, used, files or {})
        if dense is not None:
            copy_dense(dense, os.path.join(folder, DENSE))
        digests = {name: vocabulary.digest for name, vocabulary in used.items()}
        write_manifest(folder, Manifest(step=step, config=config, vocabularies=digests, nonfinite_rows=bad))
    return read_manifest(destination)


def used_vocabularies(config: EmbeddingConfig, vocabularies: Mapping[str, Vocabulary]) -> dict[str, Vocabulary]:
    """Select the vocabularies that the rows of the tables belong to.

    Raises:
      CheckpointError: one is not given, or its number of tokens does not fit its table.
    """
    used = {}
    for table in config.tables:
        if table.vocabulary is None:
            continue
        if table.vocabulary not in vocabularies:
            raise CheckpointError(
                f"vocabulary {table.vocabulary!r} of table {table.name!r} is not given: rows without their tokens "
                "cannot be trained further; pass the vocabularies that the tables were planned from."
            )
        used[table.vocabulary] = vocabularies[table.vocabulary]
        if len(used[table.vocabulary]) + table.oov_rows != table.vocabulary_size:
            raise CheckpointError(
                f"table {table.name!r} has {table.vocabulary_size} rows, {table.oov_rows} of them out of vocabulary, "
                f"but vocabulary {table.vocabulary!r} has {len(used[table.vocabulary])} tokens: it is not the one that "
                "the table was planned from; pass that one."
            )
    return used


def _write_files(folder: str, vocabularies: Mapping[str, Vocabulary], files: Mapping[str, str]) -> None:
    make_folders(os.path.join(folder, VOCABULARIES))
    for vocabulary in vocabularies.values():
        save_vocabulary(vocabulary, os.path.join(folder, VOCABULARIES))
    for name, text in files.items():
        with open_file(os.path.join(folder, name), "w") as file:
            file.write(text)


def _check_finite(bad: Mapping[str, int], nonfinite: str) -> None:
    if bad and nonfinite == "error":
        rows = ", ".join(f"{key!r}: {count} rows" for key, count in sorted(bad.items()))
        raise CheckpointError(
            f"rows hold a NaN or an infinity ({rows}): training diverged; lower the learning rate or set `clipvalue`, "
            "or keep them with `nonfinite`='keep'."
        )


def _check_keys(
    reader: BundleReader, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, str], root: str
) -> None:
    others = others_at(reader, root, stored.values())
    problems = []
    for key, shape in shapes.items():
        entry = reader.entries.get(stored[key])
        if entry is None:
            problems.append(f"{key!r} is missing{rename_hint(shape, others)}")
        elif entry.shape != shape or entry.dtype.name != "float32":
            problems.append(f"{key!r} is {entry.dtype.name} {list(entry.shape)} instead of float32 {list(shape)}")
    problems += [f"{key!r} belongs to no configured table" for key in others]
    if problems:
        raise CheckpointError(
            f"training checkpoint {reader.prefix!r} is not of these tables: {'; '.join(problems)}. "
            "Use the table configuration that it was trained with."
        )
