import os

import pandas
import pytest
from sklearn.metrics import log_loss

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
tfma = pytest.importorskip("tensorflow_model_analysis")

from tensorflow_model_analysis.proto.config_pb2 import MetricDirection  # noqa: E402

from pipelines.config import config_from_mapping  # noqa: E402
from pipelines.config.metrics import METRICS  # noqa: E402
from pipelines.pipeline.tfma_config import eval_config  # noqa: E402

pytestmark = pytest.mark.tfx


@pytest.fixture
def config(tmp_path):
    (tmp_path / "rows.csv").write_text("")

    def make(**evaluation):
        values = {"data": "rows.csv", "label": "y", "features": {"categorical": ["item"]}, "sample_weight": "w"}
        return config_from_mapping({**values, "evaluation": evaluation}, tmp_path)

    return make


def test_eval_config_names_label_weight_and_signatures(config):
    made = eval_config(config())
    (spec,) = made.model_specs
    assert (spec.label_key, spec.example_weight_key, spec.prediction_key) == ("label", "sample_weight", "probability")
    assert spec.signature_name == "serving_default"
    assert list(spec.preprocessing_function_names) == ["transform_labels"]


def test_every_metric_is_known_to_tfma():
    own = [name for name in METRICS if not hasattr(tfma.metrics, name)]
    assert own == ["CategoricalAccuracy", "GroupAUC", "RootMeanSquaredError", "Top5CategoricalAccuracy"]


def test_slices_start_with_the_whole(config):
    made = eval_config(config(slices=["item", ["item", "shop"]]))
    assert [list(slicing_spec.feature_keys) for slicing_spec in made.slicing_specs] == [[], ["item"], ["item", "shop"]]


def test_thresholds_bound_the_metric_and_its_change(config):
    chosen = config(
        metrics=["AUC", "BinaryCrossEntropy"],
        thresholds={"AUC": {"min": 0.8}, "BinaryCrossEntropy": {"min_improvement": 0.01}},
        baseline="latest",
    )
    auc, loss = eval_config(chosen, has_baseline=True).metrics_specs[0].metrics
    assert auc.per_slice_thresholds[0].threshold.value_threshold.lower_bound.value == 0.8
    assert loss.per_slice_thresholds[0].threshold.change_threshold.direction == MetricDirection.LOWER_IS_BETTER
    assert loss.per_slice_thresholds[0].threshold.change_threshold.absolute.value == -0.01


def test_improvement_is_left_out_without_a_baseline(config):
    chosen = config(metrics=["AUC"], thresholds={"AUC": {"min_improvement": 0}}, baseline="latest")
    made = eval_config(chosen)
    assert not made.metrics_specs[0].metrics[0].per_slice_thresholds
    assert len(made.model_specs) == 1


@pytest.mark.parametrize("has_baseline", [False, True])
@pytest.mark.parametrize("thresholds", [{}, {"AUC": {"min": 0.5}}, {"AUC": {"min_improvement": 0}}])
def test_eval_config_passes_tfma_own_checks(config, thresholds, has_baseline):
    from tensorflow_model_analysis.utils import config_util

    given = eval_config(config(thresholds=thresholds, baseline="pushed"), has_baseline=has_baseline)
    made = config_util.update_eval_config_with_defaults(given, has_baseline=has_baseline)
    config_util.verify_eval_config(made)


def test_cross_entropy_at_probabilities_0_and_1_is_the_reports(config):
    rows = {"label": [1.0, 0.0, 1.0, 0.0], "probability": [1.0, 0.0, 0.75, 1.0], "sample_weight": [1.0, 2.0, 3.0, 0.5]}
    chosen = eval_config(config(metrics=["BinaryCrossEntropy"]))
    found = tfma.analyze_raw_data(pandas.DataFrame(rows), chosen).get_metrics_for_slice()
    expected = log_loss(rows["label"], rows["probability"], sample_weight=rows["sample_weight"])
    assert found["BinaryCrossEntropy"]["doubleValue"] == pytest.approx(expected)


def test_without_thresholds_one_that_every_model_reaches_is_set(config):
    """Without thresholds TFMA blesses no model, but the documentation promises that every model is then blessed."""
    metrics = eval_config(config(metrics=["AUC"])).metrics_specs[0].metrics
    (bound,) = [metric.per_slice_thresholds[0].threshold for metric in metrics if metric.per_slice_thresholds]
    assert bound.value_threshold.lower_bound.value == 0
