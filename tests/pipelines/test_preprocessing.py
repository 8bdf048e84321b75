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
    folder = tmp_path_factory.mktemp("graph") / "graph"
    return _write_graph(ROWS, SPEC, lambda inputs: preprocessing.preprocessing_fn(inputs, CONFIG), folder)


def _raw(rows, columns=tuple(SPEC)):
    made = {}
    for name in columns:
        dtype, values = SPEC[name].dtype, [row[name] for row in rows]
        is_sparse = isinstance(SPEC[name], tf.io.VarLenFeature)
        made[name] = tf.ragged.constant(values, dtype).to_sparse() if is_sparse else tf.constant(values, dtype)
    return made


def test_default_function_gives_float32_columns(graph):
    outputs = graph.transform_raw_features(_raw(ROWS))
    columns = {name for name in outputs if not name.endswith(".range")}
    assert columns == {"age", "label", "log_price", "price", "same", "sample_weight"}
    assert all(outputs[name].dtype == tf.float32 and outputs[name].shape == (4, 1) for name in columns)
    assert {name for name in outputs if name not in columns} == {
        f"{column['name']}.range" for column in CONFIG["dense"]
    }


def test_dense_is_z_score_and_missing_is_the_mean(graph):
    outputs = graph.transform_raw_features(_raw(ROWS))
    known = np.array([price for price in PRICES if price is not None])
    expected = [0.0 if price is None else (price - known.mean()) / known.std() for price in PRICES]
    np.testing.assert_allclose(outputs["price"][:, 0], expected, rtol=1e-5)
    logs = np.sign(known) * np.log1p(np.abs(known))
    np.testing.assert_allclose(outputs["log_price"][0, 0], (logs[0] - logs.mean()) / logs.std(), rtol=1e-5)
    np.testing.assert_array_equal(outputs["same"][:, 0], np.zeros(4))


def _write_graph(rows, spec, function, folder, batch=None):
    """Analyze rows with Beam, and write the transform graph, with its metadata as TFX's Transform does."""
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    context = tft_beam.Context(temp_dir=f"{folder}-temp", desired_batch_size=batch)
    with context, beam.Pipeline(argv=[*IN_PROCESS]) as pipeline:
        analysed = (pipeline | beam.Create(rows), metadata) | tft_beam.AnalyzeDataset(function)
        _ = analysed | tft_beam.WriteTransformFn(str(folder))
    metadata_io.write_metadata(metadata, f"{folder}/metadata")
    return tft.TFTransformOutput(str(folder))


DRAWN = np.random.default_rng(1).lognormal(2, 1, 500)
EXTREME = {
    "same": [0.1] * 50,
    "zeros": [0.0] * 20,
    "large": [3e38, 1e38, -3e38],
    "small": [1e-30, -1e-32, 0.0],
    "rare": [0.0] * 990 + [7.0] * 10,
    "apart": [-5, 5e6],
    "drawn": DRAWN,
    "far": DRAWN + 1e4,
}
NUMBERS = {**EXTREME, "spoilt": [*DRAWN, 3e38, -3e38], "kept": [1.0, 2.0, 300.0], "other": [1.0, 2.0, 300.0]}
NUMBERS = {name: np.asarray(values, np.float32) for name, values in NUMBERS.items()}
EARLIER = {"log1p": False, "mean": 1.5, "deviation": 0.5, "limit": 100.0}
RANGES = {"kept": {**EARLIER, "column": "kept"}, "other": {**EARLIER, "column": "other", "log1p": True}}


def _analysed(folder, batch):
    """Analyze NUMBERS, of which short columns lack values; return the measured range and the scaled values of each."""
    spec = {name: tf.io.VarLenFeature(tf.float32) for name in NUMBERS}
    rows = [{name: values[at : at + 1].tolist() for name, values in NUMBERS.items()} for at in range(1000)]
    config = {"dense": [{"name": name, "column": name, "log1p": False} for name in NUMBERS], "ranges": RANGES}
    graph = _write_graph(rows, spec, lambda inputs: preprocessing.dense_features(inputs, config), folder, batch)
    measured = read_ranges(str(folder), [*NUMBERS, "unknown"])
    assert measured.keys() == NUMBERS.keys()
    given = {name: tf.ragged.constant([row[name] for row in rows], tf.float32).to_sparse() for name in NUMBERS}
    scaled = graph.transform_raw_features(given)
    return {name: (measured[name], scaled[name].numpy()[: len(NUMBERS[name]), 0]) for name in NUMBERS}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return _analysed(tmp_path_factory.mktemp("numbers") / "graph", 100)


def test_scaling_does_not_depend_on_how_beam_batches(numbers, tmp_path):
    for name, (measured, scaled) in _analysed(tmp_path / "graph", 7).items():
        assert measured == numbers[name][0]
        np.testing.assert_array_equal(scaled, numbers[name][1])


def test_rows_of_3e38_are_missing_values_and_keep_the_range(numbers):
    (clean, expected), (spoilt, scaled) = numbers["drawn"], numbers["spoilt"]
    assert (spoilt["values"], spoilt["implausible"], clean["implausible"]) == (502, 2, 0)
    assert (spoilt["mean"], spoilt["deviation"]) == (clean["mean"], clean["deviation"])
    np.testing.assert_array_equal(scaled, [*expected, 0, 0])


@pytest.mark.parametrize("name", EXTREME)
def test_range_is_exact_for_extreme_columns(numbers, name):
    measured, scaled = numbers[name]
    exact = NUMBERS[name].astype(np.float64)
    assert measured["mean"] == pytest.approx(exact.mean(), rel=1e-6)
    assert measured["deviation"] == pytest.approx(exact.std() if len(set(exact)) > 1 else 0, rel=1e-5, abs=0)
    assert measured["implausible"] == 0
    assert np.isfinite(scaled).all()


def test_earlier_models_range_is_kept_for_the_same_feature_alone(numbers):
    kept, scaled = numbers["kept"]
    assert kept == {"mean": 1.5, "deviation": 0.5, "limit": 100.0, "values": 3.0, "implausible": 1.0}
    np.testing.assert_array_equal(scaled, [-1, 1, 0])
    assert numbers["other"][0]["mean"] == 101


def _classes(rows, folder):
    """Analyze rows of one column of classes, and return the graph."""
    labels = {"labels": [{"name": "label", "column": "mood", "key": "label", "kind": "multiclass"}]}
    rows, spec = [{"mood": row} for row in rows], {"mood": tf.io.VarLenFeature(tf.string)}
    return _write_graph(rows, spec, lambda inputs: preprocessing.labels(inputs, labels), folder)


MOODS = [b"fine", b"great", b"awful", b"sad"]


@pytest.fixture(scope="module")
def moods(tmp_path_factory):
    """Return the folder of the graph of rows with MOODS."""
    folder = tmp_path_factory.mktemp("moods") / "graph"
    _classes([[mood] for mood in MOODS] + [[b"sad"]] * 5, folder)
    return folder


def _ids(folder, *values):
    """Return the ids of moods; a row may lack its mood."""
    raw = {"mood": tf.ragged.constant([[value] if value else [] for value in values]).to_sparse()}
    return open_transform_graph(str(folder), ["label"]).outputs(raw)["label"].numpy()[:, 0]


def _with_classes(moods, folder, classes):
    """Copy the graph, with other classes in its asset."""
    shutil.copytree(moods, folder, dirs_exist_ok=True)
    (asset,) = (folder / "transform_fn" / "assets").iterdir()
    asset.write_bytes(classes)


def test_order_of_classes_does_not_depend_on_their_counts(moods, tmp_path):
    _classes([[mood] for mood in MOODS[::-1]] + [[b"fine"]] * 5 + [[]], tmp_path / "two")
    classes = read_classes(str(moods), "label")
    assert sorted(classes) == sorted(mood.decode() for mood in MOODS)
    assert read_classes(str(tmp_path / "two"), "label") == classes
    found = _ids(moods, classes[2].encode(), None, b"unheard", classes[0].encode())
    np.testing.assert_array_equal(found, [2.0, math.nan, math.nan, 0.0])


def test_label_of_one_class_or_without_classes_is_refused(moods, tmp_path):
    _with_classes(moods, tmp_path, b"same\n")
    with pytest.raises(DataError, match=r"'label' has 1 classes \('same'\) in the train split: .* has 2 to 10,000"):
        read_classes(str(tmp_path), "label")
    with pytest.raises(DataError, match="no classes of the label 'mood': compute its ids with"):
        read_classes(str(tmp_path), "mood")


def test_another_asset_under_the_same_address_is_read(moods, tmp_path):
    for classes in (b"fine\nsad\n", b"sad\nfine\n"):
        _with_classes(moods, tmp_path, classes)
        assert _ids(tmp_path, *classes.split()).tolist() == [0.0, 1.0]


def test_another_graph_at_the_same_address_has_its_own_columns(tmp_path):
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in ("first", "second")}
    folder = tmp_path / "graph"
    for column in spec:
        shutil.rmtree(folder, ignore_errors=True)
        _write_graph([dict.fromkeys(spec, 1.0)], spec, lambda row, column=column: {"y": row[column] * 2}, folder)
        assert list(open_transform_graph(str(folder), ["y"]).spec) == [column]


def test_columns_of_an_output_are_those_that_tft_needs_for_it(graph):
    """Compare with the definition, which traces the graph once per column, without that column: quadratic time."""
    uri = os.path.dirname(graph.transform_savedmodel_dir)
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


def test_output_that_the_function_does_not_return_is_named(graph):
    with pytest.raises(DataError, match=r"Transform has no output 'no_such', it has .*'log_price'"):
        open_transform_graph(os.path.dirname(graph.transform_savedmodel_dir), ["no_such"])


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


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        *[("binary", value, "0 or 1") for value in (2.0, 0.5, -1.0, math.nan)],
        ("regression", math.inf, "finite"),
        ("regression", math.nan, "finite"),
        ("count", -1.0, "at least 0"),
    ],
)
def test_label_that_is_not_of_its_kind_is_an_error(kind, value, words):
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
