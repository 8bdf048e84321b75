"""Plans the tables of a model from vocabularies and the user's overrides, without TensorFlow.

Each vocabulary gets one table of the same name, so that features sharing a vocabulary share the table
(unless a feature names another `table`). Defaults, each of which an override can replace:

* rows: one per token of the vocabulary, and 1 for all unknown tokens;
* dim: ``6 * rows ** 0.25`` (Wang et al. 2017, "Deep & Cross Network for Ad Click Predictions", section 4.2),
  rounded up to a multiple of 8 (what a TPU pads rows to), at most 64. If `occurrences_per_column` is set, dim
  is also at most the mean number of occurrences of a row divided by this setting, rounded up to a multiple of 8;
* combiner "mean"; optimizer `DEFAULT_OPTIMIZER`;
* initializer: a truncated normal with stddev 0.05. Training changes the row of a rare token little, so a
  wide initializer adds noise (on the taxi example, the AUC is 0.003 higher with 0.05 than with ``1 / sqrt(dim)``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from embedding_core.config import (
    ColumnConfig,
    EmbeddingConfig,
    FeatureConfig,
    InitializerConfig,
    TableConfig,
    TableSettings,
)
from embedding_core.errors import ConfigError, nearest
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.planning.topology import Topology, memory_plan, table_bytes
from embedding_core.schema import Json
from embedding_core.vocabulary import FeatureSummary, Vocabulary

Settings: TypeAlias = Mapping[str, Any]
"""Settings of one feature, by key."""

ALL_TABLES = "*"
_INITIALIZER = InitializerConfig(scale=0.05)
_FEATURE_KEYS = ("column", "max_sequence_length", "name", "table", "vocabulary")
_PERCENTILES = {"auto": "p95", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "max": "max"}


def default_dim(rows: int, columns: float = math.inf) -> int:
    """Compute the default dimension of a table: ``min(64, 6 * rows ** 0.25, columns)``, rounded up to a multiple of 8.

    Args:
      rows: number of rows.
      columns: largest dimension that the data can train; infinite for no bound.
    """
    most = min(64.0, 6 * math.sqrt(math.sqrt(rows)), columns)
    return 8 * max(1, math.ceil(most / 8))


def plan_tables(
    features: Sequence[Settings],
    vocabulary_sizes: Mapping[str, int],
    *,
    overrides: Mapping[str, TableSettings] | None = None,
    lengths: Mapping[str, Mapping[str, float]] | None = None,
    columns: Mapping[str, ColumnConfig] | None = None,
    occurrences: Mapping[str, int] | None = None,
) -> EmbeddingConfig:
    """Plan the tables and features of a model.

    Args:
      features: per feature an object with `name`, `vocabulary`, `column` (fields of `ColumnConfig`), and
        optionally `table` and `max_sequence_length`: a whole number, or "auto" (the 95th
        percentile of the feature's lengths in the data, at least 1), "p50", "p90", "p95", "p99" or "max".
      vocabulary_sizes: number of tokens of each vocabulary, an int or a numpy integer.
      overrides: settings by table; those of "*" hold for every table that does not override them.
      lengths: measured percentiles of the number of tokens per example, by feature.
      columns: columns as found in the data, by feature; a feature without one gets its configured column.
      occurrences: number of token occurrences in the train split, by vocabulary; without it, `occurrences_per_column`
        has no effect.

    Returns:
      The configuration; its tables are in the order in which the features first use them.

    Raises:
      ConfigError: an unknown key, table or vocabulary (the error names the nearest known one), two vocabularies in
        one table, an empty vocabulary without out-of-vocabulary rows, or an invalid value.
    """
    overrides, lengths, columns, occurrences = overrides or {}, lengths or {}, columns or {}, occurrences or {}
    vocabulary_of_table: dict[str, str] = {}
    planned = []
    for feature in features:
        _check_feature(feature, vocabulary_sizes)
        name, vocabulary = feature["name"], feature["vocabulary"]
        table = feature.get("table") or vocabulary
        if vocabulary_of_table.setdefault(table, vocabulary) != vocabulary:
            raise ConfigError(
                f"table {table!r} is fed from vocabularies {vocabulary_of_table[table]!r} and {vocabulary!r} (feature "
                f"{name!r}): the rows of a table belong to one vocabulary; give the feature another `table`."
            )
        planned.append(_plan_feature(feature, table, lengths.get(name), columns.get(name)))
    for table in overrides:
        _check_known(table, [*vocabulary_of_table, ALL_TABLES], "a table in `tables`", "one of the tables")
    tables = tuple(
        _plan_table(table, vocabulary, vocabulary_sizes[vocabulary], overrides, occurrences.get(vocabulary))
        for table, vocabulary in vocabulary_of_table.items()
    )
    return EmbeddingConfig(tables=tables, features=tuple(planned))


def plan_from_vocabularies(
    features: Sequence[Settings],
    vocabularies: Mapping[str, Vocabulary],
    *,
    overrides: Mapping[str, TableSettings] | None = None,
) -> EmbeddingConfig:
    """Call `plan_tables` with the sizes, lengths and columns that counting measured.

    Raises:
      ConfigError: as in `plan_tables`, or a feature's vocabulary was not counted from that feature.
    """
    summaries: dict[str, FeatureSummary] = {}
    for feature in features:
        _check_feature(feature, vocabularies)
        fed = vocabularies[feature["vocabulary"]].features
        what = f"a feature of vocabulary {feature['vocabulary']!r}"
        _check_known(feature["name"], fed, what, "one that the vocabulary was counted from")
        summaries[feature["name"]] = fed[feature["name"]]
    return plan_tables(
        features,
        {name: len(vocabulary) for name, vocabulary in vocabularies.items()},
        overrides=overrides,
        lengths={name: summary.lengths for name, summary in summaries.items()},
        columns={name: summary.column for name, summary in summaries.items()},
        occurrences={name: vocabulary.total_count for name, vocabulary in vocabularies.items()},
    )


def plan_report(config: EmbeddingConfig, topology: Topology | None = None) -> Json:
    """Return rows and bytes of every table and its slots, their totals, and a topology's memory plan, as JSON."""
    tables: dict[str, Json] = {}
    for table in config.tables:
        values, slots = table_bytes(table)
        tables[table.name] = {
            "rows": table.vocabulary_size,
            "dim": table.dim,
            "vocabulary": table.vocabulary,
            "oov_rows": table.oov_rows,
            "features": [feature.name for feature in config.features if feature.table == table.name],
            "slots": [slot.name for slot in (table.optimizer.slots if table.optimizer else ())],
            "table_bytes": values,
            "slot_bytes": slots,
        }
    total = {key: sum(table[key] for table in tables.values()) for key in ("rows", "table_bytes", "slot_bytes")}
    return {"tables": tables, "total": total, "topology": memory_plan(config, topology) if topology else None}


def _check_known(given: str, known: Collection[str], what: str, rule: str) -> None:
    if given in known:
        return
    raise ConfigError(f"{what} is {given!r}: it must be {rule}; {nearest(given, known)}")


def _check_feature(feature: Settings, vocabularies: Collection[str]) -> None:
    for key in feature:
        _check_known(key, _FEATURE_KEYS, f"a key of feature {feature.get('name')!r}", "one of the known keys")
    for key in ("name", "vocabulary"):
        if not isinstance(feature.get(key), str):
            raise ConfigError(f"`{key}` of feature {dict(feature)!r} is {feature.get(key)!r}: it must be a name.")
    what = f"`vocabulary` of feature {feature['name']!r}"
    _check_known(feature["vocabulary"], vocabularies, what, "one of the vocabularies")


def _plan_feature(
    feature: Settings, table: str, lengths: Mapping[str, float] | None, measured: ColumnConfig | None
) -> FeatureConfig:
    name = feature["name"]
    given: Json = {"name": name, **(feature.get("column") or {})}
    column = ColumnConfig(**given)
    if measured is not None:
        measures = ("dtype", "multivalent")
        declared = [key for key in ColumnConfig.model_fields if key not in measures]
        for key in declared:
            if getattr(measured, key) != getattr(column, key):
                raise ConfigError(
                    f"`{key}` of feature {name!r}'s column is {getattr(column, key)!r}, but its vocabulary was counted "
                    f"with {getattr(measured, key)!r}: give VocabularyGen and TableConfigGen the same features."
                )
        column = measured
    length = feature.get("max_sequence_length") or 0
    if isinstance(length, str):
        length = _measured_length(name, length, lengths or {})
    return FeatureConfig(name=name, table=table, column=column, max_sequence_length=length)


def _measured_length(feature: str, percentile: str, lengths: Mapping[str, float]) -> int:
    what = f"`max_sequence_length` of feature {feature!r}"
    _check_known(percentile, _PERCENTILES, what, "a whole number or one of the percentiles")
    if _PERCENTILES[percentile] not in lengths:
        raise ConfigError(f"{what} is {percentile!r}, but no lengths were measured for it: pass a whole number.")
    return max(1, math.ceil(lengths[_PERCENTILES[percentile]]))


def _plan_table(
    name: str, vocabulary: str, size: int, overrides: Mapping[str, TableSettings], occurrences: int | None
) -> TableConfig:
    chosen: dict[str, Any] = {"oov_rows": 1, "optimizer": DEFAULT_OPTIMIZER, "initializer": _INITIALIZER}
    chosen |= {
        key: value
        for table in (ALL_TABLES, name)
        if table in overrides
        for key, value in overrides[table].given().items()
    }
    rows = operator.index(size) + chosen["oov_rows"]
    if rows == 0:
        raise ConfigError(
            f"vocabulary {vocabulary!r} of table {name!r} is empty and `oov_rows` is 0: the table would have no rows; "
            "lower the vocabulary's `min_count`, or give the table an out-of-vocabulary row."
        )
    needed = chosen.pop("occurrences_per_column", None)
    columns = math.inf if needed is None or occurrences is None else occurrences / rows / needed
    chosen.setdefault("dim", default_dim(rows, columns))
    return TableConfig(name=name, vocabulary_size=rows, vocabulary=vocabulary, **chosen)
