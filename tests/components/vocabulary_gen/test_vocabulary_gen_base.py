"""VocabularyGen with the vocabularies of a previous run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf
from tfx import types
from tfx.dsl.components.base import base_beam_executor
from tfx.types import standard_artifacts

from components.artifacts import Vocabularies
from components.vocabulary_gen import VocabularyGen
from components.vocabulary_gen.executor import Executor
from components.vocabulary_gen.vocabulary_rules import Evolution
from embedding_core.errors import ConfigError, DataError, VocabularyError
from embedding_core.vocabulary import load_vocabularies
from pipelines.pipeline.run_target import IN_PROCESS

pytestmark = pytest.mark.tfx

FEATURES = [
    {"name": "user", "column": {"name": "user"}},
    {"name": "seen", "column": {"name": "seen"}, "vocabulary": "user"},
    {"name": "tags", "column": {"name": "tags", "separator": "|"}},
]
MONDAY = [
    {"user": [b"u1"], "seen": [b"u2", b"u1"], "tags": [b"a|b"]},
    {"user": [b"u2"], "seen": [], "tags": [b"a"]},
]
TUESDAY = [
    {"user": [b"u3"], "seen": [b"u1", b"u3"], "tags": [b"b|c|c"]},
    {"user": [b"u1"], "seen": [b"u4", b"u5"], "tags": [b"c|"]},
    {"user": [b"u1"], "seen": [], "tags": [b"b"]},
    {"user": [], "seen": [b"u1"], "tags": [b""]},
]


def write(folder, rows, shards=2):
    (folder / "Split-train").mkdir(parents=True)
    for shard in range(shards):
        with tf.io.TFRecordWriter(str(folder / "Split-train" / f"examples-{shard}.gz"), "GZIP") as writer:
            for row in rows[shard::shards]:
                message = tf.train.Example()
                for name, values in row.items():
                    message.features.feature[name].bytes_list.value.extend(values)
                writer.write(message.SerializeToString())


def run(folder, base=None, rule=None, out="out", payload="FORMAT_TF_EXAMPLE", mode="in_memory", features=FEATURES):
    examples, vocabularies = standard_artifacts.Examples(), Vocabularies()
    examples.uri, examples.split_names, vocabularies.uri = str(folder), '["train"]', str(folder / out)
    examples.set_string_custom_property("payload_format", payload)
    examples.set_string_custom_property("file_format", "tfrecords_gzip")
    arguments = [*IN_PROCESS, f"--direct_running_mode={mode}", "--direct_num_workers=2"]
    executor = Executor(base_beam_executor.BaseBeamExecutor.Context(beam_pipeline_args=arguments))
    properties = {"features": json.dumps(features), "evolution": json.dumps(rule or {})}
    inputs = {"examples": [examples], **({"base_vocabularies": [base]} if base else {})}
    executor.Do(inputs, {"vocabularies": [vocabularies]}, properties)
    return vocabularies, load_vocabularies(vocabularies.uri)


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Return the folders of two days, and the vocabularies of the first day."""
    monday, tuesday = (tmp_path_factory.mktemp(name) for name in ("monday", "tuesday"))
    write(monday, MONDAY)
    write(tuesday, TUESDAY)
    return monday, tuesday, run(monday)[0]


def folder_bytes(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def test_append_keeps_the_rows_and_measures_the_drift(days):
    _, tuesday, base = days
    artifact, found = run(tuesday, base, {"mode": "append", "expire_after": 1}, out="append")
    assert found["user"].tokens.to_pylist() == [b"u1", b"u2", b"u3", b"u4", b"u5"]
    assert found["tags"].tokens.to_pylist() == [b"a", b"b", b"c"]
    assert found["user"].counts.tolist() == [4, 0, 2, 1, 1]
    facts = artifact.fact("vocabularies")
    assert facts["user"]["evolution"]["expired"] == 1
    # New for user: u3, in 1 of 4 rows, 1 of 3 tokens; for seen: u3, u4 and u5, in 2 of 4 rows, 3 of 5 tokens;
    # for tags: "c", in 2 of 4 rows, 3 of 5 tokens.
    assert facts["user"]["drift"]["user"] == {"new_rows": 1 / 4, "new_tokens": 1 / 3}
    assert facts["user"]["drift"]["seen"] == {"new_rows": 2 / 4, "new_tokens": 3 / 5}
    assert facts["tags"]["drift"]["tags"] == {"new_rows": 2 / 4, "new_tokens": 3 / 5}


def test_rerank_is_the_default_and_moves_rows(days):
    _, tuesday, base = days
    _, found = run(tuesday, base, out="rerank")
    assert found["user"].tokens.to_pylist() == [b"u1", b"u2", b"u3", b"u4", b"u5"]
    assert found["tags"].tokens.to_pylist() == [b"c", b"a", b"b"]
    assert found["tags"].evolution.last_counts.tolist() == [3, 2, 2]


def test_other_payloads_give_the_same_bytes(days):
    _, tuesday, base = days
    run(tuesday, base, out="fast")
    run(tuesday, base, out="tfxio", payload="FORMAT_TF_SEQUENCE_EXAMPLE")
    assert folder_bytes(tuesday / "fast") == folder_bytes(tuesday / "tfxio")


@pytest.mark.slow
def test_bytes_are_the_same_in_several_processes(days):
    _, tuesday, base = days
    run(tuesday, base, {"mode": "append"}, out="one")
    run(tuesday, base, {"mode": "append"}, out="several", mode="multi_processing")
    assert folder_bytes(tuesday / "one") == folder_bytes(tuesday / "several")


def test_feature_that_the_base_does_not_know_is_counted_anew(days, tmp_path):
    _, tuesday, base = days
    other = Vocabularies()
    other.uri = str(tmp_path)
    for path in Path(base.uri).glob("user.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    artifact, found = run(tuesday, other, out="partly")
    assert found["tags"].evolution is None
    assert "drift" not in artifact.fact("vocabularies")["tags"]


def test_damaged_base_is_refused_before_anything_is_counted(days, tmp_path):
    _, tuesday, base = days
    for path in Path(base.uri).glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"u1", b"u9"))
    damaged = Vocabularies()
    damaged.uri = str(tmp_path)
    with pytest.raises(VocabularyError, match=r"vocabulary 'user'.*changed or damaged"):
        run(tuesday, damaged, out="never")
    assert not (tuesday / "never").exists()


def test_base_that_is_not_there_is_one_error(days):
    nowhere = Vocabularies()
    nowhere.uri = "/no/such/folder"
    with pytest.raises(VocabularyError, match=r"'/no/such/folder' cannot be read as a folder of vocabularies"):
        run(days[1], nowhere, out="never")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"mode": "shuffle"}, "`mode` of evolution is 'shuffle': it must be one of "),
        ({"expire_after": 0}, "`expire_after` of evolution is 0: it must be a whole number of at least 1"),
        ({"expire_afer": 2}, "did you mean 'expire_after'"),
    ],
)
def test_rule_that_is_none_is_one_error(days, rule, message):
    _, tuesday, base = days
    with pytest.raises(ConfigError, match=message):
        run(tuesday, base, rule, out="never")


def test_component_takes_the_base_as_an_optional_input():
    channel = types.Channel(type=Vocabularies)
    examples = types.Channel(type=standard_artifacts.Examples)
    component = VocabularyGen(
        examples=examples, features=[], base_vocabularies=channel, evolution=Evolution(mode="append")
    )
    assert component.spec.inputs["base_vocabularies"] is channel
    assert component.exec_properties["evolution"] == '{"mode": "append", "expire_after": null}'


@pytest.mark.parametrize("tags", [[], [b""]])
def test_feature_may_be_empty_only_if_asked_for_and_in_the_base(tmp_path, tags):
    write(tmp_path / "monday", MONDAY)
    write(tmp_path / "tuesday", [{"user": [b"u1"], "seen": [b"u1"], "tags": tags}], shards=1)
    allowed = [{**feature, "may_be_empty": True} for feature in FEATURES]
    base, before = run(tmp_path / "monday")
    _, after = run(tmp_path / "tuesday", base, features=allowed)
    assert after["tags"].tokens.equals(before["tags"].tokens)
    summary = after["tags"].features["tags"]
    assert (summary.column, summary.token_count) == (before["tags"].features["tags"].column, 0)
    for given in ({"base": base}, {"features": allowed}):
        with pytest.raises(DataError, match=r"'tags'.* (is empty in all|has no value in any of the) 1 rows"):
            run(tmp_path / "tuesday", **given)


def test_a_column_of_several_values_in_the_base_stays_one(tmp_path):
    write(tmp_path / "monday", MONDAY)
    write(tmp_path / "tuesday", [{"user": [b"u1"], "seen": [b"u1"], "tags": [b"a"]}], shards=1)
    base, before = run(tmp_path / "monday")
    _, after = run(tmp_path / "tuesday", base)
    assert before["user"].features["seen"].column.multivalent
    assert after["user"].features["seen"].column.multivalent
    assert not after["user"].features["user"].column.multivalent
