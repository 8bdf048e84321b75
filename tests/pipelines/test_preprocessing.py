from __future__ import annotations

import math
import os

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
pytest.importorskip("tensorflow_transform")

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

from embedding_core.errors import DataError
from pipelines import preprocessing
from pipelines.examples import taxi

pytestmark = pytest.mark.tfx

CONFIG = {
    "dense": [
        {"name": "price", "column": "price", "log1p": False},
        {"name": "log_price", "column": "price", "log1p": True},
        {"name": "age", "column": "age", "log1p": False},
        {"name": "same", "column": "same", "log1p": False},
    ],
    "label_column": "bought",
    "label_key": "label",
    "sample_weight_column": "weight",
}
PRICES = [1.0, None, -7.0, 30.0]
SPEC = {
    "price": tf.io.VarLenFeature(tf.float32),
    "age": tf.io.FixedLenFeature([1], tf.int64),
    "same": tf.io.FixedLenFeature([], tf.float32),
    "bought": tf.io.VarLenFeature(tf.int64),
    "weight": tf.io.FixedLenFeature([], tf.float32),
    "item": tf.io.VarLenFeature(tf.string),
}
ROWS = [
    {
        "price": [] if price is None else [price],
        "age": [10 * index],
        "same": 5.0,
        "bought": [index % 2],
        "weight": 0.5,
        "item": [b"x"],
    }
    for index, price in enumerate(PRICES)
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The transform graph's output, analysed by Beam over the rows."""
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(SPEC))
    folder = str(tmp_path_factory.mktemp("graph"))
    options = beam.options.pipeline_options.PipelineOptions(["--direct_running_mode=in_memory"])
    with tft_beam.Context(temp_dir=str(tmp_path_factory.mktemp("temp"))), beam.Pipeline(options=options) as pipeline:
        data = pipeline | beam.Create(ROWS)

        def function(inputs):
            return preprocessing.preprocessing_fn(inputs, CONFIG)

        analysed = (data, metadata) | tft_beam.AnalyzeDataset(function)
        _ = analysed | tft_beam.WriteTransformFn(folder)
    return tft.TFTransformOutput(folder)


def _raw(rows, columns=tuple(SPEC)):
    def sparse(name, dtype):
        return tf.ragged.constant([row[name] for row in rows], dtype=dtype).to_sparse()

    made = {
        "price": lambda: sparse("price", tf.float32),
        "age": lambda: tf.constant([row["age"] for row in rows], tf.int64),
        "same": lambda: tf.constant([row["same"] for row in rows]),
        "bought": lambda: sparse("bought", tf.int64),
        "weight": lambda: tf.constant([row["weight"] for row in rows]),
        "item": lambda: sparse("item", tf.string),
    }
    return {name: made[name]() for name in columns}


def test_default_function_gives_float32_columns(graph):
    outputs = graph.transform_raw_features(_raw(ROWS))
    assert sorted(outputs) == ["age", "label", "log_price", "price", "same", "sample_weight"]
    assert all(value.dtype == tf.float32 and value.shape == (4, 1) for value in outputs.values())


def test_dense_is_z_score_and_missing_is_the_mean(graph):
    outputs = graph.transform_raw_features(_raw(ROWS))
    known = np.array([price for price in PRICES if price is not None])
    expected = [0.0 if price is None else (price - known.mean()) / known.std() for price in PRICES]
    np.testing.assert_allclose(outputs["price"][:, 0], expected, rtol=1e-5)
    logs = np.sign(known) * np.log1p(np.abs(known))
    np.testing.assert_allclose(outputs["log_price"][0, 0], (logs[0] - logs.mean()) / logs.std(), rtol=1e-5)
    np.testing.assert_array_equal(outputs["same"][:, 0], np.zeros(4))


def test_scaling_does_not_depend_on_how_beam_batches(tmp_path):
    values = np.random.default_rng(1).normal(1e4, 1, 500).astype(np.float32)
    rows = [{"price": value} for value in values]
    metadata = dataset_metadata.DatasetMetadata(
        schema_utils.schema_from_feature_spec({"price": tf.io.FixedLenFeature([], tf.float32)})
    )

    def scale(batch):
        options = beam.options.pipeline_options.PipelineOptions(["--direct_running_mode=in_memory"])
        context = tft_beam.Context(temp_dir=str(tmp_path / f"temp{batch}"), desired_batch_size=batch)
        with context, beam.Pipeline(options=options) as pipeline:
            data = pipeline | beam.Create(rows)
            analysed = (data, metadata) | tft_beam.AnalyzeDataset(
                lambda inputs: {"price": preprocessing.scaled(inputs["price"], "price")}
            )
            _ = analysed | tft_beam.WriteTransformFn(str(tmp_path / f"graph{batch}"))
        output = tft.TFTransformOutput(str(tmp_path / f"graph{batch}"))
        return output.transform_raw_features({"price": tf.constant(values)})["price"].numpy()

    np.testing.assert_array_equal(scale(7), scale(100))


def test_label_and_weight_are_passed_on(graph):
    outputs = graph.transform_raw_features(_raw(ROWS))
    np.testing.assert_array_equal(outputs["label"][:, 0], [0, 1, 0, 1])
    np.testing.assert_array_equal(outputs["sample_weight"][:, 0], [0.5] * 4)


def test_missing_label_is_an_error_when_the_row_is_read(graph):
    rows = [*ROWS[:3], {**ROWS[3], "bought": []}]
    with pytest.raises(tf.errors.InvalidArgumentError, match="label `bought`"):
        graph.transform_raw_features(_raw(rows))


def test_graph_serves_without_the_label(graph):
    outputs = graph.transform_features_layer()(_raw(ROWS, ["price", "age", "same"]))
    assert sorted(outputs) == ["age", "log_price", "price", "same"]


def test_label_alone_needs_no_dense_feature():
    config = {"dense": [], "label_column": "y", "label_key": "label", "sample_weight_column": None}
    outputs = preprocessing.preprocessing_fn({"y": tf.constant([1, 0])}, config)
    assert list(outputs) == ["label"]
    assert outputs["label"].numpy().tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("value", [2.0, 0.5, -1.0, math.nan])
def test_label_that_is_not_0_or_1_is_an_error(value):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`y`: a row has none, or one that is not 0 or 1"):
        preprocessing.checked_label(tf.constant([[value]]), "y")


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_sample_weight_that_is_no_weight_is_an_error(value):
    config = {"sample_weight_column": "w"}
    with pytest.raises(tf.errors.InvalidArgumentError, match="`w`"):
        preprocessing.sample_weights({"w": tf.constant([value])}, config)


def test_several_values_in_a_row_are_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="several values"):
        preprocessing.one_value(tf.ragged.constant([[1.0, 2.0], []]), "price")


@pytest.mark.parametrize("kind", ["dense", "column", "sparse", "ragged"])
def test_one_value_reads_every_kind_of_tensor(kind):
    ragged = tf.ragged.constant([[1], [2]])
    tensor = {"dense": [1, 2], "column": [[1], [2]], "sparse": ragged.to_sparse(), "ragged": ragged}[kind]
    tensor = tf.constant(tensor) if isinstance(tensor, list) else tensor
    assert preprocessing.one_value(tensor, "x").numpy().tolist() == [[1.0], [2.0]]


def test_text_where_a_number_is_needed_and_absent_columns_are_named():
    with pytest.raises(DataError, match="'price' holds text"):
        preprocessing.one_value(tf.constant(["a"]), "price")
    with pytest.raises(DataError, match="no column 'y'"):
        preprocessing.labels({"x": tf.constant([1])}, {"label_column": "y", "label_key": "label"})


def test_taxi_label_and_cells_follow_the_task():
    empty = tf.ragged.constant([[], [1.0]], dtype=tf.float32)
    inputs = {
        "fare": tf.constant([10.0, 0.0]),
        "tips": tf.constant([2.5, 0.0]),
        "pickup_latitude": tf.constant([41.98501, 41.0]),
        "pickup_longitude": tf.constant([-87.8045, -87.0]),
        "dropoff_latitude": empty,
        "dropoff_longitude": empty,
    }
    outputs = taxi.preprocessing_fn(inputs, {"dense": []})
    assert outputs["big_tip"].numpy().tolist() == [[1.0], [0.0]]
    assert outputs["pickup_cell"].numpy().tolist() == [[b"41.99,-87.80"], [b"41.00,-87.00"]]
    assert outputs["dropoff_cell"].numpy().tolist() == [[b""], [b"1.00,1.00"]]
