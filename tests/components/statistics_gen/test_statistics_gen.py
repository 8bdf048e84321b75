"""Statistics of a sample against TFX's of all rows: the values that schemas, anomalies and reports use are equal."""

import csv
import functools
import json

import numpy as np
import pytest
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import standard_artifacts

from components.example_gen.component import ExampleGen
from components.example_gen.settings import Settings
from components.statistics_gen.executor import Executor
from pipelines.pipeline.run_target import IN_PROCESS
from tests.support.artifacts import artifact, examples_at

pytestmark = pytest.mark.tfx
ROWS = 1500
BEAM = BaseBeamExecutor.Context(beam_pipeline_args=[*IN_PROCESS])


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Return our ExampleGen's examples, with missing values, a constant, an outlier and a column of 3 values."""
    folder = tmp_path_factory.mktemp("statistics")
    (folder / "data").mkdir()
    generator = np.random.default_rng(1)
    with open(folder / "data" / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["price", "shop", "same", "rare", "label", "empty", "tokenless"])
        for row in range(ROWS):
            price = "" if row % 7 == 0 else round(float(generator.normal()), 3)
            writer.writerow(
                [1e6 if row == 1 else price, f"s{row % 50}", "x", "once" if row in (1, 2, 3) else "", row % 2, "", ""]
            )
    tokens = dict.fromkeys(("shop", "same", "rare", "tokenless"), "token")
    columns = {**tokens, **dict.fromkeys(("price", "label", "empty"), "float")}
    component = ExampleGen(str(folder / "data"), "*.csv", "csv", Settings(columns=columns, allow_empty=True))
    made = artifact(standard_artifacts.Examples, folder / "examples")
    component.executor_spec.executor_class(BEAM).Do({}, {"examples": [made]}, component.exec_properties)
    return made


def compute(examples, folder, sample_rows):
    statistics = artifact(standard_artifacts.ExampleStatistics, folder, made=False)
    Executor(BEAM).Do({"examples": [examples]}, {"statistics": [statistics]}, {"sample_rows": sample_rows})
    return statistics


@pytest.fixture(scope="module")
def statistics(examples, tmp_path_factory):
    """Return a function that computes the statistics of a sample of so many rows, once; 0 means all, by TFX's code."""
    return functools.cache(lambda rows: compute(examples, tmp_path_factory.mktemp("statistics"), rows))


def features(made, split):
    from tensorflow_metadata.proto.v0 import statistics_pb2

    path = f"{made.uri}/Split-{split}/FeatureStats.pb"
    with open(path, "rb") as file:
        (dataset,) = statistics_pb2.DatasetFeatureStatisticsList.FromString(file.read()).datasets
    return dataset, {feature.path.step[0]: feature for feature in dataset.features}


def decisive(feature):
    """Return the statistics of a feature that schemas, anomalies and reports are made from."""
    kind = "string_stats" if feature.HasField("string_stats") else "num_stats"
    found = getattr(feature, kind)
    common = found.common_stats
    numbers = (found.min, found.max, pytest.approx(found.mean, rel=1e-6)) if kind == "num_stats" else ()
    constant = found.unique == 1 if kind == "string_stats" else found.min == found.max
    counts = (common.num_missing, common.num_non_missing, common.min_num_values, common.max_num_values)
    return kind, feature.type, counts, common.tot_num_values, numbers, constant


@pytest.mark.parametrize("sample_rows", [100, ROWS])
def test_what_decides_is_that_of_all_rows(statistics, sample_rows):
    for split in ("train", "eval"):
        (exact, expected), (two, found) = features(statistics(0), split), features(statistics(sample_rows), split)
        assert two.num_examples == exact.num_examples
        known = {name for name, feature in expected.items() if decisive(feature)[2][1]}
        assert known <= {*found}
        for name in known:
            assert decisive(found[name]) == decisive(expected[name]), (split, name)


def test_text_column_without_values_has_no_unique_value(statistics):
    assert features(statistics(100), "train")[1]["tokenless"].string_stats.unique == 0


def test_sample_is_smaller_and_says_so(statistics):
    _, found = features(statistics(100), "train")
    counted = sum(bucket.sample_count for bucket in found["shop"].string_stats.rank_histogram.buckets)
    assert 100 <= counted < 300
    rate = statistics(100).get_json_value_custom_property("sample_rate_by_split")
    assert 0 < json.loads(rate)["train"] < 0.2


@pytest.mark.parametrize("sample_rows", [0, 100])
def test_tfxs_schema_gen_and_example_validator_read_them(statistics, sample_rows):
    import tensorflow_data_validation as tfdv
    from tensorflow_metadata.proto.v0 import schema_pb2

    folder = statistics(sample_rows).uri
    train, held_out = (tfdv.load_stats_binary(f"{folder}/Split-{split}/FeatureStats.pb") for split in ("train", "eval"))
    schema = tfdv.infer_schema(train, infer_feature_shape=False)
    schema = tfdv.update_schema(schema, held_out)
    kinds = {feature.name: schema_pb2.FeatureType.Name(feature.type) for feature in schema.feature}
    text = dict.fromkeys(("shop", "same", "rare", "tokenless"), "BYTES")
    assert kinds == {**text, "price": "FLOAT", "label": "FLOAT", "empty": "FLOAT"}
    assert not tfdv.validate_statistics(held_out, schema).anomaly_info


def test_all_rows_of_another_example_gen_are_in_the_statistics(examples, tmp_path):
    other = examples_at(examples.uri)
    dataset, found = features(compute(other, tmp_path, 100), "train")
    assert (
        sum(bucket.sample_count for bucket in found["shop"].string_stats.rank_histogram.buckets) == dataset.num_examples
    )
