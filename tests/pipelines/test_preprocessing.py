from __future__ import annotations

import math
import os
import shutil

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
pytest.importorskip("tensorflow_transform")

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils

from components.transform_graph import open_transform_graph, read_classes, read_ranges
from embedding_core.errors import DataError
from pipelines import preprocessing
from pipelines.examples import taxi
from pipelines.pipeline.run_target import IN_PROCESS

pytestmark = pytest.mark.tfx

CONFIG = {
    "dense": [
        {"name": "price", "column": "price", "log1p": False},
        {"name": "log_price", "column": "price", "log1p": True},
        {"name": "age", "column": "age", "log1p": False},
        {"name": "same", "column": "same", "log1p": False},
    ],
    "labels": [{"name": "label", "column": "bought", "key": "label", "kind": "binary"}],
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
    """Analyze ROWS with Beam, and return the transform graph."""
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(SPEC))
    folder = str(tmp_path_factory.mktemp("graph"))
    options = beam.options.pipeline_options.PipelineOptions([*IN_PROCESS])
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
    columns = {name for name in outputs if not name.endswith(".range")}
    assert columns == {"age", "label", "log_price", "price", "same", "sample_weight"}
    assert all(outputs[name].dtype == tf.float32 and outputs[name].shape == (4, 1) for name in columns)
    assert {name for name in outputs if name not in columns} == {f"{one['name']}.range" for one in CONFIG["dense"]}


def test_dense_is_z_score_and_missing_is_the_mean(graph):
    outputs = graph.transform_raw_features(_raw(ROWS))
    known = np.array([price for price in PRICES if price is not None])
    expected = [0.0 if price is None else (price - known.mean()) / known.std() for price in PRICES]
    np.testing.assert_allclose(outputs["price"][:, 0], expected, rtol=1e-5)
    logs = np.sign(known) * np.log1p(np.abs(known))
    np.testing.assert_allclose(outputs["log_price"][0, 0], (logs[0] - logs.mean()) / logs.std(), rtol=1e-5)
    np.testing.assert_array_equal(outputs["same"][:, 0], np.zeros(4))


def _analysed(values, folder, batch=100, ranges=None):
    """Analyze one column of numbers, and return its measured range and its scaled values."""
    spec = {"price": tf.io.FixedLenFeature([], tf.float32)}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    config = {"dense": [{"name": "price", "column": "price", "log1p": False}], "ranges": ranges or {}}
    options = beam.options.pipeline_options.PipelineOptions([*IN_PROCESS])
    context = tft_beam.Context(temp_dir=f"{folder}-temp", desired_batch_size=batch)
    with context, beam.Pipeline(options=options) as pipeline:
        data = pipeline | beam.Create([{"price": value} for value in np.asarray(values, np.float32)])
        analysed = (data, metadata) | tft_beam.AnalyzeDataset(
            lambda inputs: preprocessing.dense_features(inputs, config)
        )
        _ = analysed | tft_beam.WriteTransformFn(str(folder))
    metadata_io.write_metadata(metadata, f"{folder}/metadata")  # as TFX's Transform does
    (measured,) = read_ranges(str(folder), ["price", "unknown"]).values()
    output = tft.TFTransformOutput(str(folder))
    values = np.asarray(values, np.float32)
    return measured, output.transform_raw_features({"price": tf.constant(values)})["price"].numpy()[:, 0]


def test_scaling_does_not_depend_on_how_beam_batches(tmp_path):
    values = np.random.default_rng(1).normal(1e4, 1, 500).astype(np.float32)
    (first, small), (second, large) = (_analysed(values, tmp_path / f"graph{batch}", batch) for batch in (7, 100))
    np.testing.assert_array_equal(small, large)
    assert first == second
    assert first["mean"] == pytest.approx(values.mean(dtype=np.float64), rel=1e-7)
    assert first["deviation"] == pytest.approx(values.std(dtype=np.float64), rel=1e-6)


def test_rows_of_3e38_are_missing_values_and_keep_the_range(tmp_path):
    values = np.random.default_rng(1).lognormal(2, 1, 500).astype(np.float32)
    clean, expected = _analysed(values, tmp_path / "clean")
    spoilt, scaled = _analysed([*values, 3e38, -3e38], tmp_path / "spoilt")
    assert (spoilt["values"], spoilt["implausible"], clean["implausible"]) == (502, 2, 0)
    assert (spoilt["mean"], spoilt["deviation"]) == (clean["mean"], clean["deviation"])
    np.testing.assert_array_equal(scaled, [*expected, 0, 0])


@pytest.mark.parametrize(
    "values", [[0.1] * 50, [0.0] * 20, [3e38, 1e38, -3e38], [1e-30, -1e-32, 0.0], [0.0] * 990 + [7.0] * 10, [-5, 5e6]]
)
def test_range_is_exact_for_extreme_columns(tmp_path, values):
    measured, scaled = _analysed(values, tmp_path / "graph")
    exact = np.asarray(values, np.float32).astype(np.float64)
    assert measured["mean"] == pytest.approx(exact.mean(), rel=1e-6)
    assert measured["deviation"] == pytest.approx(exact.std() if len(set(values)) > 1 else 0, rel=1e-5, abs=0)
    assert measured["implausible"] == 0
    assert np.isfinite(scaled).all()


def test_earlier_models_range_is_kept_for_the_same_feature_alone(tmp_path):
    given = {"column": "price", "log1p": False, "mean": 1.5, "deviation": 0.5, "limit": 100.0}
    values = [1.0, 2.0, 300.0]
    kept, scaled = _analysed(values, tmp_path / "kept", ranges={"price": given})
    assert kept == {"mean": 1.5, "deviation": 0.5, "limit": 100.0, "values": 3.0, "implausible": 1.0}
    np.testing.assert_array_equal(scaled, [-1, 1, 0])
    measured, _ = _analysed(values, tmp_path / "measured", ranges={"price": {**given, "log1p": True}})
    assert measured["mean"] == 101


def _classes(rows, folder):
    """Analyze rows of one column of classes, and return the graph."""
    spec = {"mood": tf.io.VarLenFeature(tf.string)}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    label = {"name": "label", "column": "mood", "key": "label", "kind": "multiclass"}
    with tft_beam.Context(temp_dir=f"{folder}-temp"), beam.Pipeline(argv=[*IN_PROCESS]) as pipeline:
        data = pipeline | beam.Create([{"mood": row} for row in rows])
        analysed = (data, metadata) | tft_beam.AnalyzeDataset(
            lambda inputs: preprocessing.labels(inputs, {"labels": [label]})
        )
        _ = analysed | tft_beam.WriteTransformFn(str(folder))
    metadata_io.write_metadata(metadata, f"{folder}/metadata")
    return tft.TFTransformOutput(str(folder))


def test_order_of_classes_does_not_depend_on_their_counts(tmp_path):
    moods = [b"fine", b"great", b"awful", b"sad"]
    graph = _classes([[mood] for mood in moods] + [[b"sad"]] * 5, tmp_path / "one")
    _classes([[mood] for mood in moods[::-1]] + [[b"fine"]] * 5 + [[]], tmp_path / "two")
    classes = read_classes(str(tmp_path / "one"), "label")
    assert sorted(classes) == sorted(mood.decode() for mood in moods)
    assert read_classes(str(tmp_path / "two"), "label") == classes
    given = tf.ragged.constant([[classes[2].encode()], [], [b"unheard"], [classes[0].encode()]]).to_sparse()
    found = graph.transform_raw_features({"mood": given})["label"]
    np.testing.assert_array_equal(found, [[2.0], [math.nan], [math.nan], [0.0]])


def test_label_of_one_class_or_without_classes_is_refused(tmp_path):
    _classes([[b"same"]], tmp_path / "graph")
    with pytest.raises(DataError, match=r"'label' has 1 classes \('same'\) in the train split: .* has 2 to 10,000"):
        read_classes(str(tmp_path / "graph"), "label")
    with pytest.raises(DataError, match="no classes of the label 'mood': compute its ids with"):
        read_classes(str(tmp_path / "graph"), "mood")


def test_another_graph_at_the_same_address_has_its_own_columns(tmp_path):
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in ("first", "second")}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    folder = tmp_path / "graph"
    for column in spec:
        shutil.rmtree(folder, ignore_errors=True)
        with tft_beam.Context(temp_dir=str(tmp_path / "temp")), beam.Pipeline(argv=[*IN_PROCESS]) as pipeline:
            data = pipeline | beam.Create([{"first": 1.0, "second": 2.0}])
            analysed = (data, metadata) | tft_beam.AnalyzeDataset(lambda row, column=column: {"y": row[column] * 2})
            _ = analysed | tft_beam.WriteTransformFn(str(folder))
        metadata_io.write_metadata(metadata, f"{folder}/metadata")
        assert list(open_transform_graph(str(folder), ["y"]).spec) == [column]


def test_columns_of_an_output_are_those_that_tft_needs_for_it(graph):
    """Compare with the definition, which traces the graph once per column, without that column: quadratic time."""
    uri = os.path.dirname(graph.transform_savedmodel_dir)
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(SPEC))
    metadata_io.write_metadata(metadata, f"{uri}/metadata")
    layer, spec = graph.transform_features_layer(), graph.raw_feature_spec()
    needed = {name: set() for name in graph.transformed_feature_spec()}
    for column in spec:
        rest = {name: feature for name, feature in spec.items() if name != column}
        compute = tf.function(lambda examples, rest=rest: layer(tf.io.parse_example(examples, rest)), autograph=False)
        outputs = compute.get_concrete_function(tf.TensorSpec([None], tf.string)).structured_outputs
        for name in set(needed) - set(outputs):
            needed[name].add(column)
    assert {name: set(open_transform_graph(uri, [name]).spec) for name in needed} == needed
    assert any(needed.values())


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
    assert {"age", "log_price", "price", "same"} <= set(outputs)
    assert "label" not in outputs


def test_label_alone_needs_no_dense_feature():
    label = {"name": "label", "column": "y", "key": "label", "kind": "binary"}
    config = {"dense": [], "labels": [label], "sample_weight_column": None}
    outputs = preprocessing.preprocessing_fn({"y": tf.constant([1, 0])}, config)
    assert list(outputs) == ["label"]
    assert outputs["label"].numpy().tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("value", [2.0, 0.5, -1.0, math.nan])
def test_label_that_is_not_0_or_1_is_an_error(value):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`y`: a row has none, or one that is not 0 or 1"):
        preprocessing.checked_label(tf.constant([[value]]), "y")


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [("regression", math.inf, "finite"), ("regression", math.nan, "finite"), ("count", -1.0, "at least 0")],
)
def test_label_that_is_not_such_a_number_is_an_error(kind, value, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`y`: a row has none, or one that is not .*{words}"):
        preprocessing.checked_label(tf.constant([[value]]), "y", kind)


def test_a_row_may_lack_one_of_several_labels():
    labels = [
        {"name": "click", "column": "c", "key": "label_click", "kind": "binary"},
        {"name": "stars", "column": "s", "key": "label_stars", "kind": "regression"},
    ]
    found = preprocessing.labels({"c": tf.constant([1, 0]), "s": tf.constant([math.nan, 2.5])}, {"labels": labels})
    assert found["label_click"].numpy().tolist() == [[1.0], [0.0]]
    np.testing.assert_array_equal(found["label_stars"], [[math.nan], [2.5]])


@pytest.mark.parametrize("column", [tf.constant([3, 4]), tf.ragged.constant([[3], []]), tf.sparse.eye(2)])
def test_positive_label_is_1_in_each_row(column):
    config = {"labels": [{"name": "label", "column": None, "key": "label", "kind": "positive"}]}
    assert preprocessing.labels({"item": column}, config)["label"].numpy().tolist() == [[1.0], [1.0]]


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


def test_text_in_place_of_a_number_and_absent_columns_are_named():
    with pytest.raises(DataError, match="'price' holds text"):
        preprocessing.one_value(tf.constant(["a"]), "price")
    with pytest.raises(DataError, match="no column 'y'"):
        preprocessing.labels({"x": tf.constant([1])}, {"labels": [{"column": "y", "key": "label", "kind": "binary"}]})


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


def test_another_asset_under_the_same_address_is_read(tmp_path):
    _classes([[b"fine"], [b"sad"]], tmp_path)
    raw, found = {"mood": tf.ragged.constant([[b"sad"], [b"fine"]]).to_sparse()}, []
    (asset,) = (tmp_path / "transform_fn" / "assets").iterdir()
    for order in (b"fine\nsad\n", b"sad\nfine\n"):
        asset.write_bytes(order)
        found.append(open_transform_graph(str(tmp_path), ["label"]).outputs(raw)["label"].numpy().tolist())
    assert found == [[[1.0], [0.0]], [[0.0], [1.0]]]
