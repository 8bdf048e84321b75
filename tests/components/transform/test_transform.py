"""Transform keeps the ranges of a base checkpoint, and measures those that the base does not have."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.types import standard_artifacts

from components.artifacts import EmbeddingCheckpoint
from components.component_spec import DATA_FACT
from components.transform.executor import Executor
from components.transform_graph import read_ranges
from embedding_core.checkpoint.dense import write_dense
from embedding_core.errors import CheckpointError
from tests.support.artifacts import artifact, examples_at, write_split
from tests.support.tf_examples import write_rows

pytestmark = pytest.mark.tfx

BASE = {"column": "price", "log1p": False, "mean": 1.5, "deviation": 0.5, "limit": 1023.0, "values": 9.0}


@pytest.fixture
def inputs(tmp_path):
    """Return examples of two numeric columns, their schema, and a base checkpoint with the range of one column."""
    for split in ("train", "eval"):
        write_split(tmp_path / "examples", [{"price": value, "size": value} for value in (1.0, 2.0, 6.0)], split)
    schema = artifact(standard_artifacts.Schema, tmp_path / "schema")
    columns = [schema_pb2.Feature(name=name, type=schema_pb2.FLOAT) for name in ("price", "size")]
    (tmp_path / "schema" / "schema.pbtxt").write_text(text_format.MessageToString(schema_pb2.Schema(feature=columns)))
    base = artifact(EmbeddingCheckpoint, tmp_path / "base")
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    ranges = {"price": {**BASE, "implausible": 0.0}}
    write_dense(f"{base.uri}/dense", model, optimizer, name="adam", inputs={}, ranges=ranges)
    return {"examples": [examples_at(tmp_path / "examples")], "schema": [schema], "base_checkpoint": [base]}


def transformed(inputs, folder):
    """Run the executor; return the ranges in the graph that it writes."""
    dense = [{"name": name, "column": name, "log1p": False} for name in ("price", "size")]
    config = {"dense": dense, "labels": [], "sample_weight_column": None}
    function = "pipelines.preprocessing.preprocessing_fn"
    properties = {"preprocessing_fn": function, "custom_config": json.dumps(config)}
    graph = artifact(standard_artifacts.TransformGraph, folder, made=False)
    Executor().Do(inputs, {"transform_graph": [graph]}, properties)
    assert os.path.exists(f"{graph.uri}.lineage.json")
    return read_ranges(graph.uri, ["price", "size"])


def test_ranges_of_the_base_are_kept_and_others_measured(inputs, tmp_path):
    ranges = transformed(inputs, tmp_path / "graph")
    assert ranges["price"] == {"mean": 1.5, "deviation": 0.5, "limit": 1023.0, "values": 3.0, "implausible": 0.0}
    assert ranges["size"]["mean"] == 3.0


def test_damaged_base_is_refused(inputs, tmp_path):
    (tmp_path / "base/dense/variables.index").write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        transformed(inputs, tmp_path / "graph")


def vocabulary_of_prices(inputs):
    """A preprocessing_fn as TFX's users write it: without `custom_config`, and with an asset."""
    import tensorflow_transform as tft

    price = tf.reshape(tf.sparse.to_dense(inputs["price"]), [-1, 1])
    return {"scaled": tft.scale_to_0_1(price), "place": tft.compute_and_apply_vocabulary(tf.strings.as_string(price))}


def nothing_analysed(inputs):
    return {"double": tf.reshape(tf.sparse.to_dense(inputs["size"]), [-1, 1]) * 2}


@pytest.mark.parametrize(
    ("function", "is_ours"),
    [(vocabulary_of_prices, True), (nothing_analysed, False)],
    ids=["examples_of_our_example_gen", "other_examples"],
)
def test_graph_is_that_of_tfxs_transform(inputs, tmp_path, function, is_ours):
    import tensorflow_transform as tft
    from tfx.components.transform.executor import Executor as TfxExecutor

    if is_ours:  # then our executor reads them by its own reader
        inputs["examples"][0].set_string_custom_property(DATA_FACT, "[]")
    found, given = {}, {key: inputs[key] for key in ("examples", "schema")}
    properties = {"preprocessing_fn": f"{__name__}.{function.__name__}", "disable_statistics": 1}
    for name, executor in (("ours", Executor()), ("theirs", TfxExecutor())):
        graph = artifact(standard_artifacts.TransformGraph, tmp_path / name)
        executor.Do(given, {"transform_graph": [graph]}, properties)
        output = tft.TFTransformOutput(graph.uri)
        raw = {
            "price": tf.sparse.from_dense([[1.0], [2.0], [7.0]]),
            "size": tf.sparse.from_dense([[6.0], [5.0], [4.0]]),
        }
        values = {key: value.numpy().tolist() for key, value in output.transform_raw_features(raw).items()}
        found[name] = (values, str(output.raw_metadata.schema), str(output.transformed_metadata.schema))
    assert found["ours"] == found["theirs"]
    assert not os.path.exists(tmp_path / "ours" / ".temp_path")


def two_phases(inputs):
    import tensorflow_transform as tft

    price = tf.reshape(tf.sparse.to_dense(inputs["price"]), [-1, 1])
    return {"distance": tft.scale_to_0_1(tf.abs(tft.scale_to_z_score(price)))}


def test_analyzer_reads_what_another_made(inputs, tmp_path):
    import tensorflow_transform as tft

    inputs["examples"][0].set_string_custom_property(DATA_FACT, "[]")
    graph = artifact(standard_artifacts.TransformGraph, tmp_path / "graph")
    given = {key: value for key, value in inputs.items() if key != "base_checkpoint"}
    Executor().Do(given, {"transform_graph": [graph]}, {"preprocessing_fn": f"{__name__}.two_phases"})
    prices = np.array([1.0, 2.0, 6.0])
    distances = np.abs(prices - prices.mean()) / prices.std()
    asked = np.abs([[1.0], [4.0], [7.0]] - prices.mean()) / prices.std()
    expected = (asked - distances.min()) / (distances.max() - distances.min())
    raw = {"price": tf.sparse.from_dense([[1.0], [4.0], [7.0]])}
    found = tft.TFTransformOutput(graph.uri).transform_raw_features(raw)["distance"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_split_without_files_is_an_error(inputs, tmp_path):
    for file in (tmp_path / "examples" / "Split-train").iterdir():
        file.unlink()
    inputs["examples"][0].set_string_custom_property(DATA_FACT, "[]")
    with pytest.raises(Exception, match=r"no files match .*: run ExampleGen again"):
        transformed(inputs, tmp_path / "graph")
    assert not os.path.exists(tmp_path / "graph" / ".temp_path")


KINDS = {"absent": schema_pb2.FLOAT, "price": schema_pb2.FLOAT, "visits": schema_pb2.INT, "words": schema_pb2.BYTES}


@pytest.fixture
def typed_examples(tmp_path):
    """A file of rows with numbers and texts: one of each, several, none, and NaN."""
    rows = [
        {"price": [1.5], "visits": [-(2**63)], "words": [b"caf\xe9", b""]},
        {"price": [float("nan")], "visits": [1, 2, 3]},
        {},
        {"price": [0.1, float("inf")], "words": [b"a"]},
    ]
    return write_rows(tmp_path / "typed-00000-of-00001.gz", rows, "GZIP")


@pytest.mark.parametrize("columns", [["absent", "price", "visits", "words"], ["price"]])
def test_batches_are_those_of_tfxs_reader(typed_examples, tmp_path, columns):
    from tfx_bsl.tfxio.tf_example_record import TFExampleRecord

    from components.transform.executor import BatchedExamples

    schema = schema_pb2.Schema(feature=[schema_pb2.Feature(name=name, type=kind) for name, kind in KINDS.items()])
    given = {"file_pattern": [typed_examples], "schema": schema, "telemetry_descriptors": ["test"]}
    theirs, ours = (cls(**given).Project(columns) for cls in (TFExampleRecord, BatchedExamples))
    assert ours.ArrowSchema().equals(theirs.ArrowSchema())
    expected = rows_of(theirs.BeamSource(), tmp_path / "theirs")
    assert len(expected) == 4
    assert rows_of(ours.BeamSource(3), tmp_path / "ours") == expected


def test_column_of_another_type_is_an_error(typed_examples, tmp_path):
    from components.transform.executor import BatchedExamples

    schema = schema_pb2.Schema(feature=[schema_pb2.Feature(name="words", type=schema_pb2.FLOAT)])
    reader = BatchedExamples([typed_examples], schema=schema, telemetry_descriptors=["test"])
    with pytest.raises(Exception, match=r"typed-00000-of-00001.gz' is damaged \(.*words.*run ExampleGen again"):
        rows_of(reader.BeamSource(), tmp_path / "rows")


def rows_of(source, path):
    """Return the rows that a Beam source reads, as sorted strings."""
    import apache_beam as beam

    with beam.Pipeline(argv=["--direct_running_mode=in_memory"]) as pipeline:
        rows = pipeline | source | beam.FlatMap(lambda batch: [str(row) for row in batch.to_pylist()])
        _ = rows | beam.io.WriteToText(str(path))
    return sorted(line for file in path.parent.glob(f"{path.name}*") for line in file.read_text().splitlines())
