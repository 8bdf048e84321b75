"""Declares the configuration of one model's tables and features, without TensorFlow.

The classes are frozen and keyword-only, and can be written to JSON and read back. As in TensorFlow, `vocabulary_size`
of a table is its number of rows, including the out-of-vocabulary rows. Ids 0 .. vocabulary_size - oov_rows - 1 belong
to tokens in the order of the vocabulary; the unknown tokens share the last `oov_rows` ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from embedding_core.errors import ConfigError
from embedding_core.optimizers import AnyOptimizer
from embedding_core.schema import Count, Json, Listed, Mistakes, Name, Number, Positive, Section, Text
from embedding_core.storage import SEAL, sealed_json, unsealed_json

Combiner: TypeAlias = Literal["mean", "sum", "sqrtn"]
InvalidId: TypeAlias = Literal["error", "row", "drop"]
EvolutionMode: TypeAlias = Literal["append", "rerank"]
NonfiniteRows: TypeAlias = Literal["error", "keep"]
TokenDtype: TypeAlias = Literal["string", "int64", "float32"]


class InitializerConfig(Section):
    """Initial values of rows: from a truncated normal or a uniform distribution, or a constant.

    Attributes:
      name: "truncated_normal" (mean 0, stddev `scale`), "uniform" (from -`scale` to `scale`) or "constant" (`scale`).
      scale: width of the distribution, or the constant; null is 1/sqrt(dim), the default of `tf.tpu.experimental`.
    """

    SHORT = "name"

    name: Literal["truncated_normal", "uniform", "constant"] = "truncated_normal"
    scale: Number | None = None


class TableConfig(Section):
    """One embedding table.

    Attributes:
      name: checkpoint key and file name of the table.
      vocabulary_size: number of rows, out-of-vocabulary rows included; >= 1.
      dim: length of a row; >= 1.
      combiner: how the rows of one example become one vector: "mean", "sum" or "sqrtn".
      optimizer: the table's optimizer, or None for the one given to the engine.
      initializer: initializer of the rows.
      vocabulary: name of the vocabulary whose tokens the rows belong to, or None for raw ids.
      oov_rows: number of rows, the last ones, that unknown tokens share; 0 drops unknown tokens.

    Raises:
      ConfigError: a field is invalid.
    """

    name: Name
    vocabulary_size: Positive
    dim: Positive
    combiner: Combiner = "mean"
    optimizer: AnyOptimizer | None = None
    initializer: InitializerConfig = InitializerConfig()
    vocabulary: str | None = None
    oov_rows: Count = 0

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if self.oov_rows > self.vocabulary_size:
            yield "oov_rows", f"is {self.oov_rows}: it must be at most its rows, {self.vocabulary_size}."


class ColumnConfig(Section):
    """Source of a feature's tokens: one column of the examples.

    Attributes:
      name: key of the column in the tf.Example, or in Transform's output with `after_transform`.
      dtype: type of the column's values as found in the data.
      multivalent: whether an example may hold a list of values.
      separator: splits one string into several tokens; None for no splitting.
      after_transform: whether the column is read from Transform's output rather than from the raw example.
      private: whether tokens may appear in reports and lineage only as digests.
    """

    name: str
    dtype: TokenDtype = "string"
    multivalent: bool = False
    separator: Text | None = None
    after_transform: bool = False
    private: bool = False

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        if self.separator is not None and self.dtype != "string":
            yield "separator", f"is {self.separator!r}: only string columns can be split."

    @property
    def many(self) -> bool:
        """Whether one example may give more than one token."""
        return self.multivalent or self.separator is not None

    @property
    def conversion(self) -> Json:
        """The fields that decide which tokens a value becomes: all but those that say where the values come from."""
        apart = {"name", "multivalent", "after_transform", "private"}
        return {key: getattr(self, key) for key in type(self).model_fields if key not in apart}


class FeatureConfig(Section):
    """One categorical feature: tokens of a column, looked up in a table.

    Attributes:
      name: key of the feature in the model's inputs.
      table: name of the feature's table; several features may share a table.
      column: source of its tokens; None if ids are fed directly.
      max_sequence_length: 0 combines the rows of an example; n > 0 keeps the first n, padded with zeros.
      invalid_id: rule for an id outside the table (raw ids only): "error" fails the step, "row" looks up the table's
        last row, "drop" removes the id.

    Raises:
      ConfigError: a field is invalid.
    """

    name: Name
    table: str
    column: ColumnConfig | None = None
    max_sequence_length: Count = 0
    invalid_id: InvalidId = "error"


class EmbeddingConfig(Section):
    """The tables and features of one model, in a fixed order.

    Attributes:
      tables: the tables, with unique names.
      features: the features, with unique names; each is looked up in one of the tables.

    Raises:
      ConfigError: a name is a duplicate, a feature names an unknown table, or a table has no feature.
    """

    tables: Listed[TableConfig]
    features: Listed[FeatureConfig]

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several tables and features."""
        for kind, items in (("table", self.tables), ("feature", self.features)):
            counts = Counter(item.name for item in items)
            for name in sorted(name for name, count in counts.items() if count > 1):
                yield f"{kind}s", f"has a duplicate {kind} {name!r}: names must be unique."
        tables = {table.name for table in self.tables}
        for index, feature in enumerate(self.features):
            if feature.table not in tables:
                rule = f"the table of feature {feature.name!r} must be one of {sorted(tables)}."
                yield f"features.{index}.table", f"is {feature.table!r}: {rule}"
        for name in sorted(tables - {feature.table for feature in self.features}):
            yield "tables", f"has table {name!r}, which has no feature: remove it, or name it in a feature."

    def table(self, name: str) -> TableConfig:
        """Return the table of that name; KeyError if there is none."""
        return {table.name: table for table in self.tables}[name]

    def feature(self, name: str) -> FeatureConfig:
        """Return the feature of that name; KeyError if there is none."""
        return {feature.name: feature for feature in self.features}[name]

    def of_features(self, names: Iterable[str]) -> EmbeddingConfig:
        """Return the configuration of some features and of their tables; KeyError if there is no such feature."""
        kept = tuple(self.feature(name) for name in names)
        used = {feature.table for feature in kept}
        return EmbeddingConfig(tables=tuple(table for table in self.tables if table.name in used), features=kept)

    def table_of(self, feature: str) -> TableConfig:
        """Return the table of the feature of that name; KeyError if there is no such feature."""
        return self.table(self.feature(feature).table)

    def to_sealed_json(self) -> bytes:
        """Return JSON with a digest of its content, to be stored in a file; `from_json` checks the digest."""
        return sealed_json(self.to_mapping())

    @classmethod
    def from_json(cls, text: str | bytes) -> EmbeddingConfig:
        """Read what `to_json` or `to_sealed_json` wrote.

        Raises:
          ConfigError: the text is not a JSON object, a field is invalid, or the digest does not match the content.
        """
        try:
            data = json.loads(text)
            if SEAL in data:
                data = unsealed_json(text)
            return cls.from_mapping(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"this is not an embedding configuration as it was written: {error} Write it again with `to_json`."
            ) from error


# Declares the overrides of a table's defaults: the section `tables` of the YAML file, and what the planner reads.


class TableOverrides(Section):
    """Overrides of a table's defaults, which come from the data; null leaves the default.

    Attributes:
      dim: length of a row.
      combiner: how the rows of one example become one vector.
      optimizer: optimizer of this table: a name, or a mapping with `name` and hyperparameters.
      initializer: initial values of the rows.
    """

    dim: Positive | None = None
    combiner: Combiner | None = None
    optimizer: AnyOptimizer | None = None
    initializer: InitializerConfig | None = None

    def given(self) -> dict[str, Any]:
        """Return what is overridden, by field."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


class TableSettings(TableOverrides):
    """Overrides of the defaults of a table and its vocabulary; None leaves the default.

    Attributes:
      oov_rows: number of rows that unknown tokens share.
      occurrences_per_column: how often an average row must occur in the data for each column of the default dim; the
        default dim is at least 8 in any case.
    """

    oov_rows: Count | None = None
    occurrences_per_column: Positive | None = None

    def to_mapping(self) -> Json:
        """Return what is overridden, by field, as JSON values."""
        given = super().to_mapping()
        keys = ("oov_rows", "occurrences_per_column", *TableOverrides.model_fields)
        return {key: given[key] for key in keys if given[key] is not None}
