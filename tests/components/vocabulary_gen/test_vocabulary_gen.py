"""VocabularyGen's executor under Beam, on small files of every supported format."""

from __future__ import annotations

import json
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils
from tfx import types
from tfx.dsl.components.base import base_beam_executor
from tfx.types import standard_artifacts
from tfx_bsl.public import tfxio

from components.artifacts import Vocabularies
from components.vocabulary_gen import VocabularyGen
from components.vocabulary_gen.executor import REPORT_FILE, Executor
from components.vocabulary_gen.vocabulary_rules import VocabularyRule
from embedding_core.errors import ConfigError, DataError
from embedding_core.vocabulary import load_vocabularies
from pipelines.pipeline.run_target import IN_PROCESS

pytestmark = pytest.mark.tfx
KINDS = {bytes: "bytes_list", int: "int64_list", float: "float_list"}


def example(**features):
    message = tf.train.Example()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        getattr(message.features.feature[name], KINDS[type(values[0])]).value.extend(values)
    return message.SerializeToString()


def write_split(folder, rows, split="train", shards=2, compression="GZIP"):
    split_folder = Path(folder) / f"Split-{split}"
    split_folder.mkdir(parents=True, exist_ok=True)
    suffix = ".gz" if compression else ""
    for shard in range(shards):
        path = split_folder / f"examples-{shard:05d}-of-{shards:05d}{suffix}"
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for row in rows[shard::shards]:
                writer.write(row if isinstance(row, bytes) else example(**row))


def examples_at(folder, payload="FORMAT_TF_EXAMPLE", file_format="tfrecords_gzip"):
    artifact = standard_artifacts.Examples()
    artifact.uri, artifact.split_names = str(folder), '["train", "eval"]'
    artifact.set_string_custom_property("payload_format", payload)
    artifact.set_string_custom_property("file_format", file_format)
    return artifact


def run(folder, features, rules=None, inputs=None, arguments=IN_PROCESS, out="out", **more):
    vocabularies = Vocabularies()
    vocabularies.uri = str(folder / out)
    executor = Executor(base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=list(arguments)))
    properties = {"features": json.dumps(features), "vocabulary_rules": json.dumps(rules or {}), **more}
    executor.Do({"examples": [examples_at(folder)], **(inputs or {})}, {"vocabularies": [vocabularies]}, properties)
    return vocabularies, load_vocabularies(vocabularies.uri)


def feature(name, vocabulary=None, **column):
    return {"name": name, "column": {"name": name, **column}, "vocabulary": vocabulary or name}


ROWS = [
    {"user": b"u1", "tags": b"a|b|a", "item": [7, 8], "price": 0.5, "seen": [b"u2", b"u1"]},
    {"user": b"u2", "tags": b"", "item": [7], "seen": [b"u1"]},
    {"user": b"u1", "tags": b"b", "price": 0.5},
    {"user": b"\xff|", "item": [-1], "price": 2.0, "seen": [b"line\nfeed", b""]},
]
FEATURES = [
    feature("user", private=True),
    feature("seen", "user"),
    feature("tags", separator="|"),
    feature("item"),
    feature("price"),
]


def tokens_and_counts(vocabulary):
    return dict(zip(vocabulary.tokens.to_pylist(), vocabulary.counts.tolist(), strict=True))


def test_all_kinds_of_columns_are_counted_in_one_pass(tmp_path):
    write_split(tmp_path, ROWS)
    write_split(tmp_path, [{"user": b"not counted"}], split="eval")
    artifact, found = run(tmp_path, FEATURES)
    assert tokens_and_counts(found["user"]) == {b"u1": 4, b"u2": 2, b"\xff|": 1}
    assert tokens_and_counts(found["tags"]) == {b"a": 2, b"b": 2}
    assert tokens_and_counts(found["item"]) == {b"7": 2, b"-1": 1, b"8": 1}
    assert tokens_and_counts(found["price"]) == {b"0.5": 2, b"2": 1}
    assert (found["user"].unrepresentable, found["user"].total_count, found["user"].private) == (1, 8, True)
    columns = {name: summary.column for v in found.values() for name, summary in v.features.items()}
    assert [columns[name].dtype for name in ("user", "item", "price")] == ["string", "int64", "float32"]
    assert [name for name, column in columns.items() if column.multivalent] == ["item", "seen"]
    summary = found["item"].features["item"]
    assert (summary.rows, summary.missing, summary.token_count, summary.lengths["max"]) == (4, 1, 4, 2)
    assert found["tags"].features["tags"].lengths == {"p50": 0, "p90": 3, "p95": 3, "p99": 3, "max": 3}
    facts = artifact.fact("vocabularies")
    assert facts["user"]["digest"] == found["user"].digest
    assert (artifact.fact("rows"), artifact.fact("bad_rows"), facts["user"]["coverage"]) == (4, 0, 7 / 8)


def test_thresholds_apply_by_vocabulary(tmp_path):
    write_split(tmp_path, ROWS)
    _, found = run(tmp_path, FEATURES, {"user": {"min_count": 2}, "item": {"max_size": 1}})
    assert tokens_and_counts(found["user"]) == {b"u1": 4, b"u2": 2}
    assert tokens_and_counts(found["item"]) == {b"7": 2}


def folder_bytes(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def test_bytes_do_not_depend_on_how_rows_are_spread(tmp_path):
    for name, shards, compression in (("one", 1, ""), ("four", 4, "GZIP")):
        write_split(tmp_path / name, ROWS, shards=shards, compression=compression)
        run(tmp_path / name, FEATURES)
    assert folder_bytes(tmp_path / "one/out") == folder_bytes(tmp_path / "four/out")


BROKEN = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"


def test_rows_that_do_not_parse_are_named(tmp_path):
    write_split(tmp_path, [*ROWS, BROKEN], shards=1)
    with pytest.raises(DataError, match=r"examples-00000-of-00001.gz', row 4: .*; 1 of 5 rows are bad"):
        run(tmp_path, FEATURES)


def test_rows_that_do_not_parse_are_set_aside_within_the_rate(tmp_path):
    write_split(tmp_path, [ROWS[0], BROKEN, *ROWS[1:]], shards=1)
    artifact, found = run(tmp_path, FEATURES, max_bad_row_rate=0.2)
    assert (artifact.fact("rows"), artifact.fact("bad_rows")) == (4, 1)
    assert tokens_and_counts(found["user"])[b"u1"] == 4
    report = json.loads((tmp_path / "out" / REPORT_FILE).read_text())
    assert [bad["row"] for entry in report for bad in entry.get("bad", [])] == [1]


def test_empty_lists_are_missing_values(tmp_path):
    empty = tf.train.Example()
    for name, kind in (("user", "bytes_list"), ("item", "int64_list"), ("price", "float_list"), ("tags", "float_list")):
        getattr(empty.features.feature[name], kind).SetInParent()
    write_split(tmp_path, [*ROWS, empty.SerializeToString()])
    _, found = run(tmp_path, FEATURES)
    assert [found[name].features[name].missing for name in ("user", "item", "price", "tags")] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("rows", "features", "message"),
    [
        ([{"a": b"x"}], [feature("b")], r"'b' has no value in any of the 1 rows"),
        ([{"a": b""}], [feature("a")], r"'a' is empty in all 1 rows"),
        ([{"a": b"x"}, {"a": 1}], [feature("a")], r"mixed type.*int64"),
        ([{"a": [1.0, 2.0]}], [feature("a")], r"list of floats in .*row 0"),
        ([{"a": b"x"}, {"a": [b"x", b"y"]}], [feature("a", multivalent=False)], r"2 values in .*row 1"),
        ([{"a": 1}], [feature("a", separator="|")], r"only string columns can be split"),
        ([{"a": b"\n"}], [feature("a")], r"no token that a text vocabulary can hold"),
        ([], [feature("a")], "no rows"),
    ],
)
def test_data_that_is_not_as_configured_is_one_clear_error(tmp_path, rows, features, message):
    write_split(tmp_path, rows, shards=1)
    with pytest.raises((DataError, ConfigError), match=message):
        run(tmp_path, features)


def test_mixed_types_in_two_files_name_both(tmp_path):
    write_split(tmp_path, [{"a": b"x"}, {"a": 1}], shards=2)
    with pytest.raises(DataError, match=r"mixed type: string in .*00000-of.*, int64 in .*00001-of"):
        run(tmp_path, [feature("a")])


def test_a_damaged_file_is_named(tmp_path):
    write_split(tmp_path, ROWS, shards=1, compression="")
    path = next((tmp_path / "Split-train").iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"of-00001' is damaged.*first 3 rows"):
        run(tmp_path, FEATURES)


def test_an_unknown_split_is_named(tmp_path):
    write_split(tmp_path, ROWS)
    with pytest.raises(DataError, match="no split 'test'"):
        run(tmp_path, FEATURES, splits='["test"]')


def test_a_column_first_seen_late_has_its_dtype(tmp_path):
    write_split(tmp_path, [{"a": b"x"}] * 600 + [{"a": b"x", "late": 5}], shards=1)
    _, found = run(tmp_path, [feature("a"), feature("late")])
    assert (found["late"].features["late"].column.dtype, found["late"].features["late"].missing) == ("int64", 600)


def test_other_payloads_give_the_same_bytes_through_tfxio(tmp_path):
    write_split(tmp_path, ROWS)
    run(tmp_path, FEATURES, out="fast")
    # A tf.SequenceExample has its context under the field number of a tf.Example's features: the files are valid as
    # both.
    sequences = {"examples": [examples_at(tmp_path, payload="FORMAT_TF_SEQUENCE_EXAMPLE")]}
    artifact, _ = run(tmp_path, FEATURES, inputs=sequences)
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "fast")
    assert artifact.fact("rows") == 4


def test_parquet_gives_the_same_bytes_through_tfxio(tmp_path):
    write_split(tmp_path / "fast", ROWS)
    run(tmp_path / "fast", FEATURES[:3] + FEATURES[4:])
    table = {
        "user": pa.array([row["user"] for row in ROWS], pa.binary()),
        "seen": pa.array([row.get("seen") for row in ROWS], pa.list_(pa.binary())),
        "tags": pa.array([row.get("tags") for row in ROWS], pa.binary()),
        "price": pa.array([row.get("price") for row in ROWS], pa.float32()),
    }
    (tmp_path / "Split-train").mkdir()
    pq.write_table(pa.table(table), tmp_path / "Split-train" / "examples.parquet")
    parquet = {"examples": [examples_at(tmp_path, payload="FORMAT_PARQUET", file_format="FILE_FORMAT_PARQUET")]}
    run(tmp_path, FEATURES[:3] + FEATURES[4:], inputs=parquet)
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "fast/out")


def preprocess(inputs):
    return {
        "lower": tf.strings.lower(inputs["name"]),
        "bucket": tft.bucketize(inputs["score"], 2),
        "tags": inputs["tags"],
        "late": tf.sparse.map_values(tf.as_string, inputs["late"]),
    }


@pytest.fixture(scope="module")
def transformed(tmp_path_factory):
    """Return a folder of rows, valid as tf.Examples and as tf.SequenceExamples, and a transform graph for them."""
    folder = tmp_path_factory.mktemp("transformed")
    rows = [
        {"name": b"A", "score": 0.0, "tags": [b"x|y"], "raw": b"r1"},
        {"name": b"a", "score": 1.0, "raw": b"r2", "late": [0.5, 2.0]},
        {"name": b"B", "score": 2.0, "tags": [b"z", b""], "raw": b"r1"},
    ]
    write_split(folder, rows)
    spec = {
        "name": tf.io.FixedLenFeature([], tf.string),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "tags": tf.io.VarLenFeature(tf.string),
        "late": tf.io.VarLenFeature(tf.float32),
    }
    source = tfxio.TFExampleRecord(
        str(folder / "Split-train" / "*"), schema=schema_utils.schema_from_feature_spec(spec)
    )
    with beam.Pipeline(argv=[*IN_PROCESS]) as pipeline, tft_beam.Context(str(folder / "scratch")):
        read = pipeline | source.BeamSource()
        transform = (read, source.TensorAdapterConfig()) | tft_beam.AnalyzeDataset(preprocess)
        _ = transform | tft_beam.WriteTransformFn(str(folder / "transform"))
        raw = dataset_metadata.DatasetMetadata.from_feature_spec(spec)
        _ = raw | tft_beam.WriteMetadata(str(folder / "transform" / "metadata"), pipeline)
    graph = standard_artifacts.TransformGraph()
    graph.uri = str(folder / "transform")
    return folder, graph


AFTER = [
    feature("lower", after_transform=True),
    feature("bucket", after_transform=True),
    feature("tags", after_transform=True, separator="|"),
    feature("late", after_transform=True),
    feature("raw"),
]


@pytest.mark.parametrize("payload", ["FORMAT_TF_EXAMPLE", "FORMAT_TF_SEQUENCE_EXAMPLE"])
def test_columns_after_transform_are_counted_in_the_same_pass(transformed, payload):
    folder, graph = transformed
    inputs = {"examples": [examples_at(folder, payload=payload)], "transform_graph": [graph]}
    _, found = run(folder, AFTER, inputs=inputs, out=payload)
    counted = {name: tokens_and_counts(vocabulary) for name, vocabulary in found.items()}
    assert counted["lower"] == {b"a": 2, b"b": 1}
    assert sum(counted["bucket"].values()) == 3
    assert counted["tags"] == {b"x": 1, b"y": 1, b"z": 1}
    assert sorted(counted["late"].values()) == [1, 1]
    assert counted["raw"] == {b"r1": 2, b"r2": 1}
    assert found["bucket"].features["bucket"].column.dtype == "int64"


def test_a_column_that_transform_does_not_give_is_named(transformed):
    folder, graph = transformed
    with pytest.raises(DataError, match="no column 'upper': it has bucket, late, lower, tags"):
        run(folder, [feature("upper", after_transform=True)], inputs={"transform_graph": [graph]})


def test_row_whose_float_list_would_end_the_process_is_named(transformed, tmp_path):
    _, graph = transformed
    broken_floats = b"\x0a\x0d\x0a\x0b\x0a\x04late\x12\x03\x12\x01\x0a"
    good = example(name=b"A", score=0.0, raw=b"r")
    write_split(tmp_path, [good, broken_floats], shards=1)
    with pytest.raises(DataError, match=r"row 1: .*1 of 2 rows are bad"):
        run(tmp_path, [feature("lower", after_transform=True)], inputs={"transform_graph": [graph]})


@pytest.mark.slow
def test_bytes_are_the_same_in_several_processes(tmp_path):
    write_split(tmp_path, ROWS * 50, shards=4)
    run(tmp_path, FEATURES, out="one")
    several = (*IN_PROCESS, "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    run(tmp_path, FEATURES, arguments=several, out="several")
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "several")


def test_the_component_passes_parameters_and_gives_vocabularies():
    component = VocabularyGen(
        examples=types.Channel(type=standard_artifacts.Examples),
        features=FEATURES,
        vocabularies={"user": VocabularyRule(min_count=2)},
    )
    assert component.outputs["vocabularies"].type is Vocabularies
    assert component.exec_properties["vocabulary_rules"] == '{"user": {"min_count": 2, "max_size": null}}'
    assert component.exec_properties["splits"] == '["train"]'


def test_component_without_splits_is_refused():
    with pytest.raises(ConfigError, match="`splits` of VocabularyGen is empty"):
        VocabularyGen(examples=types.Channel(type=standard_artifacts.Examples), features=FEATURES, splits=[])
