"""Holds what a SavedModel contains: read-only tables, vocabularies and the dense part; no optimizer and no slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf
import tf_keras

from embedding_core.columns import (
    MISSING_INT,
    Columns,
    DenseInputs,
    RawColumns,
    TokenTable,
    Values,
    kept,
    rows_of,
    text_of,
    texts_of,
    tokens_of,
)
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.model_inputs import length_name, length_of
from embedding_core.serving.lookups import (
    Counts,
    ListedIds,
    Rows,
    SingleIds,
    is_row,
    look_up_lists,
    look_up_sequence,
    look_up_single,
)
from embedding_core.serving.table_blocks import (
    TableRows,
    require_finite,
    require_same_names,
    tables_to_blocks,
    vocabulary_file,
)
from embedding_core.serving_config import RowsDtypes, dtypes_of_tables

_CPU = "/device:CPU:0"


def columns_of(config: EmbeddingConfig, dense: DenseInputs | None, *, with_dense: bool = True) -> Columns:
    """Collect the raw columns of a model: those of its features, and those that its dense inputs are computed from.

    Args:
      config: tables and features.
      dense: source of dense inputs and of columns `after_transform`.
      with_dense: whether to include columns that only dense inputs need.
    """
    chosen = [_column_of(feature) for feature in config.features]
    needed = dense is not None and (with_dense or any(column.after_transform for column in chosen))
    return Columns(chosen, dense.spec if dense is not None and needed else {})


class ExportForm:
    """The form of an exported model: with what answers requests, and no more. A subclass adds to it.

    Attributes:
      token_table: maps the tokens of a table to its rows.
    """

    token_table: type[TokenTable] = TokenTable

    def rows_to_come(self, config: EmbeddingConfig) -> Mapping[str, int] | None:
        """Return how many rows of zeros each table gets for new tokens; None if no row changes while it is served."""
        return None

    def signatures(
        self, module: ServingModule, signatures: Mapping[str, Any], vocabularies: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Change and add signatures; `vocabularies` are the files by name."""
        return signatures

    def save(self, module: ServingModule, folder: str) -> None:
        """Write further files into the folder that the module was saved to."""


class ServingModule(tf.Module):
    """Computes activations and dense inputs from raw columns, with the functions that training uses.

    Everything that a SavedModel must contain is an attribute: tables, vocabularies (which become
    assets), the variables of the dense part, and the resources of the transform.
    """

    def __init__(
        self,
        config: EmbeddingConfig,
        tables: Mapping[str, TableRows],
        vocabularies: Mapping[str, str],
        dense: DenseInputs | None,
        rows_dtype: RowsDtypes = "float32",
        form: ExportForm | None = None,
    ) -> None:
        """Check tables and vocabularies, and hold them.

        Args:
          config: tables and features.
          tables: float32 `[rows, dim]` by table name or TableConfig.
          vocabularies: path of the plain token file by vocabulary name.
          dense: source of dense inputs and of columns `after_transform`.
          rows_dtype: type of the rows in the blocks.
          form: the form of the export; None for `ExportForm()`.

        Raises:
          CheckpointError: a table is missing, extra, of another shape, or holds a value that is not finite.
          VocabularyError: a vocabulary is missing, or its number of tokens does not fit its table.
          ConfigError: `rows_dtype` names an unknown type or table.
        """
        super().__init__()
        form = form or ExportForm()
        self._config = config.replace(features=tuple(_served(feature) for feature in config.features))
        self._dense = dense
        by_name = {key if isinstance(key, str) else key.name: value for key, value in tables.items()}
        require_same_names(config, by_name)
        dtypes = dtypes_of_tables(rows_dtype, by_name)
        self.tables, rows = tables_to_blocks(config, by_name, dtypes, form.rows_to_come(config))
        self._rows = MappingProxyType(rows)  # TensorFlow does not track this type: `tables` already holds the blocks
        self.token_tables = {
            table.name: form.token_table.of(table, vocabulary_file(table, vocabularies))
            for table in config.tables
            if table.vocabulary is not None
        }
        self.transform = [] if dense is None else dense.tracked
        self.dense_variables: list[tf.Variable] = []
        self._counted = [feature.name for feature in self._config.features if _is_counted(self._config, feature)]
        with tf.device(_CPU):
            self.dropped = tf.Variable(tf.zeros([len(self._counted)], tf.int64), trainable=False, name="dropped_ids")

    @property
    def counted(self) -> list[str]:
        """The features whose invalid ids are dropped and counted: raw ids with `invalid_id: drop`."""
        return list(self._counted)

    @property
    def config(self) -> EmbeddingConfig:
        """The tables and features, with the policies of serving."""
        return self._config

    @property
    def dense(self) -> DenseInputs | None:
        """The source of the dense inputs."""
        return self._dense

    def columns(self, features: Iterable[str], *, dense: bool = True) -> Columns:
        """Collect the raw columns of some features and, if asked for, of the dense inputs."""
        return columns_of(self._config.of_features(features), self._dense, with_dense=dense)

    def inputs_of(self, raw: RawColumns, features: Iterable[str]) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Compute activations by feature, `[B, dim]` or `[B, L, dim]`, and numbers by name, `[B, 1]`.

        The numbers are the dense inputs and, by `length_name`, the lengths of the sequences.
        """
        outputs = self._dense.outputs(raw.dense) if self._dense is not None and raw.dense else {}
        config = self._config.of_features(features)
        with tf.device(_CPU):
            activations, lengths = self._activations(
                config, {feature.name: _value_of(feature, raw, outputs) for feature in config.features}
            )
        dense = self._dense.values(outputs) if self._dense is not None and outputs else {}
        return activations, {**dense, **lengths}

    def _activations(
        self, config: EmbeddingConfig, values: Mapping[str, Values]
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Return the activations by feature, and the lengths of the sequences by `length_name`."""
        single, several, sequences, lengths = {}, {}, [], {}
        for feature in config.features:
            value = values[feature.name]
            if feature.max_sequence_length:
                sequences.append(feature.name)
            elif isinstance(value, tf.Tensor) and value.shape.rank == 1 and not _column_of(feature).many:
                single[feature.name] = self._single_ids(feature, value)
            else:
                several[feature.name] = self._listed_ids(feature, value)
        activations, invalid = look_up_single(single, MISSING_INT)
        combined, dropped = look_up_lists(several)
        activations.update(combined)
        for name in sequences:
            feature = config.feature(name)
            ids = self._ids(feature, values[name])
            activations[name] = look_up_sequence(self.rows_of(feature.table), ids, feature.max_sequence_length)
            lengths[length_name(name)] = length_of(ids, feature.max_sequence_length)
            if name in self._counted:
                invalid.append(Counts((name,), self._invalid(name, ids)))
        self._count([*invalid, *dropped])
        return {feature.name: activations[feature.name] for feature in config.features}, lengths

    def _count(self, invalid: Sequence[Counts]) -> None:
        """Add the invalid ids of a batch to the counters."""
        counted = [counter for counter in invalid if set(counter.features) & set(self._counted)]
        if not counted:
            return
        names = [name for counter in counted for name in counter.features]
        counts = counted[0].counts if len(counted) == 1 else tf.concat([counter.counts for counter in counted], 0)
        if names != self._counted:
            places = [names.index(name) if name in names else len(names) for name in self._counted]
            counts = tf.gather(tf.concat([counts, tf.zeros([1], tf.int64)], 0), places)
        self.dropped.assign_add(counts)

    def _invalid(self, name: str, ids: tf.RaggedTensor) -> tf.Tensor:
        outside = tf.logical_not(is_row(ids.values, self._config.table_of(name).vocabulary_size))
        return tf.reduce_sum(tf.cast(outside, tf.int64))[tf.newaxis]

    def rows_of(self, table: str) -> Rows:
        """Locate the rows of a table in its block."""
        return self._rows[table]

    def _single_ids(self, feature: FeatureConfig, value: tf.Tensor) -> SingleIds:
        table, rows = self._config.table(feature.table), self.rows_of(feature.table)
        if table.vocabulary is not None:
            text = text_of(_column_of(feature), value)
            return SingleIds(rows=rows, ids=self.token_tables[table.name].ids_of(text), lengths=_lengths(table, text))
        if feature.invalid_id == "row":
            value = tf.where(is_row(value, rows.count) | (value == MISSING_INT), value, rows.count - 1)
        return SingleIds(rows=rows, ids=value)

    def _listed_ids(self, feature: FeatureConfig, value: Values) -> ListedIds:
        table, rows = self._config.table(feature.table), self.rows_of(feature.table)
        if table.vocabulary is not None:
            texts = texts_of(_column_of(feature), value)
            ids = texts.with_values(self.token_tables[table.name].ids_of(texts.values))
            return ListedIds(rows=rows, ids=ids, lengths=_lengths(table, texts.values), combiner=table.combiner)
        return ListedIds(rows=rows, ids=self._raw_ids(feature, value), combiner=table.combiner)

    def _raw_ids(self, feature: FeatureConfig, value: Values) -> tf.RaggedTensor:
        ids, count = rows_of(_column_of(feature), value), self.rows_of(feature.table).count
        replaced = feature.invalid_id == "row"
        if replaced or feature.max_sequence_length:  # otherwise MISSING_INT is dropped as an invalid id
            ids = kept(ids, ids.values != MISSING_INT)
        return ids.with_values(tf.where(is_row(ids.values, count), ids.values, count - 1)) if replaced else ids

    def _ids(self, feature: FeatureConfig, value: Values) -> tf.RaggedTensor:
        column, table = _column_of(feature), self._config.table(feature.table)
        if table.vocabulary is not None:
            return self.token_tables[table.name].lookup(tokens_of(column, value))
        return self._raw_ids(feature, value)

    def hold(self, model: tf_keras.Model) -> None:
        """Hold the variables of the dense part.

        The model itself is not held: it would add tracing and metadata to the SavedModel, and servers read neither.
        """
        for variable in model.variables:
            require_finite(f"variable {variable.name!r} of the model", variable)
        self.dense_variables = [*self.dense_variables, *model.variables]


def _is_counted(config: EmbeddingConfig, feature: FeatureConfig) -> bool:
    return config.table(feature.table).vocabulary is None and feature.invalid_id == "drop"


def _lengths(table: TableConfig, texts: tf.Tensor) -> tf.Tensor | None:
    """Count the bytes of tokens, to tell a missing token from an unknown one; None if unknown tokens have no row."""
    return tf.strings.length(texts) if table.oov_rows else None


def _value_of(feature: FeatureConfig, raw: RawColumns, outputs: Mapping[str, Values]) -> Values:
    column = _column_of(feature)
    return (outputs if column.after_transform else raw.categorical)[column.name]


def _served(feature: FeatureConfig) -> FeatureConfig:
    """Drop invalid raw ids that are errors in training: in serving, one row must not make the others fail."""
    return feature.replace(invalid_id="drop") if feature.invalid_id == "error" else feature


def _column_of(feature: FeatureConfig) -> ColumnConfig:
    """Return the feature's column; raw ids without one are read from the int64 column of the feature's name."""
    return feature.column or ColumnConfig(name=feature.name, dtype="int64", multivalent=True)
