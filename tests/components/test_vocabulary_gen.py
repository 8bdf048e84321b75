"""VocabularyGen's executor under Beam, on small files of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf
from tfx.dsl.components.base import base_beam_executor
from tfx.types import standard_artifacts

from components.artifacts import Vocabularies
from components.vocabulary_gen.executor import REPORT_FILE, Executor
from embedding_core.errors import ConfigError, DataError
from embedding_core.vocabulary import load_vocabularies

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


def run(folder, features, rules=None, inputs=None, arguments=("--direct_running_mode=in_memory",), out="out", **more):
    vocabularies = Vocabularies()
    vocabularies.uri = str(folder / out)
    executor = Executor(base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=list(arguments)))
    properties = {"features": json.dumps(features), "vocabulary_rules": json.dumps(rules or {}), **more}
    executor.Do({"examples": [examples_at(folder)], **(inputs or {})}, {"vocabularies": [vocabularies]}, properties)
    return vocabularies, load_vocabularies(vocabularies.uri, list_folder=files_of)


def files_of(folder):
    return [path.name for path in Path(folder).iterdir() if path.is_file()]


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
