"""Reads the figures of each column: missing values, constants, unknown tokens. It needs no further pass over the data.

The counts are exact. Counts of raw values come from the statistics of the run, counts of tokens from the vocabularies
(train split) and from QualityGate (eval split).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from tensorflow_metadata.proto.v0 import statistics_pb2

from embedding_core.vocabulary import Vocabulary
from pipelines.report.evaluation_results import label_counts
from pipelines.report.run_report import Figures


def column_figures(statistics_uri: str) -> list[Figures]:
    """Return for each raw column `column`, `missing` (share of the rows by split) and `constant` (in the train split).

    Args:
      statistics_uri: address of the ExampleStatistics artifact.
    """
    splits = {split: _statistics(statistics_uri, split) for split in ("train", "eval")}
    return [
        {
            "column": name,
            "missing": {split: _missing(features[name]) for split, features in splits.items() if name in features},
            "constant": _is_constant(feature),
        }
        for name, feature in splits["train"].items()
    ]


def label_figures(statistics_uri: str, columns: Mapping[str, str | None], quality: Figures) -> list[Figures]:
    """Return for each label its rows in the eval split, and if it is binary the share of label 1 in both splits.

    Args:
      statistics_uri: address of the ExampleStatistics artifact.
      columns: by the name of each label, the column that holds it as a number; None if a function computes it.
      quality: figures that `read_quality` returned.

    Returns:
      `label` and `rows`; for a binary label also `positives`, `negatives`, `rate`, and `train_rate`, which is None if
      a function computes the label.
    """
    statistics = _statistics(statistics_uri, "train")
    found: list[Figures] = []
    for name, counts in label_counts(quality).items():
        figures: dict[str, Any] = {"label": name, "rows": counts["rows"]}
        if counts["positives"] is not None:
            feature = statistics.get(str(columns.get(name)))
            figures |= {
                "positives": counts["positives"],
                "negatives": counts["negatives"],
                "rate": counts["positives"] / max(1, counts["rows"]),
                "train_rate": None if feature is None else _rate(feature),
            }
        found.append(figures)
    return found


def _rate(feature: statistics_pb2.FeatureNameStatistics) -> float | None:
    """Return the mean of a column of numbers from 0 to 1; None for any other column."""
    numbers = feature.num_stats if feature.HasField("num_stats") else None
    return float(numbers.mean) if numbers is not None and 0 <= numbers.min <= numbers.max <= 1 else None


def _statistics(uri: str, split: str) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    with open(os.path.join(uri, f"Split-{split}", "FeatureStats.pb"), "rb") as file:
        statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(file.read())
    return {".".join(feature.path.step) or feature.name: feature for feature in statistics.datasets[0].features}


def _missing(feature: statistics_pb2.FeatureNameStatistics) -> float:
    common = _common(feature)
    return float(common.num_missing / max(1, common.num_missing + common.num_non_missing))


def _common(feature: statistics_pb2.FeatureNameStatistics) -> statistics_pb2.CommonStatistics:
    return (feature.string_stats if feature.HasField("string_stats") else feature.num_stats).common_stats


def _is_constant(feature: statistics_pb2.FeatureNameStatistics) -> bool:
    """Whether all values that are not missing are equal."""
    if not _common(feature).num_non_missing:
        return True
    if feature.HasField("string_stats"):
        return bool(feature.string_stats.unique == 1)
    return bool(feature.num_stats.min == feature.num_stats.max)


def feature_figures(vocabularies: Iterable[Vocabulary], quality: Figures) -> list[Figures]:
    """Return for each categorical feature the shares of rows without a token and of unknown tokens, in both splits.

    Args:
      vocabularies: vocabularies of the run; counted over the train split.
      quality: figures that `read_quality` returned.

    Returns:
      `feature`, `vocabulary`, `empty_train`, `empty_eval`, `unknown_train` (of the vocabulary, all its features
      together), `unknown_eval` and `unknown_rows_eval`; the largest `unknown_eval` first.
    """
    held_out = quality["eval_split"]
    rows = [
        {
            "feature": name,
            "vocabulary": vocabulary.name,
            "empty_train": summary.missing / max(1, summary.rows),
            "empty_eval": held_out["features"][name]["empty_rows"] / max(1, held_out["rows"]),
            "unknown_train": 1 - vocabulary.coverage,
            "unknown_eval": held_out["features"][name]["unknown_tokens"] / max(1, held_out["features"][name]["tokens"]),
            "unknown_rows_eval": held_out["features"][name]["unknown_rows"] / max(1, held_out["rows"]),
        }
        for vocabulary in vocabularies
        for name, summary in vocabulary.features.items()
        if name in held_out["features"]
    ]
    return sorted(rows, key=lambda row: -row["unknown_eval"])
