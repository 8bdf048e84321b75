"""Builds TFMA's EvalConfig from the configuration."""

from __future__ import annotations

import json
from typing import Any

import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto.config_pb2 import (
    EvalConfig,
    MetricConfig,
    MetricDirection,
    MetricsSpec,
    MetricThreshold,
    ModelSpec,
    PerSliceMetricThreshold,
    SlicingSpec,
)

from embedding_core.quality_rules import ranking_metric
from embedding_core.tasks import Task, metric_name, prediction_name
from pipelines.config import PipelineConfig, Threshold
from pipelines.config.metrics import direction_of

CANDIDATE, BASELINE = "candidate", "baseline"
_COUNT = "ExampleCount"
_OWN_METRICS = "components.evaluator.own_metrics"  # the Evaluator imports it in its own process
_OWN = {
    "AUC": "AreaUnderROC",
    "AUCPrecisionRecall": "AreaUnderPrecisionRecall",
    "BinaryCrossEntropy": "LogLoss",
    "CategoricalAccuracy": "ClassAccuracy",
    "CategoricalCrossEntropy": "ClassLogLoss",
    "GroupAUC": "GroupAUC",
    "RootMeanSquaredError": "RootMeanSquaredError",
    "Top5CategoricalAccuracy": "ClassTop5Accuracy",
}
_RANKING = "Ranking"


def eval_config(config: PipelineConfig, *, has_baseline: bool = False) -> EvalConfig:
    """Return what the Evaluator computes, and what the model must reach to be blessed.

    Thresholds apply to all rows together; slices are shown, but do not affect the blessing. The model is judged by
    its `serving_default` signature, which is what will be served; label and weight come from its `transform_labels`.

    Args:
      config: the configuration.
      has_baseline: whether there is a baseline model to compare with; there is none before the first push. Without
        one, the bounds on the improvement are left out.
    """
    evaluation = config.evaluation
    specs = [_metrics_spec(config, task, has_baseline) for task in config.tasks]
    if not any(metric.per_slice_thresholds for spec in specs for metric in spec.metrics):
        first = [metric for metric in specs[0].metrics if metric.class_name != _COUNT]
        specs[0] = MetricsSpec(metrics=[*first, _always_reached()], output_names=specs[0].output_names)
    return EvalConfig(
        model_specs=_model_specs(config, has_baseline),
        slicing_specs=[
            SlicingSpec(),
            *(SlicingSpec(feature_keys=list(slice_)) for slice_ in evaluation.slices),
        ],
        metrics_specs=specs,
    )


def _metrics_spec(config: PipelineConfig, task: Task, has_baseline: bool) -> MetricsSpec:
    """Return the metrics of a task; if there are several tasks, TFMA's output has the task's name."""
    metrics = []
    for name in config.evaluation.metrics_of(task):
        threshold = config.evaluation.thresholds.get(metric_name(config.tasks, task, name))
        bounds = None if threshold is None else _threshold(name, threshold, has_baseline)
        has_bounds = bounds is not None and bounds != MetricThreshold()
        metrics.append(_named(name, per_slice_thresholds=[_over_all_rows(bounds)] if has_bounds else []))
    return MetricsSpec(metrics=metrics, output_names=[task.name] if len(config.tasks) > 1 else [])


def shown_name(key: Any) -> str:
    """Return the name of a metric as the configuration has it, from TFMA's key: "AUC", or "click/AUC"."""
    return f"{key.output_name}/{key.name}" if key.output_name else str(key.name)


def missed_thresholds(evaluation_uri: str) -> list[str]:
    """Return a sentence for each threshold that the model missed; empty if it was blessed."""
    result = tfma.load_validation_result(evaluation_uri)
    return [
        f"{shown_name(failure.metric_key)} is {failure.metric_value.double_value.value:.4g}, its threshold asks for "
        f"{bound_words(failure.metric_threshold)}."
        for part in result.metric_validations_per_slice
        for failure in part.failures
    ]


def bound_words(threshold: MetricThreshold) -> str:
    """Return the bounds of a metric in words, such as "at least 0.8"."""
    value, change = threshold.value_threshold, threshold.change_threshold
    words = [f"at least {value.lower_bound.value:g}"] if value.HasField("lower_bound") else []
    words += [f"at most {value.upper_bound.value:g}"] if value.HasField("upper_bound") else []
    words += (
        [f"a change of {change.absolute.value:g} to the baseline"] if threshold.HasField("change_threshold") else []
    )
    return " and ".join(words)


def _model_specs(config: PipelineConfig, has_baseline: bool) -> list[ModelSpec]:
    tasks = config.tasks
    if len(tasks) == 1:
        keys: dict[str, object] = {"label_key": tasks[0].key, "prediction_key": prediction_name(tasks, tasks[0])}
    else:
        keys = {
            "label_keys": {task.name: str(task.key) for task in tasks},
            "prediction_keys": {task.name: prediction_name(tasks, task) for task in tasks},
        }

    def spec(**fields: object) -> ModelSpec:
        return ModelSpec(
            signature_name="serving_default",
            preprocessing_function_names=["transform_labels"],
            **keys,
            example_weight_key="sample_weight" if config.sample_weight else "",
            **fields,
        )

    # TFMA requires names if there are two models, and no name if there is only one.
    return [spec(name=CANDIDATE), spec(name=BASELINE, is_baseline=True)] if has_baseline else [spec()]


def _named(name: str, **fields: object) -> MetricConfig:
    """Return the metric under the name that the configuration gives it, which reports and messages then show."""
    of_ours = _RANKING if ranking_metric(name) is not None else _OWN.get(name)
    return MetricConfig(
        module=_OWN_METRICS if of_ours else "", class_name=of_ours or name, config=json.dumps({"name": name}), **fields
    )


def _over_all_rows(bounds: MetricThreshold) -> PerSliceMetricThreshold:
    """Return the bounds for all rows together; a plain `threshold` would also apply to every slice, even of one row."""
    return PerSliceMetricThreshold(slicing_specs=[SlicingSpec()], threshold=bounds)


def _always_reached() -> MetricConfig:
    """Make a bound that every evaluation reaches: TFMA does not bless a model without bounds."""
    bounds = MetricThreshold()
    bounds.value_threshold.lower_bound.value = 0
    return _named(_COUNT, per_slice_thresholds=[_over_all_rows(bounds)])


def _threshold(name: str, threshold: Threshold, has_baseline: bool) -> MetricThreshold:
    result = MetricThreshold()
    if threshold.min is not None:
        result.value_threshold.lower_bound.value = threshold.min
    if threshold.max is not None:
        result.value_threshold.upper_bound.value = threshold.max
    if threshold.min_improvement is not None and has_baseline:
        lower = direction_of(name) < 0
        direction = MetricDirection.LOWER_IS_BETTER if lower else MetricDirection.HIGHER_IS_BETTER
        result.change_threshold.direction = direction
        # TFMA's change is candidate minus baseline, and must be above the bound, or below it if lower is better.
        result.change_threshold.absolute.value = -threshold.min_improvement if lower else threshold.min_improvement
    return result
