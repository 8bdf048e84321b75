"""Exports the tables of an embedding checkpoint as a SavedModel, without model, slots or TPU."""

from __future__ import annotations

import os
from collections.abc import Collection

import tensorflow as tf

from embedding_core.checkpoint import BundleReader, verify
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE, VOCABULARIES
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError, nearest
from embedding_core.rows_dtype import RowsDtypes
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.signatures import counters, embeddings_signature, raw_embeddings_signature
from embedding_core.storage import whole_folder


def export_embeddings(
    checkpoint: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    features: Collection[str] | None = None,
    rows_dtype: RowsDtypes = "float32",
) -> tuple[str, ...]:
    """Write a SavedModel that returns the vectors of features, with the same lookup as in `export_model`.

    Args:
      checkpoint: folder of an embedding checkpoint, written by `checkpoint.retrieve` or `checkpoint.remap` from
        any engine.
      destination: folder to write; it must be absent or empty. It appears whole or not at all.
      features: names of the features; None for all of the checkpoint's.
      rows_dtype: type of the served rows, or types by table, as in `export_model`.

    Returns:
      The names of the signatures: `serving_default` (serialized tf.Examples -> a vector per feature), `raw` (the same
      from named tensors), and `counters` if ids can be invalid.

    Raises:
      CheckpointError: the checkpoint is damaged, the destination is not empty, or rows are not finite.
      ConfigError: a feature, or a type or table of `rows_dtype`, is unknown; a feature is made by a transform, which a
        checkpoint does not hold; or `features` is empty.
    """
    folder = os.fspath(checkpoint)
    config = _chosen(verify(folder).config, features)
    reader = BundleReader(os.path.join(folder, BUNDLE))
    tables = {table.name: _table(reader, table.name, (table.vocabulary_size, table.dim)) for table in config.tables}
    names = {table.vocabulary for table in config.tables if table.vocabulary is not None}
    files = {name: os.path.join(folder, VOCABULARIES, f"{name}.txt") for name in names}
    module = ServingModule(config, tables, files, None, rows_dtype)
    del tables
    signatures = {"serving_default": embeddings_signature(module), "raw": raw_embeddings_signature(module)}
    if module.counted:
        signatures["counters"] = counters(module)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with whole_folder(os.fspath(destination)) as place:
        tf.saved_model.save(module, place, signatures=signatures, options=options)
    return tuple(signatures)


def _chosen(config: EmbeddingConfig, features: Collection[str] | None) -> EmbeddingConfig:
    known = [feature.name for feature in config.features]
    for name in features or ():
        if name not in known:
            raise ConfigError(f"feature {name!r} is not in the checkpoint: {nearest(name, known)}")
    chosen = config.of_features(name for name in known if features is None or name in set(features))
    made = [one.name for one in chosen.features if one.column is not None and one.column.after_transform]
    if made:
        raise ConfigError(
            f"feature {made[0]!r} is made by a transform, which a checkpoint does not hold: name the other "
            "features, or export the model with `export_model`."
        )
    if not chosen.features:
        raise ConfigError(f"`features` is {features!r}: name at least one feature of the checkpoint.")
    return chosen


def _table(reader: BundleReader, name: str, shape: tuple[int, int]) -> tf.Variable:
    """Read a table slice by slice into a variable, so that only one copy of it is in memory."""
    rows = tf.Variable(tf.zeros(shape), trainable=False)
    for start, part in reader.slices(name):
        rows.scatter_update(tf.IndexedSlices(tf.constant(part), tf.range(start, start + len(part), dtype=tf.int64)))
    return rows
