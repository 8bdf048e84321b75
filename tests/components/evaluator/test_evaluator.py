"""Our Evaluator against TFX's, which runs TFMA: the same files must give the same metrics and blessing."""

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


def write_rows(folder, rows, files):
    """Write rows with columns to slice by: text, NUL bytes, invalid UTF-8, numbers, lists, missing values."""
    import tensorflow as tf

    generator = np.random.default_rng(5)
    for file in range(files):
        with tf.io.TFRecordWriter(str(folder / f"data_tfrecord-{file:05d}-of-{files:05d}.gz"), "GZIP") as writer:
            for row in range(file, rows, files):
                example = tf.train.Example()
                feature = example.features.feature
                x = [0.0, 30.0, -30.0, 120.0][row % 40] if row % 40 < 4 else generator.normal()
                feature["x"].float_list.value.append(x)
                feature["label"].float_list.value.append(float(generator.random() < 1 / (1 + math.exp(-x / 2))))
                feature["weight"].float_list.value.append([0.0, 0.5, 1.0, 3.25][row % 4])
                if row % 5:
                    feature["city"].bytes_list.value.append([b"", b"b\0", b"\xc3\xa9", b"a", b"c d"][row % 5])
                feature["bytes"].bytes_list.value.append(b"\xff")
                feature["tags"].bytes_list.value.extend([b"p", b"q", b"p"][: row % 4])
                feature["hour"].int64_list.value.append(row % 3)
                if row % 7 == 0:
                    feature["rare"].float_list.value.append(0.1 if row % 2 else 1.5)
                writer.write(example.SerializeToString())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the artifacts of examples, a model and a baseline model by input key."""
    from tfx.components.util import examples_utils
    from tfx.proto import example_gen_pb2
    from tfx.types import standard_artifacts

    folder = tmp_path_factory.mktemp("evaluator")
    examples = standard_artifacts.Examples()
    examples.uri = str(folder / "examples")
    examples.split_names = '["train", "eval"]'
    (folder / "examples" / "Split-eval").mkdir(parents=True)
    write_rows(folder / "examples" / "Split-eval", 900, 3)
    examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
    examples_utils.set_file_format(examples, "tfrecords_gzip")
    models = []
    for name, slope in (("model", 0.7), ("baseline", 0.3)):
        export(folder / name, slope)
        models.append(standard_artifacts.Model())
        models[-1].uri = str(folder / name)
        models[-1].id = len(models)
    return {"examples": [examples], "model": models[:1], "baseline_model": models[1:]}


def config(*, weighted=False, baseline=False, slices=(), bound=0.1, metrics=METRICS):
    from tensorflow_model_analysis.proto.config_pb2 import (
        EvalConfig,
        MetricConfig,
        MetricDirection,
        MetricsSpec,
        MetricThreshold,
        ModelSpec,
        SlicingSpec,
    )

    common = {
        "signature_name": "serving_default",
        "preprocessing_function_names": ["transform_labels"],
        "label_key": "label",
        "prediction_key": "probability",
        "example_weight_key": "sample_weight" if weighted else "",
    }
    specs = [ModelSpec(name="candidate" if baseline else "", **common)]
    specs += [ModelSpec(name="baseline", is_baseline=True, **common)] if baseline else []
    named = [MetricConfig(class_name=name, config=json.dumps({"name": name})) for name in metrics]
    threshold = MetricThreshold(value_threshold={"lower_bound": {"value": bound}})
    if baseline:
        threshold.change_threshold.direction = MetricDirection.HIGHER_IS_BETTER
        threshold.change_threshold.absolute.value = -0.01
    named[0].per_slice_thresholds.add(slicing_specs=[SlicingSpec()], threshold=threshold)
    own = ("AreaUnderPrecisionRecall", "AreaUnderROC", "LogLoss")
    named += [MetricConfig(module="components.evaluator.own_metrics", class_name=name) for name in own]
    sliced = [SlicingSpec(), *(SlicingSpec(feature_keys=list(one)) for one in slices)]
    return EvalConfig(model_specs=specs, slicing_specs=sliced, metrics_specs=[MetricsSpec(metrics=named)])


def evaluate(executor, inputs, eval_config, folder):
    from google.protobuf import json_format
    from tfx.types import standard_artifacts

    baseline = any(spec.is_baseline for spec in eval_config.model_specs)
    evaluation, blessing = standard_artifacts.ModelEvaluation(), standard_artifacts.ModelBlessing()
    for name, artifact in (("evaluation", evaluation), ("blessing", blessing)):
        (folder / name).mkdir(parents=True)
        artifact.uri = str(folder / name)
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


@pytest.mark.parametrize(
    "given", [{"slices": SLICES}, {"slices": SLICES[:3], "weighted": True, "baseline": True}, {"bound": 0.999}]
)
def test_figures_and_blessing_are_those_of_tfxs_evaluator(inputs, tmp_path, given):
    import tensorflow_model_analysis as tfma

    one, our_blessing = ours(inputs, config(**given), tmp_path / "ours")
    two, their_blessing = theirs(inputs, config(**given), tmp_path / "theirs")
    found, expected = figures(one), figures(two)
    assert {*found} == {*expected}
    assert len(found) > 1 or not given.get("slices")
    for key, metrics in expected.items():
        assert found[key] == pytest.approx(metrics, abs=1e-6, nan_ok=True), key
    results = [tfma.load_validation_result(each.uri) for each in (one, two)]
    assert [result.validation_ok for result in results] == [given.get("bound") is None] * 2
    assert [len(result.metric_validations_per_slice) for result in results] == [int(bool(given.get("bound")))] * 2
    facts = [
        {key: value.string_value for key, value in each.mlmd_artifact.custom_properties.items()}
        for each in (our_blessing, their_blessing)
    ]
    assert {key: facts[0][key] for key in facts[1]} == facts[1]
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
    model = type(inputs["model"][0])()
    model.uri = str(tmp_path)
    with pytest.raises(DataError, match=r"predicts nan for row \d+ of the eval split"):
        ours({**inputs, "model": [model]}, config(), tmp_path / "out")
