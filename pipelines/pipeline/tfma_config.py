"""Builds TFMA's EvalConfig from the configuration."""

from __future__ import annotations

import json

import tensorflow_model_analysis as tfma

from embedding_core.tasks import prediction_name
from pipelines.config import Evaluation, PipelineConfig, Threshold

CANDIDATE, BASELINE = "candidate", "baseline"
_COUNT = "ExampleCount"
_OWN_METRICS = "components.evaluator.own_metrics"  # the Evaluator imports it in its own process
_OWN = {"BinaryCrossEntropy": "LogLoss", "RootMeanSquaredError": "RootMeanSquaredError"}
_LOWER_IS_BETTER = ("BinaryCrossEntropy", "MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError")


def eval_config(config: PipelineConfig, *, has_baseline: bool = False) -> tfma.EvalConfig:
    """Return what the Evaluator computes, and what the model must reach to be blessed.

    Thresholds apply to all rows together; slices are shown, but do not affect the blessing. The model is judged by
    its `serving_default` signature, which is what will be served; label and weight come from its `transform_labels`.

    Args:
      config: the configuration.
      has_baseline: whether there is a baseline model to compare with; there is none before the first push. Without
        one, the bounds on the improvement are left out.
    """
    evaluation = config.evaluation
    metrics = [_metric(evaluation, name, has_baseline) for name in config.metrics]
    if not any(metric.per_slice_thresholds for metric in metrics):
        metrics = [*(metric for metric in metrics if metric.class_name != _COUNT), _always_reached()]
    return tfma.EvalConfig(
        model_specs=_model_specs(config, has_baseline),
        slicing_specs=[tfma.SlicingSpec(), *(tfma.SlicingSpec(feature_keys=list(one)) for one in evaluation.slices)],
        metrics_specs=[tfma.MetricsSpec(metrics=metrics)],
    )


def missed_thresholds(evaluation_uri: str) -> list[str]:
    """Return a sentence for each threshold that the model missed; empty if it was blessed."""
    result = tfma.load_validation_result(evaluation_uri)
    return [
        f"{failure.metric_key.name} is {failure.metric_value.double_value.value:.4g}, its threshold asks for "
        f"{bound_words(failure.metric_threshold)}."
        for part in result.metric_validations_per_slice
        for failure in part.failures
    ]


def bound_words(threshold: tfma.MetricThreshold) -> str:
    """Return the bounds of a metric in words, such as "at least 0.8"."""
    value, change = threshold.value_threshold, threshold.change_threshold
    words = [f"at least {value.lower_bound.value:g}"] if value.HasField("lower_bound") else []
    words += [f"at most {value.upper_bound.value:g}"] if value.HasField("upper_bound") else []
    words += (
        [f"a change of {change.absolute.value:g} to the baseline"] if threshold.HasField("change_threshold") else []
    )
    return " and ".join(words)


def _model_specs(config: PipelineConfig, has_baseline: bool) -> list[tfma.ModelSpec]:
    def spec(**fields: object) -> tfma.ModelSpec:
        return tfma.ModelSpec(
            signature_name="serving_default",
            preprocessing_function_names=["transform_labels"],
            label_key=config.task.key,
            prediction_key=prediction_name([config.task], config.task),
            example_weight_key="sample_weight" if config.sample_weight else "",
            **fields,
        )

    # TFMA requires names if there are two models, and no name if there is only one.
    return [spec(name=CANDIDATE), spec(name=BASELINE, is_baseline=True)] if has_baseline else [spec()]


def _metric(evaluation: Evaluation, name: str, has_baseline: bool) -> tfma.MetricConfig:
    threshold = evaluation.thresholds.get(name)
    bounds = None if threshold is None else _threshold(name, threshold, has_baseline)
    if bounds is None or bounds == tfma.MetricThreshold():
        return _named(name)
    return _named(name, per_slice_thresholds=[_over_all_rows(bounds)])


def _named(name: str, **fields: object) -> tfma.MetricConfig:
    """Return the metric under the name that the configuration gives it, which reports and messages then show."""
    module = _OWN_METRICS if name in _OWN else ""
    return tfma.MetricConfig(
        module=module, class_name=_OWN.get(name, name), config=json.dumps({"name": name}), **fields
    )


def _over_all_rows(bounds: tfma.MetricThreshold) -> tfma.PerSliceMetricThreshold:
    """Return the bounds for all rows together; a plain `threshold` would hold for every slice, down to one row."""
    return tfma.PerSliceMetricThreshold(slicing_specs=[tfma.SlicingSpec()], threshold=bounds)


def _always_reached() -> tfma.MetricConfig:
    """Make a bound that every evaluation reaches: TFMA does not bless a model without bounds."""
    bounds = tfma.MetricThreshold()
    bounds.value_threshold.lower_bound.value = 0
    return _named(_COUNT, per_slice_thresholds=[_over_all_rows(bounds)])


def _threshold(name: str, threshold: Threshold, has_baseline: bool) -> tfma.MetricThreshold:
    result = tfma.MetricThreshold()
    if threshold.min is not None:
        result.value_threshold.lower_bound.value = threshold.min
    if threshold.max is not None:
        result.value_threshold.upper_bound.value = threshold.max
    if threshold.min_improvement is not None and has_baseline:
        lower = name in _LOWER_IS_BETTER
        direction = tfma.MetricDirection.LOWER_IS_BETTER if lower else tfma.MetricDirection.HIGHER_IS_BETTER
        result.change_threshold.direction = direction
        # TFMA's change is candidate minus baseline, and must be above the bound, or below it if lower is better.
        result.change_threshold.absolute.value = -threshold.min_improvement if lower else threshold.min_improvement
    return result
