"""Tests the report's figures of an evaluation, from records as TFMA writes them."""

import math
import os

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
pytest.importorskip("tensorflow_model_analysis")

import tensorflow as tf
from tensorflow_model_analysis.proto import metrics_for_slice_pb2, validation_result_pb2

from pipelines.config import config_from_mapping
from pipelines.report.evaluation_results import judged_metrics, sliced_metrics

pytestmark = pytest.mark.tfx

QUALITY = {
    "eval_split": {"positives": 4, "negatives": 2},
    "checks": [{"name": "rows of the eval split", "value": 6, "bound": "at least 100", "met": False}],
    "retrieval": {"metrics": {"Recall@10": 0.25}},
}


def metrics(values, **keys):
    found = metrics_for_slice_pb2.MetricsForSlice()
    for column, value in keys.items():
        found.slice_key.single_slice_keys.add(column=column, bytes_value=value)
    for name, model, is_diff, value in values:
        entry = found.metric_keys_and_values.add()
        entry.key.name, entry.key.model_name, entry.key.is_diff = name, model, is_diff
        entry.value.double_value.value = value
    return found


@pytest.fixture
def written(tmp_path):
    return write(tmp_path)


def write(tmp_path, *more):
    whole = [("AUC", "", False, 0.6), ("AUC", "baseline", False, 0.7), ("AUC", "", True, -0.1), *more]
    whole += [("BinaryCrossEntropy", "", False, math.nan), ("ExampleCount", "", False, 6.0)]
    slices = [
        metrics([("AUC", "", False, 0.5), ("ExampleCount", "", False, n)], shop=shop)
        for shop, n in ((b"a", 2), (b"b\x1b", 4))
    ]
    with tf.io.TFRecordWriter(str(tmp_path / "metrics-00000-of-00001.tfrecord")) as writer:
        for part in (metrics(whole), *slices):
            writer.write(part.SerializeToString())
    result = validation_result_pb2.ValidationResult()
    result.metric_validations_per_slice.add().failures.add().metric_key.name = "AUC"
    with tf.io.TFRecordWriter(str(tmp_path / "validations.tfrecord")) as writer:
        writer.write(result.SerializeToString())
    return str(tmp_path)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "rows.csv").write_text("")
    evaluation = {"thresholds": {"AUC": {"min": 0.8, "min_improvement": 0}}, "baseline": "latest"}
    values = {"data": "rows.csv", "label": "y", "features": {"categorical": ["item"]}, "evaluation": evaluation}
    return config_from_mapping(values, tmp_path)


def test_metrics_have_bound_and_outcome_with_missed_ones_first(config, written):
    rows = judged_metrics(config, written, QUALITY)
    assert [(row["metric"], row["outcome"]) for row in rows] == [
        ("AUC", "missed"), ("rows of the eval split", "missed"), ("AUC, change", "no bound"),
        ("BinaryCrossEntropy", "no bound"), ("ExampleCount", "no bound"), ("Recall@10", "no bound"),
    ]  # fmt: skip
    found = {row["metric"]: row for row in rows}
    assert found["AUC"]["value"] == 0.6, "the candidate's, not the baseline's"
    assert found["AUC"]["bound"] == "at least 0.8 and a change of 0 to the baseline"
    assert found["AUC, change"]["value"] == -0.1
    assert found["BinaryCrossEntropy"]["value"] is None


def test_ranking_stands_beside_its_figure_with_nothing_left_out(config, tmp_path):
    ranked = ("NDCG@5", "", False, 0.2), ("NDCG@5", "", True, 0.1)
    whole = ("NDCG@5, nothing left out", "", False, 0.4), ("NDCG@5, nothing left out", "", True, 0.3)
    retrieval = {"metrics": {"Recall@10": 0.25}, "nothing_left_out": {"Recall@10": 0.5}}
    rows = judged_metrics(config, write(tmp_path, *ranked, *whole), {**QUALITY, "retrieval": retrieval})
    found = {row["metric"]: (row["value"], row["nothing_left_out"]) for row in rows if "nothing_left_out" in row}
    assert found == {"NDCG@5": (0.2, 0.4), "NDCG@5, change": (0.1, 0.3), "Recall@10": (0.25, 0.5)}
    assert not any("nothing left out" in row["metric"] for row in rows)


def test_slices_come_with_the_most_rows_first_and_escaped(written):
    assert [(row["slice"], row["metrics"]["AUC"]) for row in sliced_metrics(written)] == [
        ("shop = b\\x1b", 0.5), ("shop = a", 0.5),
    ]  # fmt: skip
