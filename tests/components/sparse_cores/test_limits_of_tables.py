"""TableConfigGen with the rows and settings of a training for a slice with SparseCores."""

import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.types import artifact_utils, channel_utils, standard_artifacts

from components.artifacts import TableConfigs, Vocabularies
from components.sparse_cores.table_limits import read_sparse_core_limits
from components.table_config_gen import TableConfigGen
from components.table_config_gen.executor import Executor
from embedding_core.config import ColumnConfig
from embedding_core.errors import ConfigError
from embedding_core.vocabulary import FeatureSummary, Vocabulary, save_vocabulary
from tests.support.artifacts import fact

pytestmark = pytest.mark.tfx

FEATURES = [{"name": "item", "vocabulary": "item", "column": {"name": "item", "multivalent": True}}]
TRAINING = {"epochs": 2, "batch_size": 32, "early_stopping": None}


def _artifact(kind, folder):
    made = kind()
    made.uri = str(folder)
    folder.mkdir(parents=True)
    return made


def _example(random):
    items = [b"%d" % item for item in random.integers(0, 9, random.integers(0, 5))]
    features = {
        "item": tf.train.Feature(bytes_list=tf.train.BytesList(value=items)),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(random.integers(2))])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("inputs"), np.random.default_rng(0)
    examples = _artifact(standard_artifacts.Examples, folder / "examples")
    examples.split_names = artifact_utils.encode_split_names(["train", "eval"])
    for split, rows in (("train", 200), ("eval", 20)):
        (folder / "examples" / f"Split-{split}").mkdir()
        with tf.io.TFRecordWriter(f"{examples.uri}/Split-{split}/data.gz", "GZIP") as writer:
            for _ in range(rows):
                writer.write(_example(random))
    vocabularies = _artifact(Vocabularies, folder / "vocabularies")
    column = ColumnConfig(name="item", multivalent=True)
    summary = FeatureSummary(column=column, rows=200, missing=0, token_count=400, lengths={"max": 4})
    tokens = pa.array([b"%d" % token for token in range(7)], pa.large_binary())
    counts = np.arange(7, 0, -1)
    save_vocabulary(
        Vocabulary(name="item", tokens=tokens, counts=counts, total_count=400, distinct=9, features={"item": summary}),
        vocabularies.uri,
    )
    schema = _artifact(standard_artifacts.Schema, folder / "schema")
    kinds = {"item": schema_pb2.BYTES, "label": schema_pb2.INT}
    proto = schema_pb2.Schema(feature=[schema_pb2.Feature(name=name, type=kind) for name, kind in kinds.items()])
    (folder / "schema" / "schema.pbtxt").write_text(text_format.MessageToString(proto))
    return {"examples": [examples], "vocabularies": [vocabularies], "schema": [schema]}


def _run(inputs, folder, *, topology="v6e-4", training=TRAINING, **properties):
    output = TableConfigs()
    output.uri = str(folder)
    custom = None if training is None else json.dumps({"training": training})
    given = {"features": json.dumps(FEATURES), "tables": "{}", "topology": topology, "custom_config": custom}
    Executor().Do(inputs, {"table_configs": [output]}, {**given, **properties})
    return output


@pytest.fixture(scope="module")
def output(inputs, tmp_path_factory):
    return _run(inputs, tmp_path_factory.mktemp("run") / "tables")


def test_limits_of_the_training_are_in_the_artifact(output):
    limits = read_sparse_core_limits(output.uri)
    assert (limits["method"], limits["batches"], limits["batch_size"]) == ("exact", 14, 32)
    (stack,) = limits["stacks"]
    assert 1 <= stack["max_unique_ids_per_partition"] <= stack["max_ids_per_partition"]
    assert limits["forms"]["tensorflow"]["max_ids_per_table"] == {"item": stack["max_ids_per_partition"]}
    assert fact(output, "sparse_cores")["limits"]["item"][0] == stack["max_ids_per_partition"]
    assert limits["drift"] is None


def test_drift_is_against_the_limits_of_a_previous_run(inputs, output, tmp_path):
    later = _run({**inputs, "base_table_configs": [output]}, tmp_path / "tables", training_steps=3)
    limits = read_sparse_core_limits(later.uri)
    assert limits["batches"] == 3
    assert limits["drift"]["item"]["batches_over"] == 0


@pytest.mark.parametrize("given", [{"topology": "v3-8"}, {"training": None}])
def test_without_sparse_cores_or_training_there_are_no_limits(inputs, tmp_path, given):
    output = _run(inputs, tmp_path / "tables", **given)
    assert read_sparse_core_limits(output.uri) is None
    assert fact(output, "sparse_cores") is None


def test_damaged_limits_are_refused(inputs, tmp_path):
    output = _run(inputs, tmp_path / "tables")
    path = tmp_path / "tables" / "sparse_core_limits.json"
    path.write_text(path.read_text().replace('"exact"', '"bound"'))
    with pytest.raises(ConfigError, match="is not what TableConfigGen wrote"):
        read_sparse_core_limits(output.uri)


def test_settings_without_rows_are_refused(inputs):
    channel = channel_utils.as_channel(inputs["vocabularies"])
    with pytest.raises(ConfigError, match="`custom_config` of TableConfigGen is given, but no `examples`"):
        TableConfigGen(channel, FEATURES, topology="v6e-4", custom_config={"training": TRAINING})
