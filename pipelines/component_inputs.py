"""What each component is given, made from the configuration: plain values that JSON holds. No TensorFlow here."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.config import PipelineConfig, VocabularyLimits

_DEFAULT_LIMITS = VocabularyLimits()
__all__ = ["table_overrides", "transform_columns", "transform_config", "vocabulary_features", "vocabulary_limits"]


def vocabulary_features(config: PipelineConfig) -> list[dict[str, Any]]:
    """`features` of VocabularyGen and TableConfigGen: name, column, vocabulary, table, max_sequence_length of each."""
    return [
        {
            "name": feature.name,
            "column": {
                "name": feature.source,
                "multivalent": feature.multivalent,
                "separator": feature.separator,
                "after_transform": feature.after_transform,
                "private": feature.private,
            },
            "vocabulary": feature.vocabulary_name,
            "table": feature.table_name,
            "max_sequence_length": feature.max_sequence_length,
        }
        for feature in config.features.categorical
    ]


def vocabulary_limits(config: PipelineConfig) -> dict[str, dict[str, Any]]:
    """`vocabularies` of VocabularyGen: min_count and max_size of every vocabulary in use.

    Without the out-of-vocabulary rows, which are the tables' affair: to change them counts nothing anew.
    """
    names = dict.fromkeys(feature.vocabulary_name for feature in config.features.categorical)
    limits = {name: dataclasses.asdict(config.vocabularies.get(name, _DEFAULT_LIMITS)) for name in names}
    return {name: {key: limit[key] for key in ("min_count", "max_size")} for name, limit in limits.items()}


def table_overrides(config: PipelineConfig) -> dict[str, dict[str, Any]]:
    """`tables` of TableConfigGen: oov_rows of every table in use, and what the configuration overrides."""
    tables = {}
    for feature in config.features.categorical:
        limits = config.vocabularies.get(feature.vocabulary_name, _DEFAULT_LIMITS)
        table = config.tables.get(feature.table_name)
        said = dataclasses.asdict(table) if table else {}
        tables[feature.table_name] = {
            "oov_rows": limits.oov_rows,
            **{key: value for key, value in said.items() if value is not None},
        }
    return tables


def transform_config(config: PipelineConfig) -> dict[str, Any]:
    """`custom_config` of Transform: dense features, the label's column and key, the sample weight's column."""
    return {
        "dense": [
            {"name": feature.name, "column": feature.source, "log1p": feature.log1p}
            for feature in config.features.dense
        ],
        "label_column": config.label.column,
        "label_key": config.label.transformed,
        "sample_weight_column": config.sample_weight,
    }


def transform_columns(config: PipelineConfig) -> tuple[str, ...] | None:
    """The raw columns that Transform reads, sorted; None where a function of the user's decides."""
    if config.preprocessing_fn is not None:
        return None
    columns = {feature.source for feature in config.features.dense} | {config.label.column, config.sample_weight}
    return tuple(sorted(column for column in columns if column is not None))
