"""What the tables and features of one model are: frozen, keyword-only, JSON round trip, no TensorFlow.

Rows are counted as TensorFlow counts them: `vocabulary_size` of a table is its number of rows,
the out-of-vocabulary rows included. Ids 0 .. vocabulary_size - oov_rows - 1 belong to tokens in the
order of the vocabulary; the last `oov_rows` ids are shared by the unknown tokens.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

from embedding_core.errors import ConfigError
from embedding_core.optimizers import Optimizer, optimizer_from_json, optimizer_to_json
from embedding_core.storage import SEAL, sealed_json, unsealed_json

__all__ = [
    "RETRIEVAL_METRICS",
    "ChangedDim",
    "ChangedOptimizer",
    "ColumnConfig",
    "Combiner",
    "DenseChoice",
    "DenseOptimizerChoice",
    "EmbeddingConfig",
    "EvolutionMode",
    "FeatureConfig",
    "InitializerConfig",
    "InvalidId",
    "NewRows",
    "NewTables",
    "NonfiniteRows",
    "RangesChoice",
    "RetrievalMetric",
    "TableConfig",
    "TokenDtype",
]

Combiner: TypeAlias = Literal["mean", "sum", "sqrtn"]
InvalidId: TypeAlias = Literal["error", "row", "drop"]
EvolutionMode: TypeAlias = Literal["append", "rerank"]
NewRows: TypeAlias = Literal["initializer", "oov"]
NewTables: TypeAlias = Literal["error", "initialize"]
ChangedDim: TypeAlias = Literal["error", "reset", "resize"]
ChangedOptimizer: TypeAlias = Literal["error", "reset", "convert"]
DenseChoice: TypeAlias = Literal["restore", "require", "reset"]
DenseOptimizerChoice: TypeAlias = Literal["restore", "reset"]
RangesChoice: TypeAlias = Literal["keep", "recompute"]
NonfiniteRows: TypeAlias = Literal["error", "keep"]
TokenDtype: TypeAlias = Literal["string", "int64", "float32"]
RetrievalMetric: TypeAlias = Literal["Recall@10", "Recall@50"]
RETRIEVAL_METRICS: tuple[RetrievalMetric, ...] = get_args(RetrievalMetric)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")


def check_name(owner: str, name: object) -> None:
    """Refuse a name that is no safe file name or checkpoint key.

    Raises:
      ConfigError: the name holds anything but letters, digits, `_`, `.` and `-`, or starts with a dot.
    """
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > 200:
        raise ConfigError(
            f"name of {owner} is {name!r}: it must be letters, digits, `_`, `.` or `-`, not start with a dot or dash, "
            "and have at most 200 characters."
        )


def _check_choice(owner: str, field: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"`{field}` of {owner} is {value!r}: it must be one of {', '.join(allowed)}.")


def _whole(owner: str, field: str, value: object, minimum: int) -> int:
    """The value as a Python int; numpy integers, as sizes computed from data are, count as whole numbers."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(cast(Any, value))
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise ConfigError(f"`{field}` of {owner} is {value!r}: it must be a whole number >= {minimum}.")
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitializerConfig:
    """How rows start: a truncated normal, a uniform, or a constant.

    Attributes:
      name: "truncated_normal" (mean 0, stddev `scale`), "uniform" (-scale, scale) or "constant" (scale).
      scale: the width, or the constant; None is 1/sqrt(dim), as upstream's default.
    """

    name: Literal["truncated_normal", "uniform", "constant"] = "truncated_normal"
    scale: float | None = None

    def __post_init__(self) -> None:
        _check_choice("an initializer", "name", self.name, ("truncated_normal", "uniform", "constant"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig:
    """One embedding table.

    Attributes:
      name: checkpoint key and file name of the table.
      vocabulary_size: number of rows, out-of-vocabulary rows included; >= 1.
      dim: length of a row; >= 1.
      combiner: how the rows of one example become one vector: "mean", "sum" or "sqrtn".
      optimizer: the table's optimizer, or None for the one given to the engine.
      initializer: how rows start.
      vocabulary: name of the vocabulary whose tokens the rows belong to, or None for raw ids.
      oov_rows: how many of the rows, the last ones, are shared by unknown tokens; 0 drops unknown tokens.

    Raises:
      ConfigError: a field breaks its rule.
    """

    name: str
    vocabulary_size: int
    dim: int
    combiner: Combiner = "mean"
    optimizer: Optimizer | None = None
    initializer: InitializerConfig = InitializerConfig()
    vocabulary: str | None = None
    oov_rows: int = 0

    def __post_init__(self) -> None:
        check_name("a table", self.name)
        owner = f"table {self.name!r}"
        for field, minimum in (("vocabulary_size", 1), ("dim", 1), ("oov_rows", 0)):
            object.__setattr__(self, field, _whole(owner, field, getattr(self, field), minimum))
        _check_choice(owner, "combiner", self.combiner, get_args(Combiner))
        if self.oov_rows > self.vocabulary_size:
            raise ConfigError(
                f"`oov_rows` of {owner} is {self.oov_rows}: it must be at most its rows, {self.vocabulary_size}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnConfig:
    """Where a feature's tokens come from: one column of the examples.

    Attributes:
      name: key of the column in the tf.Example, or in Transform's output with `after_transform`.
      dtype: type of the column's values as found in the data.
      multivalent: whether an example may hold several values (a list), or one value with a `separator`.
      separator: splits one string into several tokens; None for no splitting.
      after_transform: whether the column is read from Transform's output rather than from the raw example.
      private: whether tokens may appear in reports and lineage only as digests.
    """

    name: str
    dtype: TokenDtype = "string"
    multivalent: bool = False
    separator: str | None = None
    after_transform: bool = False
    private: bool = False

    def __post_init__(self) -> None:
        owner = f"column {self.name!r}"
        _check_choice(owner, "dtype", self.dtype, get_args(TokenDtype))
        if self.separator == "":
            raise ConfigError(f"`separator` of {owner} is '': it must be at least one character, or null for none.")
        if self.separator is not None and self.dtype != "string":
            raise ConfigError(f"`separator` of {owner} is {self.separator!r}: only string columns can be split.")

    @property
    def many(self) -> bool:
        """Whether one example may give more than one token."""
        return self.multivalent or self.separator is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """One categorical feature: tokens of a column, looked up in a table.

    Attributes:
      name: key of the feature in the model's inputs.
      table: name of the table it is looked up in; several features may share one.
      column: where its tokens come from; None where ids are fed directly.
      max_sequence_length: 0 combines the rows of an example; n > 0 keeps the first n, padded with zeros.
      invalid_id: what becomes of an id outside the table (raw ids only): "error", "row" or "drop".

    Raises:
      ConfigError: a field breaks its rule.
    """

    name: str
    table: str
    column: ColumnConfig | None = None
    max_sequence_length: int = 0
    invalid_id: InvalidId = "error"

    def __post_init__(self) -> None:
        check_name("a feature", self.name)
        owner = f"feature {self.name!r}"
        object.__setattr__(
            self, "max_sequence_length", _whole(owner, "max_sequence_length", self.max_sequence_length, 0)
        )
        _check_choice(owner, "invalid_id", self.invalid_id, get_args(InvalidId))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """The tables and features of one model, in a fixed order.

    Attributes:
      tables: every table once, by unique name.
      features: every feature once, by unique name, each in one of the tables.

    Raises:
      ConfigError: a name stands twice, a feature names no table, or a table has no feature.
    """

    tables: tuple[TableConfig, ...]
    features: tuple[FeatureConfig, ...]

    def __post_init__(self) -> None:
        for kind, items in (("table", self.tables), ("feature", self.features)):
            names = [item.name for item in items]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"{kind} {twice[0]!r} stands {names.count(twice[0])} times: names must be unique.")
        tables = {table.name for table in self.tables}
        for feature in self.features:
            if feature.table not in tables:
                raise ConfigError(
                    f"`table` of feature {feature.name!r} is {feature.table!r}: it must be one of {sorted(tables)}."
                )
        unused = sorted(tables - {feature.table for feature in self.features})
        if unused:
            raise ConfigError(f"table {unused[0]!r} has no feature: remove it, or name it in a feature.")

    def table(self, name: str) -> TableConfig:
        """The table of that name; KeyError where there is none."""
        return {table.name: table for table in self.tables}[name]

    def feature(self, name: str) -> FeatureConfig:
        """The feature of that name; KeyError where there is none."""
        return {feature.name: feature for feature in self.features}[name]

    def table_of(self, feature: str) -> TableConfig:
        """The table that the feature of that name is looked up in."""
        return self.table(self.feature(feature).table)

    def to_json(self) -> str:
        """The configuration as JSON that a person can read and diff; `from_json` gives an equal object."""
        tables = []
        for table in self.tables:
            fields = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
            fields["initializer"] = dataclasses.asdict(table.initializer)
            fields["optimizer"] = None if table.optimizer is None else optimizer_to_json(table.optimizer)
            tables.append(fields)
        features = [dataclasses.asdict(feature) for feature in self.features]
        return json.dumps({"tables": tables, "features": features}, indent=2)

    def to_sealed_json(self) -> bytes:
        """`to_json` with a digest of itself, for a file; `from_json` reads it, and refuses it if it is damaged."""
        return sealed_json(json.loads(self.to_json()))

    @classmethod
    def from_json(cls, text: str | bytes) -> EmbeddingConfig:
        """Read what `to_json` or `to_sealed_json` wrote.

        Raises:
          ConfigError: not such JSON, a field breaks its rule, or the content is not the one that was sealed.
        """
        try:
            data = json.loads(text)
            if SEAL in data:
                data = unsealed_json(text)
            unknown = sorted(data.keys() - {"tables", "features"})
            if unknown:
                raise ValueError(f"unknown key {unknown[0]!r}")
            return cls(
                tables=tuple(_table_from_json(table) for table in data["tables"]),
                features=tuple(_feature_from_json(feature) for feature in data["features"]),
            )
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"this is not an embedding configuration as it was written: {error!r}; write it again with `to_json`."
            ) from error


def _table_from_json(data: Mapping[str, Any]) -> TableConfig:
    optimizer = data.get("optimizer")
    nested = {
        "optimizer": None if optimizer is None else optimizer_from_json(optimizer),
        "initializer": InitializerConfig(**data.get("initializer", {})),
    }
    return TableConfig(**{**data, **nested})


def _feature_from_json(data: Mapping[str, Any]) -> FeatureConfig:
    column = data.get("column")
    return FeatureConfig(**{**data, "column": None if column is None else ColumnConfig(**column)})
