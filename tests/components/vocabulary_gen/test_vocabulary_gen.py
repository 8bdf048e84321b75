"""VocabularyGen's executor under Beam, on small files."""

from __future__ import annotations

import json

import apache_beam as beam
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils
from tfx import types
from tfx.types import standard_artifacts
from tfx_bsl.public import tfxio

from components.artifacts import Vocabularies
from components.vocabulary_gen import VocabularyGen
from components.vocabulary_gen.counting_plan import Evolution, VocabularyRule
from components.vocabulary_gen.executor import REPORT_FILE
from embedding_core.errors import ConfigError, DataError
from pipelines.pipeline.run_target import IN_PROCESS
from tests.support.artifacts import artifact, examples_at, fact, write_split
from tests.support.tf_examples import example
from tests.support.vocabulary_runs import bytes_of, count, feature

pytestmark = pytest.mark.tfx


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
    made, found = count(tmp_path, FEATURES, out="out")
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
    facts = fact(made, "vocabularies")
    assert facts["user"]["digest"] == found["user"].digest
    assert (fact(made, "rows"), fact(made, "bad_rows"), facts["user"]["coverage"]) == (4, 0, 7 / 8)


def test_bytes_do_not_depend_on_how_rows_are_spread(tmp_path):
    for name, files, compression in (("one", 1, ""), ("four", 4, "GZIP")):
        write_split(tmp_path / name, ROWS, files=files, compression=compression)
        count(tmp_path / name, FEATURES, out="out")
    assert bytes_of(tmp_path / "one/out") == bytes_of(tmp_path / "four/out")


BROKEN = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"


def test_rows_that_do_not_parse_are_set_aside_within_the_rate(tmp_path):
    write_split(tmp_path, [ROWS[0], BROKEN, *ROWS[1:]])
    with pytest.raises(DataError, match=r"data-00000-of-00001.gz', row 1: .*; 1 of 5 rows are bad"):
        count(tmp_path, FEATURES, out="refused")
    rules = {"user": {"min_count": 2}, "item": {"max_size": 1}}
    made, found = count(tmp_path, FEATURES, out="out", rules=rules, max_bad_row_rate=0.2)
    assert (fact(made, "rows"), fact(made, "bad_rows")) == (4, 1)
    assert tokens_and_counts(found["user"]) == {b"u1": 4, b"u2": 2}
    assert tokens_and_counts(found["item"]) == {b"7": 2}
    report = json.loads((tmp_path / "out" / REPORT_FILE).read_text())
    assert [bad["row"] for entry in report for bad in entry.get("bad", [])] == [1]


def test_empty_lists_are_missing_values(tmp_path):
    empty = tf.train.Example()
    for name, kind in (("user", "bytes_list"), ("item", "int64_list"), ("price", "float_list"), ("tags", "float_list")):
        getattr(empty.features.feature[name], kind).SetInParent()
    write_split(tmp_path, [*ROWS, empty.SerializeToString()])
    _, found = count(tmp_path, FEATURES, out="out")
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
    write_split(tmp_path, rows)
    with pytest.raises((DataError, ConfigError), match=message):
        count(tmp_path, features, out="out")


def test_mixed_types_in_two_files_name_both(tmp_path):
    write_split(tmp_path, [{"a": b"x"}, {"a": 1}], files=2)
    with pytest.raises(DataError, match=r"mixed type: string in .*00000-of.*, int64 in .*00001-of"):
        count(tmp_path, [feature("a")], out="out")


def test_a_damaged_file_or_an_unknown_split_is_named(tmp_path):
    write_split(tmp_path, ROWS, compression="")
    path = next((tmp_path / "Split-train").iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"of-00001' is damaged.*first 3 rows"):
        count(tmp_path, FEATURES, out="out")
    with pytest.raises(DataError, match="no split 'test'"):
        count(tmp_path, FEATURES, out="out", splits='["test"]')


def test_a_column_first_seen_late_has_its_dtype(tmp_path):
    write_split(tmp_path, [{"a": b"x"}] * 600 + [{"a": b"x", "late": 5}])
    _, found = count(tmp_path, [feature("a"), feature("late")], out="out")
    assert (found["late"].features["late"].column.dtype, found["late"].features["late"].missing) == ("int64", 600)


def test_files_that_training_does_not_read_are_refused(tmp_path):
    write_split(tmp_path, ROWS)
    parquet = examples_at(tmp_path, payload="FORMAT_PARQUET", file_format="FILE_FORMAT_PARQUET")
    with pytest.raises(DataError, match=r"the examples are FORMAT_PARQUET in files .*: VocabularyGen and"):
        count(tmp_path, FEATURES, out="out", examples=parquet)


def preprocess(inputs):
    return {
        "lower": tf.strings.lower(inputs["name"]),
        "bucket": tft.bucketize(inputs["score"], 2),
        "tags": inputs["tags"],
        "late": tf.sparse.map_values(tf.as_string, inputs["late"]),
    }


@pytest.fixture(scope="module")
def transformed(tmp_path_factory):
    """Return a folder of rows, and a transform graph for them."""
    folder = tmp_path_factory.mktemp("transformed")
    rows = [
        {"name": b"A", "score": 0.0, "tags": [b"x|y"], "raw": b"r1"},
        {"name": b"a", "score": 1.0, "raw": b"r2", "late": [0.5, 2.0]},
        {"name": b"B", "score": 2.0, "tags": [b"z", b""], "raw": b"r1"},
    ]
    write_split(folder, rows, files=2)
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
    return folder, artifact(standard_artifacts.TransformGraph, folder / "transform")


AFTER = [
    feature("lower", after_transform=True),
    feature("bucket", after_transform=True),
    feature("tags", after_transform=True, separator="|"),
    feature("late", after_transform=True),
    feature("raw"),
]


def test_columns_after_transform_are_counted_in_the_same_pass(transformed):
    folder, graph = transformed
    _, found = count(folder, AFTER, out="after", graph=graph)
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
        count(folder, [feature("upper", after_transform=True)], out="out", graph=graph)


def test_row_whose_float_list_would_end_the_process_is_named(transformed, tmp_path):
    _, graph = transformed
    broken_floats = b"\x0a\x0d\x0a\x0b\x0a\x04late\x12\x03\x12\x01\x0a"
    write_split(tmp_path, [example({"name": b"A", "score": 0.0, "raw": b"r"}), broken_floats])
    with pytest.raises(DataError, match=r"row 1: .*1 of 2 rows are bad"):
        count(tmp_path, [feature("lower", after_transform=True)], out="out", graph=graph)


def test_component_passes_its_parameters_and_gives_vocabularies():
    examples, base = types.Channel(type=standard_artifacts.Examples), types.Channel(type=Vocabularies)
    component = VocabularyGen(
        examples=examples,
        features=FEATURES,
        vocabularies={"user": VocabularyRule(min_count=2)},
        base_vocabularies=base,
        evolution=Evolution(mode="append"),
    )
    assert component.outputs["vocabularies"].type is Vocabularies
    assert component.spec.inputs["base_vocabularies"] is base
    assert component.exec_properties["vocabulary_rules"] == '{"user": {"min_count": 2, "max_size": null}}'
    assert component.exec_properties["evolution"] == '{"mode": "append", "expire_after": null}'
    assert component.exec_properties["splits"] == '["train"]'
    with pytest.raises(ConfigError, match="`splits` of VocabularyGen is empty"):
        VocabularyGen(examples=examples, features=FEATURES, splits=[])
