"""Writing the SavedModel."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from embedding_core.columns.raw_columns import DenseInputs
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.signatures import (
    counters,
    embeddings_signature,
    raw_signature,
    serving_default,
    transform_signature,
)
from embedding_core.serving.table_blocks import require_model_inputs, require_no_lambda
from embedding_core.serving.two_tower_signatures import is_two_tower, two_tower_signatures


def export_model(
    destination: str | os.PathLike[str],
    *,
    config: EmbeddingConfig,
    tables: Mapping[str, Any],
    vocabularies: Mapping[str, str | os.PathLike[str]],
    model: Any,
    dense: DenseInputs | None = None,
    labels: DenseInputs | None = None,
    signatures: Collection[str] | None = None,
    top_k: int = 100,
    rows_dtype: str = "float32",
) -> tuple[str, ...]:
    """Write a SavedModel that looks up on CPU and loads with TensorFlow alone.

    It holds the tables without slots, the vocabularies as assets, the dense part and its transform, and
    computes with the functions that training uses (`tokens`, `ids`, `lookup`).

    Args:
      destination: folder to write; it must be absent or empty.
      config: the tables and features.
      tables: float32 `[rows, dim]` by table name or TableConfig: variables or arrays of any engine, whole or in blocks
        of consecutive rows (TensorFlow's ShardedVariable).
      vocabularies: path of the plain token file by vocabulary name.
      model: the dense part, as `model_inputs.build_model` makes it.
      dense: where dense inputs, and columns `after_transform`, come from; None where there are none.
      labels: where label and weight come from; given, the signatures `transform_features` and
        `transform_labels` are added, as TFX's Evaluator wants them.
      signatures: which of the signatures to write, `serving_default` always among them; None for all
        that the model can have.
      top_k: how many candidates `top_k` answers.
      rows_dtype: "float32", or "float16" for tables of half the size, whose vectors are rounded to 11 bits.

    Returns:
      The names of the signatures written.

    Raises:
      CheckpointError: tables that are not those of the configuration, or that hold NaN.
      VocabularyError: a vocabulary is missing or of another size.
      ConfigError: the destination holds something, a signature or `rows_dtype` is unknown, an input has no source, or
        the model has a Lambda layer.
    """
    path = os.fspath(destination)
    if tf.io.gfile.exists(path) and tf.io.gfile.listdir(path):
        raise ConfigError(f"`destination` is {path!r}, which is not empty: pass a new folder.")
    if rows_dtype not in ("float32", "float16"):
        raise ConfigError(f"`rows_dtype` is {rows_dtype!r}: it must be 'float32' or 'float16'.")
    require_model_inputs(model, config, dense)
    require_no_lambda(model)
    files = {name: os.fspath(file) for name, file in vocabularies.items()}
    module = ServingModule(config, tables, files, dense, rows_dtype)
    module.hold(model)
    found = _signatures(module, model, files, labels, top_k)
    chosen = set(found if signatures is None else {"serving_default", *signatures})
    unknown = sorted(chosen - set(found))
    if unknown:
        raise ConfigError(f"signature {unknown[0]!r} is not one that this model can have: {', '.join(found)}.")
    written = {name: function for name, function in found.items() if name in chosen}
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, path, signatures=written, options=options)
    return tuple(written)


def _signatures(
    module: ServingModule, model: Any, files: Mapping[str, str], labels: DenseInputs | None, top_k: int
) -> dict[str, Any]:
    found = {
        "serving_default": serving_default(module, model),
        "raw": raw_signature(module, model),
        "embeddings": embeddings_signature(module),
    }
    if module.counted:
        found["counters"] = counters(module)
    if is_two_tower(model):
        found |= two_tower_signatures(module, model, files, top_k)
    if labels is not None:
        module.label_transform = labels.tracked
        found["transform_labels"] = transform_signature(labels)
        if module.dense is not None and module.dense.names:
            found["transform_features"] = transform_signature(module.dense)
    return found
