"""Loads an embedding checkpoint into the variables of an engine, slice by slice."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from embedding_core.checkpoint.bundle import SLICE_BYTES, BundleReader, Rows
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, Manifest, table_shapes, verify
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import CheckpointError
from embedding_core.storage import StrPath

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
        if slots and type(old.optimizer) is not type(table.optimizer):
            problems.append(f"slots of {table.name!r} are of {old.optimizer!r} instead of {table.optimizer!r}")
        if (old.vocabulary, old.oov_rows) != (table.vocabulary, table.oov_rows):
            problems.append(
                f"{table.name!r} belongs to vocabulary {old.vocabulary!r} with {old.oov_rows} out-of-vocabulary rows "
                f"instead of {table.vocabulary!r} with {table.oov_rows}"
            )
    return problems
