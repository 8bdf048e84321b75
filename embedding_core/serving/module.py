"""What a SavedModel holds: read-only tables, vocabularies and the dense part, with no optimizer and no slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.ids import TokenTable
from embedding_core.lookup import cpu_embedding_lookup
from embedding_core.serving.inputs import Columns, DenseInputs, RawColumns
from embedding_core.tokens import tokens_of

__all__ = ["ServingModule", "columns_of", "only", "require_model_inputs"]

_CPU = "/device:CPU:0"
_ROWS_PER_CHECK = 1 << 20


def only(config: EmbeddingConfig, features: Iterable[str]) -> EmbeddingConfig:
    """The configuration of some of the features, and of their tables."""
    kept = tuple(config.feature(name) for name in features)
    used = {feature.table for feature in kept}
    return EmbeddingConfig(tables=tuple(table for table in config.tables if table.name in used), features=kept)


def columns_of(config: EmbeddingConfig, dense: DenseInputs | None, *, with_dense: bool = True) -> Columns:
    """The raw columns of a model: those of its features, and those that its dense inputs are computed from.

    Args:
      config: the features.
      dense: where dense inputs, and columns `after_transform`, come from.
      with_dense: False leaves out what only dense inputs need.
    """
    chosen = [_column_of(feature) for feature in config.features]
    needed = dense is not None and (with_dense or any(column.after_transform for column in chosen))
    return Columns(chosen, dense.spec if dense is not None and needed else {})


class ServingModule(tf.Module):
    """Raw columns -> activations -> logits, by the functions that training uses.

    Everything that a SavedModel must hold is an attribute: tables, vocabularies (which become
    assets), the variables of the dense part, and the resources of the transform.
    """

    def __init__(
        self,
        config: EmbeddingConfig,
        tables: Mapping[str, Any],
        vocabularies: Mapping[str, str],
        dense: DenseInputs | None,
    ) -> None:
        """Check and hold what the lookups need.

        Raises:
          CheckpointError: a table is missing, extra, of another shape, or holds a value that is not finite.
          VocabularyError: a vocabulary is missing, or has another number of tokens than its table has rows for.
        """
        super().__init__()
        self._config = dataclasses.replace(config, features=tuple(_served(feature) for feature in config.features))
        self._dense = dense
        _check_names(config, tables)
        self.tables = {table.name: _read_only(table, tables[table.name]) for table in config.tables}
        self.token_tables = {
            table.name: TokenTable.of(table, _file_of(table, vocabularies))
            for table in config.tables
            if table.vocabulary is not None
        }
        self.transform = [] if dense is None else dense.tracked
        self.dense_variables: list[tf.Variable] = []

    @property
    def config(self) -> EmbeddingConfig:
        """The tables and features, with the policies of serving."""
        return self._config

    @property
    def dense(self) -> DenseInputs | None:
        """Where dense inputs come from."""
        return self._dense

    def columns(self, features: Iterable[str], *, dense: bool = True) -> Columns:
        """The raw columns that some features, and the dense inputs where asked for, are read from."""
        return columns_of(only(self._config, features), self._dense, with_dense=dense)

    def inputs_of(self, raw: RawColumns, features: Iterable[str]) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Activations by feature, `[B, dim]` or `[B, L, dim]`, and dense inputs by name, `[B, 1]`."""
        outputs = self._dense.outputs(raw.dense) if self._dense is not None and raw.dense else {}
        config = only(self._config, features)
        with tf.device(_CPU):
            ids = {feature.name: self._ids(feature, raw, outputs) for feature in config.features}
            activations: dict[str, tf.Tensor] = cpu_embedding_lookup(ids, None, self.tables, config)
        return activations, self._dense.values(outputs) if self._dense is not None and outputs else {}

    def _ids(self, feature: FeatureConfig, raw: RawColumns, outputs: Mapping[str, Any]) -> Any:
        column, table = _column_of(feature), self._config.table(feature.table)
        value = (outputs if column.after_transform else raw.categorical)[column.name]
        if table.vocabulary is not None:
            return self.token_tables[table.name].lookup(tokens_of(column, value))
        return value if isinstance(value, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(value[:, tf.newaxis])

    def hold(self, model: Any) -> Callable[..., Any]:
        """Keep the variables of the dense part; returns the model itself.

        The variables and not the model: a Keras model brings its own tracing and metadata into a
        SavedModel, none of which a server reads.
        """
        for variable in model.variables:
            _require_finite(f"variable {variable.name!r} of the model", variable)
        self.dense_variables = [*self.dense_variables, *model.variables]
        found: Callable[..., Any] = model
        return found


def _served(feature: FeatureConfig) -> FeatureConfig:
    """The feature as served: an invalid raw id is dropped where training would stop; one bad row fails no other."""
    return dataclasses.replace(feature, invalid_id="drop") if feature.invalid_id == "error" else feature


def _column_of(feature: FeatureConfig) -> ColumnConfig:
    """The feature's column; raw ids without one are read from the int64 column of the feature's name."""
    return feature.column or ColumnConfig(name=feature.name, dtype="int64", multivalent=True)


def _check_names(config: EmbeddingConfig, tables: Mapping[str, Any]) -> None:
    wrong = sorted({table.name for table in config.tables} ^ set(tables))
    if wrong:
        raise CheckpointError(
            f"table {wrong[0]!r} is only in one of the configuration and the tables given: the configuration has "
            f"{[table.name for table in config.tables]}; pass exactly these, without slots."
        )


def _file_of(table: TableConfig, vocabularies: Mapping[str, str]) -> str:
    if table.vocabulary is None or table.vocabulary not in vocabularies:
        raise VocabularyError(
            f"`vocabulary` of table {table.name!r} is {table.vocabulary!r}: it must be one of {sorted(vocabularies)}."
        )
    return str(vocabularies[table.vocabulary])


def _read_only(table: TableConfig, value: Any) -> tf.Variable:
    """The table as a variable on the host; one that is a variable already is taken as it is, without a copy."""
    shape = (table.vocabulary_size, table.dim)
    if tuple(value.shape) != shape:
        raise CheckpointError(
            f"table {table.name!r} has shape {tuple(value.shape)}: the configuration says {shape}; export tables "
            "with the configuration they were trained with."
        )
    _require_finite(f"table {table.name!r}", value)
    if isinstance(value, tf.Variable):
        return value
    with tf.device(_CPU):
        return tf.Variable(np.asarray(value, np.float32), trainable=False, name=table.name)


def _require_finite(what: str, value: Any) -> None:
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
