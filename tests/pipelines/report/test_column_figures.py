"""Tests the report's figures of columns, label and features, from hand-written statistics and counts."""

import numpy as np
import pyarrow as pa
import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2

from embedding_core.config import ColumnConfig
from embedding_core.vocabulary import FeatureSummary, Vocabulary
from pipelines.report.evaluation_results import column_figures, feature_figures, label_figures


def statistics(**columns):
    """Serialize column statistics: (missing, present, min, max) of numbers, or (missing, present, distinct) of text."""
    found = statistics_pb2.DatasetFeatureStatisticsList()
    data = found.datasets.add()
    for name, (missing, present, *rest) in columns.items():
        feature = data.features.add()
        feature.path.step.append(name)
        if len(rest) == 2:
            feature.num_stats.min, feature.num_stats.max = rest
            common = feature.num_stats.common_stats
        else:
            feature.string_stats.unique = rest[0]
            common = feature.string_stats.common_stats
        common.num_missing, common.num_non_missing = missing, present
    return found.SerializeToString()


def test_columns_tell_missing_values_per_split_and_constants(tmp_path):
    splits = {
        "train": statistics(
            price=(25, 75, 1.0, 9.0), flat=(0, 100, 3.0, 3.0), shop=(0, 100, 2), same=(1, 99, 1), no=(9, 0, 0)
        ),
        "eval": statistics(price=(0, 10, 1.0, 9.0), shop=(4, 6, 2)),
    }  # fmt: skip
    for split, written in splits.items():
        (tmp_path / f"Split-{split}").mkdir()
        (tmp_path / f"Split-{split}" / "FeatureStats.pb").write_bytes(written)
    rows = {row["column"]: row for row in column_figures(str(tmp_path))}
    assert rows["price"]["missing"] == {"train": 0.25, "eval": 0.0}
    assert rows["shop"]["missing"]["eval"] == 0.4
    assert rows["no"]["missing"] == {"train": 1.0}
    assert [name for name, row in rows.items() if row["constant"]] == ["flat", "same", "no"]


@pytest.mark.parametrize(
    ("values", "rate"),
    [((0, 10, 0.0, 1.0), 0.0), ((0, 10, 0.0, 2.0), None), ((0, 10, 2), None)],
)
def test_label_has_a_rate_in_both_splits_if_its_column_holds_it(tmp_path, values, rate):
    (tmp_path / "Split-train").mkdir()
    (tmp_path / "Split-train" / "FeatureStats.pb").write_bytes(statistics(y=values))
    quality = {"eval_split": {"labels": {"label": {"rows": 8, "positives": 2, "negatives": 6}}}}
    (found,) = label_figures(str(tmp_path), {"label": "y"}, quality)
    assert found == {"label": "label", "rows": 8, "positives": 2, "negatives": 6, "rate": 0.25, "train_rate": rate}
    (computed,) = label_figures(str(tmp_path), {"label": None}, quality)
    assert computed["train_rate"] is None


def test_labels_that_are_numbers_have_no_rate(tmp_path):
    (tmp_path / "Split-train").mkdir()
    (tmp_path / "Split-train" / "FeatureStats.pb").write_bytes(statistics(y=(0, 10, 0.0, 1.0), stars=(4, 6, 1.0, 5.0)))
    counts = {
        "click": {"rows": 8, "positives": 2, "negatives": 6},
        "stars": {"rows": 5, "positives": None, "negatives": None},
    }
    click, stars = label_figures(str(tmp_path), {"click": "y", "stars": "stars"}, {"eval_split": {"labels": counts}})
    assert (click["label"], click["rate"]) == ("click", 0.25)
    assert stars == {"label": "stars", "rows": 5}


def test_features_tell_their_unknown_tokens_the_worst_first():
    def summary(missing):
        return FeatureSummary(column=ColumnConfig(name="c"), rows=100, missing=missing, token_count=90, lengths={})

    vocabulary = Vocabulary(
        name="items", tokens=pa.array([b"a"], pa.large_binary()), counts=np.array([80]), total_count=100, distinct=5,
        features={"item": summary(10), "seen": summary(0)},
    )  # fmt: skip
    counts = {"empty_rows": 5, "tokens": 40, "unknown_tokens": 10, "unknown_rows": 8}
    none = {"empty_rows": 0, "tokens": 0, "unknown_tokens": 0, "unknown_rows": 0}
    quality = {"eval_split": {"rows": 50, "features": {"item": none, "seen": counts}}}
    seen, item = feature_figures([vocabulary], quality)
    assert (seen["feature"], seen["unknown_eval"], seen["unknown_rows_eval"], seen["empty_eval"]) == (
        "seen",
        0.25,
        0.16,
        0.1,
    )
    assert (item["unknown_eval"], item["empty_train"]) == (0.0, 0.1)
    assert item["unknown_train"] == pytest.approx(0.2)
