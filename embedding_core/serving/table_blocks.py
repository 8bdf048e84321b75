"""Packs tables into the blocks of a SavedModel, and checks tables, vocabularies and model before they are exported.

Tables must have the configuration's shapes and finite values; the model must not contain stored code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

from embedding_core.columns import DenseInputs
from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import CheckpointError, ConfigError, NonfiniteError, VocabularyError
from embedding_core.model_inputs import length_name
from embedding_core.serving.lookups import Rows, encoded, rounded
from embedding_core.serving_config import RowsDtype, row_width
from embedding_core.storage import open_file

Part: TypeAlias = tf.Variable | npt.NDArray[np.float32]
TableRows: TypeAlias = Any
"""A table: one `Part`, or TensorFlow's ShardedVariable (not a public class), which has several in `variables`."""

_CPU = "/device:CPU:0"
_LARGE = 1 << 26
_SLICE = 1 << 22


def require_same_names(config: EmbeddingConfig, tables: Mapping[str, TableRows]) -> None:
    """Refuse tables that are not exactly those of the configuration."""
    wrong = sorted({table.name for table in config.tables} ^ set(tables))
    if wrong:
        raise CheckpointError(
            f"table {wrong[0]!r} is in only one of configuration and `tables`: the configuration has "
            f"{[table.name for table in config.tables]}; pass exactly these, without slots."
        )


def vocabulary_file(table: TableConfig, vocabularies: Mapping[str, str]) -> str:
    """Return the file of a table's vocabulary."""
    if table.vocabulary is None or table.vocabulary not in vocabularies:
        raise VocabularyError(
            f"`vocabulary` of table {table.name!r} is {table.vocabulary!r}: it must be one of {sorted(vocabularies)}."
        )
    return str(vocabularies[table.vocabulary])


def lines_of(path: str) -> list[bytes]:
    """Read the lines of a file of tokens, local or in an object store."""
    with open_file(path) as file:
        content: bytes = file.read()
    return content.removesuffix(b"\n").split(b"\n") if content else []


def tables_to_blocks(
    config: EmbeddingConfig,
    tables: Mapping[str, TableRows],
    dtypes: Mapping[str, RowsDtype],
    spare: Mapping[str, int] | None = None,
) -> tuple[dict[str, tf.Variable], dict[str, Rows]]:
    """Pack tables into variables on the host, with several tables of equal dim and type in one block.

    A table of 64 MiB or more gets a separate block. If such a table is served as float32 and already is one variable,
    this variable is the block, and nothing is copied. Other rows are stored slice after slice, so that no second
    float32 copy of a table is in memory. Blocks of smaller tables end with a row of zeros, which is read for a
    missing value.

    Args:
      config: tables and their shapes.
      tables: float32 `[rows, dim]` by name: a variable, an array, or a ShardedVariable.
      dtypes: type of the served rows of each table.
      spare: number of rows of zeros after each table, for tokens to come; None if no row changes while it is served.

    Returns:
      The variables by block, and the location of each table's rows.

    Raises:
      CheckpointError: a table has another shape, or some rows are not finite; the error counts them by table.
    """
    for table in config.tables:
        _require_shape(table, tables[table.name])
    _require_finite_tables(tables, dtypes)
    variables, rows = {}, {}
    for name, members in _blocks(config, dtypes).items():
        counts = {table.name: table.vocabulary_size + (spare or {}).get(table.name, 0) for table in members}
        parts = [
            part
            for table in members
            for part in _with_spare(_parts(tables[table.name]), counts[table.name] - table.vocabulary_size)
        ]
        size = sum(counts.values())
        zeros = None if _is_large(members[0]) else size
        block = variables[name] = _variable(name, parts, dtypes[members[0].name], with_zeros=zeros is not None)
        start = 0
        for table in members:
            count = counts[table.name]
            updated = spare is not None
            rows[table.name] = Rows(block=block, name=name, start=start, count=count, zeros=zeros, updated=updated)
            start += count
    return variables, rows


def _blocks(config: EmbeddingConfig, dtypes: Mapping[str, RowsDtype]) -> dict[str, list[TableConfig]]:
    """Assign tables to blocks."""
    blocks: dict[str, list[TableConfig]] = {}
    for table in config.tables:
        dtype = dtypes[table.name]
        shared = f"dim_{table.dim}" if dtype == "float32" else f"dim_{table.dim}_{dtype}"
        blocks.setdefault(f"table_{table.name}" if _is_large(table) else shared, []).append(table)
    return blocks


def _is_large(table: TableConfig) -> bool:
    """Return whether a table gets a separate block, so that it need not be copied."""
    return table.vocabulary_size * table.dim * 4 >= _LARGE


def _require_shape(table: TableConfig, value: TableRows) -> None:
    parts = _parts(value)
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    if shape != (table.vocabulary_size, table.dim):
        raise CheckpointError(
            f"table {table.name!r} has shape {shape}: the configuration has "
            f"{(table.vocabulary_size, table.dim)}; export tables with the configuration they were trained with."
        )


def _variable(name: str, parts: Sequence[Part], dtype: RowsDtype, *, with_zeros: bool) -> tf.Variable:
    """Concatenate the parts and, if asked for, a row of zeros, as rows of type `dtype`."""
    if len(parts) == 1 and not with_zeros and _is_plain(parts[0]) and parts[0].dtype == dtype:
        return cast(tf.Variable, parts[0])
    count, start = sum(int(part.shape[0]) for part in parts) + with_zeros, 0
    shape = (count, row_width(int(parts[0].shape[1]), dtype))
    with tf.device(_CPU):
        block = tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)
        for rows in (rows for part in parts for rows in _slices(part, _SLICE)):
            places = np.arange(start, start + len(rows))
            block.scatter_update(tf.IndexedSlices(encoded(np.asarray(rows), dtype), places))
            start += len(rows)
    return block


def _is_plain(value: Part) -> bool:
    """Return whether a value is one variable in the memory of this process."""
    return (
        isinstance(value, tf.Variable)
        and not isinstance(value, tf.distribute.DistributedValues)
        and (not value.device or "CPU" in value.device)
    )


def _parts(value: TableRows) -> list[Part]:
    """List the parts of a table, each of consecutive rows: TensorFlow's ShardedVariable has several."""
    return list(getattr(value, "variables", [value]))


def _with_spare(parts: list[Part], spare: int) -> list[Part]:
    return [*parts, np.zeros([spare, int(parts[0].shape[1])], np.float32)] if spare else parts


def _require_finite_tables(tables: Mapping[str, TableRows], dtypes: Mapping[str, RowsDtype]) -> None:
    """Refuse tables with rows that, as floats or in the type that is served, hold NaN or infinity.

    Raises:
      NonfiniteError: there are such rows; the message gives their number and the first of them for each table.
    """
    checked = {name: _not_finite(value, dtypes[name]) for name, value in tables.items()}
    bad = {name: rows for name, rows in checked.items() if rows.number}
    if bad:
        counted = [
            f"as {dtypes[name]}, {rows.number} of table {name!r} (the first is row {rows.first})"
            for name, rows in bad.items()
        ]
        remedy = "lower the learning rate or clip gradients, and train again"
        if all(rows.finite for rows in bad.values()):
            remedy = "serve each such table as float32, in which it is finite"
        raise NonfiniteError(
            f"rows that hold NaN or infinity: {', '.join(counted)}; such a model is not exported: {remedy}.",
            {name: rows.number for name, rows in bad.items()},
        )


class _Bad(NamedTuple):
    """The number of rows that hold NaN or infinity, the first of them, and whether all are finite as float32."""

    number: int = 0
    first: int = -1
    finite: bool = True


def _not_finite(table: TableRows, dtype: RowsDtype) -> _Bad:
    """Count the rows that hold NaN or infinity, in small slices."""
    total, begin = _Bad(), 0
    for part in _parts(table):
        for rows in _slices(part, _SLICE):
            given = np.asarray(rows)
            bad = np.flatnonzero(~np.isfinite(rounded(given, dtype)).all(axis=1))
            if len(bad):
                first = total.first if total.number else begin + int(bad[0])
                finite = total.finite and bool(np.isfinite(given[bad]).all())
                total = _Bad(total.number + len(bad), first, finite)
            begin += len(rows)
    return total


def _slices(part: Part, size: int) -> Iterator[tf.Tensor | npt.NDArray[np.float32]]:
    """Yield the rows in slices of about `size` bytes."""
    rows, dim = (int(number) for number in part.shape)
    step = max(1, size // max(1, 4 * dim))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        # Uses `gather`, because every read of a trained variable copies all of it.
        yield tf.gather(part, np.arange(start, stop)) if isinstance(part, tf.Variable) else part[start:stop]


def require_finite(what: str, value: Part) -> None:
    """Refuse floats that are NaN or infinite."""
    if tf.as_dtype(value.dtype).is_floating and not np.isfinite(np.asarray(value)).all():
        raise NonfiniteError(
            f"{what} holds a value that is NaN or infinite: such a model is not exported; lower the learning rate "
            "or clip gradients, and train again.",
            {what: 1},
        )


def require_model_inputs(model: tf_keras.Model, config: EmbeddingConfig, dense: DenseInputs | None) -> None:
    """Refuse an input of the model that is neither an embedding, nor a sequence length, nor one of `dense`."""
    known = {f"embedding_{feature.name}" for feature in config.features}
    lengths = [length_name(feature.name) for feature in config.features if feature.max_sequence_length]
    known |= {f"dense_{name}" for name in (*(dense.names if dense is not None else ()), *lengths)}
    missing = [name for name in model.input_names if name not in known]
    if missing:
        raise ConfigError(
            f"unknown input {missing[0]!r} of the model; known features and dense inputs: {sorted(known)}; pass "
            "`dense` with the inputs that the model was trained on."
        )


def require_no_lambda(model: tf_keras.Model) -> None:
    """Refuse Lambda layers: their code is stored as Python bytecode, which runs when someone loads the model."""
    layers = [layer.name for layer in model.submodules if type(layer).__name__ == "Lambda"]
    if layers:
        raise ConfigError(
            f"layer {layers[0]!r} of the model is a Lambda: write it as a class derived from tf_keras.layers.Layer, "
            "or as TensorFlow operations on its inputs."
        )
