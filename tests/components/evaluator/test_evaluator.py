"""Our Evaluator against TFX's, which runs TFMA: the same files must give the same metrics and blessing."""

import copy
import json
import math

import numpy as np
import pytest

from embedding_core.errors import ConfigError, DataError
from pipelines.pipeline.run_target import IN_PROCESS

pytestmark = pytest.mark.tfx

METRICS = (
    *("AUC", "AUCPrecisionRecall", "BinaryAccuracy", "Calibration", "ExampleCount", "MeanLabel", "MeanPrediction"),
    *("MeanSquaredError", "Precision", "Recall"),
)


def export(folder, slope):
    """Write a model whose probability is a logistic function of the column `x`."""
    import tensorflow as tf

    columns = {name: tf.io.FixedLenFeature([], tf.float32) for name in ("x", "label", "weight")}

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def predict(self, examples):
            x = tf.io.parse_example(examples, columns)["x"]
            return {"probability": tf.sigmoid(slope * x)[:, None]}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def labels(self, examples):
            parsed = tf.io.parse_example(examples, columns)
            return {"label": parsed["label"][:, None], "sample_weight": parsed["weight"][:, None]}

    model = Model()
    signatures = {"serving_default": model.predict, "transform_labels": model.labels}
    tf.saved_model.save(model, str(folder / "Format-Serving"), signatures)


def rows(count):
    """Yield rows with columns to slice by: text, NUL bytes, invalid UTF-8, numbers, lists, missing values."""
    generator = np.random.default_rng(5)
    for row in range(count):
        x = [0.0, 30.0, -30.0, 120.0][row % 40] if row % 40 < 4 else generator.normal()
        yield {
            "x": x,
            "label": float(generator.random() < 1 / (1 + math.exp(-x / 2))),
            "weight": [0.0, 0.5, 1.0, 3.25][row % 4],
            "city": [None, b"b\0", b"\xc3\xa9", b"a", b"c d"][row % 5],
            "bytes": b"\xff",
            "tags": [b"p", b"q", b"p"][: row % 4],
            "hour": row % 3,
            "rare": None if row % 7 else 0.1 if row % 2 else 1.5,
        }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the artifacts of examples, a model and a baseline model by input key."""
    from tfx.types import standard_artifacts

    from tests.support.artifacts import artifact, examples_at, write_split

    folder = tmp_path_factory.mktemp("evaluator")
    write_split(folder / "examples", list(rows(300)), "eval", files=3)
    made = {"examples": [examples_at(folder / "examples")]}
    for number, (key, slope) in enumerate({"model": 0.7, "baseline_model": 0.3}.items()):
        export(folder / key, slope)
        made[key] = [artifact(standard_artifacts.Model, folder / key)]
        made[key][0].id = number + 1
    return made


def config(*, weighted=False, baseline=False, slices=(), bound=0.1, metrics=METRICS):
    from tensorflow_model_analysis.proto import config_pb2

    common = {
        "signature_name": "serving_default",
        "preprocessing_function_names": ["transform_labels"],
        "label_key": "label",
        "prediction_key": "probability",
        "example_weight_key": "sample_weight" if weighted else "",
    }
    specs = [config_pb2.ModelSpec(name="candidate" if baseline else "", **common)]
    specs += [config_pb2.ModelSpec(name="baseline", is_baseline=True, **common)] if baseline else []
    named = [config_pb2.MetricConfig(class_name=name, config=json.dumps({"name": name})) for name in metrics]
    threshold = config_pb2.MetricThreshold(value_threshold={"lower_bound": {"value": bound}})
    if baseline:
        threshold.change_threshold.direction = config_pb2.MetricDirection.HIGHER_IS_BETTER
        threshold.change_threshold.absolute.value = -0.01
    named[0].per_slice_thresholds.add(slicing_specs=[config_pb2.SlicingSpec()], threshold=threshold)
    own = ("AreaUnderPrecisionRecall", "AreaUnderROC", "LogLoss")
    named += [config_pb2.MetricConfig(module="components.evaluator.own_metrics", class_name=name) for name in own]
    return config_pb2.EvalConfig(
        model_specs=specs,
        slicing_specs=[config_pb2.SlicingSpec(feature_keys=list(columns)) for columns in [(), *slices]],
        metrics_specs=[config_pb2.MetricsSpec(metrics=named)],
    )


def evaluate(executor, inputs, eval_config, folder):
    from google.protobuf import json_format
    from tfx.types import standard_artifacts

    from tests.support.artifacts import artifact

    baseline = any(spec.is_baseline for spec in eval_config.model_specs)
    evaluation = artifact(standard_artifacts.ModelEvaluation, folder / "evaluation")
    blessing = artifact(standard_artifacts.ModelBlessing, folder / "blessing")
    given = {key: value for key, value in inputs.items() if baseline or key != "baseline_model"}
    properties = {"eval_config": json_format.MessageToJson(eval_config), "example_splits": '["eval"]'}
    executor.Do(given, {"evaluation": [evaluation], "blessing": [blessing]}, properties)
    return evaluation, blessing


def ours(inputs, eval_config, folder):
    from components.evaluator.executor import Executor

    return evaluate(Executor(), inputs, eval_config, folder)


def theirs(inputs, eval_config, folder):
    from tfx.components.evaluator.executor import Executor
    from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

    return evaluate(Executor(BaseBeamExecutor.Context(beam_pipeline_args=[*IN_PROCESS])), inputs, eval_config, folder)


def figures(evaluation):
    """Return the metrics by slice and metric key, as TFMA loads them."""
    import tensorflow_model_analysis as tfma

    return {
        str(part.slice_key): {
            str(entry.key): getattr(entry.value, entry.value.WhichOneof("type")).value
            for entry in part.metric_keys_and_values
        }
        for part in tfma.load_metrics(evaluation.uri)
    }


SLICES = [("city",), ("hour",), ("tags",), ("rare",), ("city", "hour"), ("absent",)]


@pytest.mark.parametrize("given", [{"slices": SLICES, "weighted": True, "baseline": True, "bound": 0.999}, {}])
def test_figures_and_blessing_are_those_of_tfxs_evaluator(inputs, tmp_path, given):
    import tensorflow_model_analysis as tfma

    settings, refused = config(**given), "bound" in given
    evaluation, our_blessing = ours(inputs, settings, tmp_path / "ours")
    two, their_blessing = theirs(inputs, settings, tmp_path / "theirs")
    found, expected = figures(evaluation), figures(two)
    assert {*found} == {*expected}
    assert len(found) > 20 or not given
    for key, metrics in expected.items():
        assert found[key] == pytest.approx(metrics, abs=1e-6, nan_ok=True), key
    for result in [tfma.load_validation_result(each.uri) for each in (evaluation, two)]:
        assert result.validation_ok is not refused
        assert len(result.metric_validations_per_slice) == refused
    facts, their_facts = (dict(each.mlmd_artifact.custom_properties) for each in (our_blessing, their_blessing))
    assert {key: facts[key].string_value for key in their_facts} == {
        key: value.string_value for key, value in their_facts.items()
    }
    names = [sorted(path.name for path in (tmp_path / each / "blessing").iterdir()) for each in ("ours", "theirs")]
    assert {*names[1]} <= {*names[0]}


def test_tfma_loads_the_whole_result(inputs, tmp_path):
    import tensorflow_model_analysis as tfma

    evaluation, _ = ours(inputs, config(slices=SLICES), tmp_path)
    result = tfma.load_eval_result(evaluation.uri)
    assert len(result.slicing_metrics) == len(figures(evaluation))
    assert result.config.slicing_specs[1].feature_keys == ["city"]
    shown = tfma.view.render_slicing_metrics(result, slicing_column="city").data  # of the notebook's widget
    assert {row["slice"] for row in shown} == {"city:a", "city:b\0", "city:c d", "city:é"}
    assert all({"AUC", "area_under_roc"} <= {*row["metrics"][""][""]} for row in shown)


def test_column_that_is_not_utf8_is_refused(inputs, tmp_path):
    with pytest.raises(DataError, match=r"cannot slice the metrics by \['bytes'\].*slice by another column"):
        ours(inputs, config(slices=[("bytes",)]), tmp_path)


def test_metric_that_only_tfma_computes_is_refused(inputs, tmp_path):
    with pytest.raises(ConfigError, match=r"set `evaluation\.engine` to tfma"):
        ours(inputs, config(metrics=("AUC", "MeanSquaredLogarithmicError")), tmp_path)


def test_model_without_the_label_is_refused(inputs, tmp_path):
    other = config()
    other.model_specs[0].prediction_key = "click_probability"
    with pytest.raises(ConfigError, match=r"^the model in '.*' has no output 'click_probability': it was trained"):
        ours(inputs, other, tmp_path)


def test_prediction_that_is_not_finite_is_named(inputs, tmp_path):
    export(tmp_path, float("inf"))
    model = copy.deepcopy(inputs["model"][0])
    model.uri = str(tmp_path)
    with pytest.raises(DataError, match=r"predicts nan for row \d+ of the eval split"):
        ours({**inputs, "model": [model]}, config(), tmp_path / "out")
