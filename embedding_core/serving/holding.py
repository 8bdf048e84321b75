"""What a SavedModel may hold: finite tables of the configuration's shapes, their vocabularies, and no stored code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.serving.inputs import DenseInputs
from embedding_core.serving.lookups import with_row_of_nothing

__all__ = ["file_of", "read_only", "require_finite", "require_model_inputs", "require_no_lambda", "require_same_names"]

_CPU = "/device:CPU:0"
_ROWS_PER_CHECK = 1 << 20


def require_same_names(config: EmbeddingConfig, tables: Mapping[str, Any]) -> None:
    """Refuse tables that are not exactly those of the configuration."""
    wrong = sorted({table.name for table in config.tables} ^ set(tables))
    if wrong:
        raise CheckpointError(
            f"table {wrong[0]!r} is only in one of the configuration and the tables given: the configuration has "
            f"{[table.name for table in config.tables]}; pass exactly these, without slots."
        )


def file_of(table: TableConfig, vocabularies: Mapping[str, str]) -> str:
    """The file of the table's vocabulary."""
    if table.vocabulary is None or table.vocabulary not in vocabularies:
        raise VocabularyError(
            f"`vocabulary` of table {table.name!r} is {table.vocabulary!r}: it must be one of {sorted(vocabularies)}."
        )
    return str(vocabularies[table.vocabulary])


def read_only(table: TableConfig, value: Any, dtype: str) -> tf.Variable:
    """The table as a variable on the host, with the row of nothing."""
    with tf.device(_CPU):
        rows = tf.concat([tf.convert_to_tensor(block, tf.float32) for block in _blocks(value)], 0)
    shape = (table.vocabulary_size, table.dim)
    if tuple(rows.shape) != shape:
        raise CheckpointError(
            f"table {table.name!r} has shape {tuple(rows.shape)}: the configuration says {shape}; export tables "
            "with the configuration they were trained with."
        )
    require_finite(f"table {table.name!r}", rows)
    with tf.device(_CPU):
        held = with_row_of_nothing(tf.cast(rows, dtype))
    if dtype != "float32":
        require_finite(f"table {table.name!r} as {dtype}", held)
    return tf.Variable(held, trainable=False, name=table.name)


def _blocks(value: Any) -> list[Any]:
    """The blocks of consecutive rows that a table is kept in: TensorFlow's ShardedVariable has several."""
    return list(getattr(value, "variables", [value]))


def require_finite(what: str, value: Any) -> None:
    """Refuse floats that are NaN or infinite, naming the first row with one."""
    if not value.shape or not tf.as_dtype(value.dtype).is_floating:
        return
    for start in range(0, value.shape[0], _ROWS_PER_CHECK):
        finite = np.isfinite(np.asarray(value[start : start + _ROWS_PER_CHECK]))
        if not finite.all():
            row = start + int(np.argwhere(~finite)[0][0])
            raise CheckpointError(
                f"{what} holds a value in row {row} that is NaN or infinite: such a model is not exported; lower the "
                "learning rate or clip gradients, and train again."
            )


def require_model_inputs(model: Any, config: EmbeddingConfig, dense: DenseInputs | None) -> None:
    """Refuse a model with dense inputs that nothing computes."""
    known = {f"embedding_{feature.name}" for feature in config.features}
    known |= {f"dense_{name}" for name in (dense.names if dense is not None else ())}
    missing = [name for name in model.input_names if name not in known]
    if missing:
        raise ConfigError(
            f"the model has an input {missing[0]!r}: the features and dense inputs given are {sorted(known)}; pass "
            "`dense` with what the model was trained on."
        )


def require_no_lambda(model: Any) -> None:
    """Refuse Lambda layers: their code is stored as Python bytecode, which whoever loads the model's file runs."""
    layers = [layer.name for layer in model.submodules if type(layer).__name__ == "Lambda"]
    if layers:
        raise ConfigError(
            f"layer {layers[0]!r} of the model is a Lambda: write it as a class derived from tf_keras.layers.Layer, "
            "or as TensorFlow operations on its inputs."
        )
