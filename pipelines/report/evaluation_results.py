"""Reads the results of the gates: metrics with bounds and outcomes, slices, columns, and what each gate measured."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow_model_analysis as tfma
from ml_metadata import MetadataStore
from tensorflow_metadata.proto.v0 import statistics_pb2

from embedding_core.display import shown_token
from embedding_core.quality_rules import NOTHING_LEFT_OUT
from embedding_core.storage import read_json
from embedding_core.tasks import metric_name
from embedding_core.vocabulary import Vocabulary
from pipelines.config import PipelineConfig
from pipelines.lineage.graph import outputs_of, read_node
from pipelines.pipeline.gates import gates
from pipelines.pipeline.tfma_config import BASELINE, CANDIDATE, bound_words, eval_config, shown_name
from pipelines.report.run_report import Figures, NodeRun

_MET, _MISSED, _UNBOUND = "met", "missed", "no bound"
_COUNT = "ExampleCount"
_Proto: TypeAlias = Any  # TFMA's messages carry no types


def check_rows(*gates: Figures) -> list[Figures]:
    """Return the outcome of each rule of the gates with these figures, in the form of `judged_metrics`."""
    checks = [check for figures in gates for check in figures.get("checks", ())]
    return [_row(check["name"], check["value"], check["bound"], check["met"]) for check in checks]


def judged_metrics(config: PipelineConfig, evaluation_uri: str, quality: Figures) -> list[Figures]:
    """Return `metric`, `value` (None for NaN), `bound` and `outcome` of every metric over all rows; missed ones first.

    If true candidates were left out of the rankings because they were seen, the rows of ranking metrics also have
    `nothing_left_out`, the value with all candidates.

    Args:
      config: the configuration that the Evaluator had.
      evaluation_uri: address of the ModelEvaluation.
      quality: figures of QualityGate.
    """
    missed = {
        shown_name(failure.metric_key)
        for part in tfma.load_validation_result(evaluation_uri).metric_validations_per_slice
        for failure in part.failures
    }
    (whole,) = [metric for metric in tfma.load_metrics(evaluation_uri) if not metric.slice_key.single_slice_keys]
    bounds = _bounds(config, any(entry.key.model_name == BASELINE for entry in whole.metric_keys_and_values))
    values = _values(whole)
    rows = [
        _row(name, value, bounds.get(name, ""), name not in missed)
        for name, value in values.items()
        if NOTHING_LEFT_OUT not in name
    ]
    checks = check_rows(quality)
    checked = {row["metric"] for row in checks}
    rows = [*(row for row in rows if row["bound"] or row["metric"] not in checked), *checks]
    bound = {row["metric"] for row in rows}
    retrieval = quality["retrieval"] or {"metrics": {}}
    rows += [_row(name, value, "", True) for name, value in retrieval["metrics"].items() if name not in bound]
    beside = {**retrieval.get("nothing_left_out", {}), **_with_nothing_left_out(values)}
    rows = [{**row, **_beside(beside, row["metric"])} for row in rows]
    return sorted(rows, key=lambda row: (_MISSED, _MET, _UNBOUND).index(row["outcome"]))


def _with_nothing_left_out(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the values of rankings of all candidates, by the metric's name without the addition."""
    return {name.replace(NOTHING_LEFT_OUT, ""): value for name, value in values.items() if NOTHING_LEFT_OUT in name}


def _beside(values: Mapping[str, float | None], metric: str) -> Figures:
    return {"nothing_left_out": values[metric]} if metric in values else {}


def _row(metric: str, value: float | None, bound: str, met: bool) -> Figures:
    return {
        "metric": metric,
        "value": value,
        "bound": bound,
        "outcome": (_MET if met else _MISSED) if bound else _UNBOUND,
    }


def _bounds(config: PipelineConfig, has_baseline: bool) -> dict[str, str]:
    """Return the configured bounds in words, by metric; leave out the bound that `eval_config` adds for TFMA."""
    specs = eval_config(config, has_baseline=has_baseline).metrics_specs
    return {
        name: words
        for task, spec in zip(config.tasks, specs, strict=True)
        for metric in spec.metrics
        for words in [bound_words(bound.threshold) for bound in metric.per_slice_thresholds]
        for name in [metric_name(config.tasks, task, json.loads(metric.config)["name"])]
        if name in config.evaluation.thresholds
    }


def sliced_metrics(evaluation_uri: str) -> list[Figures]:
    """Return `slice` (its name) and `metrics` of every slice; the slices with the most rows first."""
    rows = [
        {
            "slice": ", ".join(_label(key) for key in metrics.slice_key.single_slice_keys),
            "metrics": _values(metrics),
        }
        for metrics in tfma.load_metrics(evaluation_uri)
        if metrics.slice_key.single_slice_keys
    ]
    return sorted(rows, key=lambda row: (-(row["metrics"].get(_COUNT) or 0), row["slice"]))


def _label(key: _Proto) -> str:
    kind = key.WhichOneof("kind")
    value = getattr(key, kind)
    return f"{key.column} = {shown_token(value, private=False) if isinstance(value, bytes) else value}"


def _values(metrics: _Proto) -> dict[str, float | None]:
    """Return the metrics of the model, and their difference to the baseline model as "<name>, change"."""
    values: dict[str, float | None] = {}
    for entry in metrics.metric_keys_and_values:
        kind = entry.value.WhichOneof("type")
        if entry.key.model_name not in ("", CANDIDATE) or kind not in ("double_value", "bounded_value"):
            continue
        value = getattr(entry.value, kind).value
        value = getattr(value, "value", value)  # a bounded value holds a DoubleValue
        name = shown_name(entry.key)
        values[f"{name}, change" if entry.key.is_diff else name] = None if math.isnan(value) else value
    return values


def gate_figures(store: MetadataStore, runs: Sequence[NodeRun]) -> dict[str, Figures]:
    """Return what each gate of this run wrote beside its blessing, by node."""
    nodes = {run.node for run in runs}
    return {
        gate.node: read_json(os.path.join(output_of(store, runs, gate.node, "ModelBlessing"), gate.file))
        for gate in gates()
        if gate.node in nodes
    }


def output_of(store: MetadataStore, runs: Sequence[NodeRun], name: str, type_name: str) -> str:
    """Return the folder of a node's output of that type in this run."""
    (execution,) = [int(run.execution or 0) for run in runs if run.node == name]
    outputs = {node.type: node.uri for output in outputs_of(store, execution) for node in [read_node(store, output)]}
    return outputs[type_name]


def retrieval_note(quality: Figures) -> str:
    """Say how the rows were chosen, or why retrieval was not measured."""
    retrieval = quality["retrieval"]
    if retrieval is None:
        return f"not measured: {quality['retrieval_note']}"
    user, count, positive = retrieval["user"], f"{retrieval['queries']:,}", f"{retrieval['positive_rows']:,}"
    if user is None:
        chosen = f"a seeded sample of {count} of the {positive}" if retrieval["is_sample"] else f"all {count}"
        queries = f"{chosen} positive rows of the eval split"
    else:
        chosen = f"a seeded sample of {count}" if retrieval["is_sample"] else f"all {count}"
        queries = f"{chosen} values of {user} in the {positive} positive rows of the eval split"
    return (
        f"{queries}, each ranked among all {retrieval['candidates']:,} candidates of {retrieval['feature']}"
        f"{_seen_note(retrieval)}; {retrieval['unknown']:,} true candidates are not among these and count as misses; "
        "equal scores share their ranks; popularity is counted in the positive rows of the train split."
    )


def _seen_note(retrieval: Figures) -> str:
    """Say that seen candidates are left out, and how many of them are true; empty if they are not left out."""
    if not retrieval["exclude_seen"]:
        return ""
    repeats = f"{retrieval['seen_truths']:,} of these are true (repeats) and count as misses"
    return f" but those seen before, which are left out; {repeats}"


def recall_curves(retrieval: Figures | None) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the points of the curves of Recall@k; nothing if retrieval was not measured."""
    return (
        {}
        if retrieval is None
        else {"recall": {name: list(map(tuple, points)) for name, points in retrieval["curves"].items()}}
    )


# Reads the figures of each column: missing values, constants, unknown tokens. It needs no further pass over the data.
#
# The counts are exact. Counts of raw values come from the statistics of the run, counts of tokens from the vocabularies
# (train split) and from QualityGate (eval split).


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
      quality: figures that QualityGate wrote.

    Returns:
      `label` and `rows`; for a binary label also `positives`, `negatives`, `rate`, and `train_rate`, which is None if
      a function computes the label.
    """
    statistics = _statistics(statistics_uri, "train")
    rows: list[Figures] = []
    for name, counts in quality["eval_split"]["labels"].items():
        figures: dict[str, Any] = {"label": name, "rows": counts["rows"]}
        if counts["positives"] is not None:
            feature = statistics.get(str(columns.get(name)))
            figures |= {
                "positives": counts["positives"],
                "negatives": counts["negatives"],
                "rate": counts["positives"] / max(1, counts["rows"]),
                "train_rate": None if feature is None else _rate(feature),
            }
        rows.append(figures)
    return rows


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
      quality: figures that QualityGate wrote.

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
