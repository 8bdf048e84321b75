"""Reads the results of the Evaluator and QualityGate: every metric with its bound and outcome, and the slices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow_model_analysis as tfma

from embedding_core.display import shown_token
from embedding_core.quality_rules import NOTHING_LEFT_OUT
from embedding_core.tasks import metric_name
from pipelines.config import PipelineConfig
from pipelines.pipeline.tfma_config import BASELINE, CANDIDATE, bound_words, eval_config, shown_name
from pipelines.report.run_report import Figures

_MET, _MISSED, _UNBOUND = "met", "missed", "no bound"
_COUNT = "ExampleCount"
_Proto: TypeAlias = Any  # TFMA's messages carry no types


def shadow_metrics(shadow: Figures | None) -> list[Figures]:
    """Return the outcome of each rule of Shadow, in the form of `judged_metrics`."""
    checks = [] if shadow is None else shadow.get("checks", [])
    return [_row(check["name"], check["value"], check["bound"], check["met"]) for check in checks]


def label_counts(quality: Figures) -> Mapping[str, Figures]:
    """Return `rows`, `positives` and `negatives` (None for a number) of each label in the eval split, by name."""
    split = quality["eval_split"]
    if "labels" in split:
        labels: Mapping[str, Figures] = split["labels"]
        return labels
    return {"label": split}  # written by a release up to 0.1.0, for its one label


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
    (whole,) = [one for one in tfma.load_metrics(evaluation_uri) if not one.slice_key.single_slice_keys]
    bounds = _bounds(config, any(entry.key.model_name == BASELINE for entry in whole.metric_keys_and_values))
    values = _values(whole)
    rows = [
        _row(name, value, bounds.get(name, ""), name not in missed)
        for name, value in values.items()
        if NOTHING_LEFT_OUT not in name
    ]
    checks = [_row(check["name"], check["value"], check["bound"], check["met"]) for check in quality["checks"]]
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
            "slice": ", ".join(_label(one) for one in metrics.slice_key.single_slice_keys),
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
    return dict(_numbers(metrics))


def _numbers(metrics: _Proto) -> Iterator[tuple[str, float | None]]:
    """Yield the metrics of the model, and their difference to the baseline model as "<name>, change"."""
    for entry in metrics.metric_keys_and_values:
        kind = entry.value.WhichOneof("type")
        if entry.key.model_name not in ("", CANDIDATE) or kind not in ("double_value", "bounded_value"):
            continue
        value = getattr(entry.value, kind).value
        value = getattr(value, "value", value)  # a bounded value holds a DoubleValue
        name = shown_name(entry.key)
        yield f"{name}, change" if entry.key.is_diff else name, None if math.isnan(value) else value
