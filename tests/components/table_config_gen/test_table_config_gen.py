import json

import numpy as np
import pyarrow as pa
import pytest
from tfx import types
from tfx.types import channel_utils

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.table_config_gen import TableConfigGen
from components.table_config_gen.executor import Executor
from embedding_core.checkpoint.checkpoint_manifest import Manifest, write_manifest
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError, VocabularyError
from embedding_core.vocabulary import FeatureSummary, Vocabulary, save_vocabulary

pytestmark = pytest.mark.tfx

FEATURES = [
    {"name": "company", "vocabulary": "company", "column": {"name": "company"}},
    {"name": "stops", "vocabulary": "area", "column": {"name": "stops"}, "max_sequence_length": "auto"},
]


def vocabulary(name: str, size: int, feature: str) -> Vocabulary:
    lengths = {"p50": 1, "p90": 2, "p95": 3, "p99": 5, "max": 9}
    column = ColumnConfig(name=feature, dtype="int64")
    return Vocabulary(
        name=name,
        tokens=pa.array([b"%d" % token for token in range(size)], pa.large_binary()),
        counts=np.arange(size, 0, -1),
        total_count=size * (size + 1) // 2,
        distinct=size,
        features={feature: FeatureSummary(column=column, rows=9, missing=0, token_count=9, lengths=lengths)},
    )


@pytest.fixture
def vocabularies(tmp_path) -> Vocabularies:
    artifact = Vocabularies()
    artifact.uri = str(tmp_path / "vocabularies")
    (tmp_path / "vocabularies").mkdir()
    for made in (vocabulary("company", 40, "company"), vocabulary("area", 7, "stops")):
        save_vocabulary(made, artifact.uri)
    return artifact


def run(vocabularies: types.Artifact, tmp_path, inputs=None, **properties) -> TableConfigs:
    output = TableConfigs()
    output.uri = str(tmp_path / "not" / "there" / "yet")
    properties = {"features": json.dumps(FEATURES), "tables": "{}", "topology": None, **properties}
    Executor().Do({"vocabularies": [vocabularies], **(inputs or {})}, {"table_configs": [output]}, properties)
    return output


def read(artifact: types.Artifact, name: str):
    with open(f"{artifact.uri}/{name}") as file:
        return json.load(file)


def test_component_has_typed_channels(vocabularies):
    component = TableConfigGen(channel_utils.as_channel([vocabularies]), FEATURES, topology="v3-8")
    assert component.outputs["table_configs"].type is TableConfigs
    given = {key: value for key, value in component.exec_properties.items() if value is not None}
    assert given == {"features": json.dumps(FEATURES), "tables": "{}", "topology": "v3-8"}


def test_executor_writes_tables_plan_and_digests(vocabularies, tmp_path):
    output = run(vocabularies, tmp_path, tables='{"area": {"dim": 4}}', topology="v3-8")
    config = EmbeddingConfig.from_json(json.dumps(read(output, "embedding_config.json")))
    assert [(table.name, table.vocabulary_size, table.dim) for table in config.tables] == [
        ("company", 41, 16),
        ("area", 8, 4),
    ]
    assert config.feature("stops").max_sequence_length == 3
    assert read(output, "vocabularies.json")["area"] == vocabulary("area", 7, "stops").digest
    assert read(output, "plan.json")["topology"]["tables"]["area"]["rows_per_host"] == [8]


def test_tables_keep_dims_of_the_checkpoint_training_starts_from(vocabularies, tmp_path):
    earlier = EmbeddingCheckpoint()
    earlier.uri = str(tmp_path / "checkpoint")
    tables = [TableConfig(name=name, vocabulary_size=9, dim=24) for name in ("company", "area", "gone")]
    (tmp_path / "checkpoint").mkdir()
    features = tuple(FeatureConfig(name=table.name, table=table.name) for table in tables)
    trained = EmbeddingConfig(tables=tuple(tables), features=features)
    write_manifest(earlier.uri, Manifest(step=1, config=trained, vocabularies={}))
    output = run(vocabularies, tmp_path, inputs={"earlier_checkpoint": [earlier]}, tables='{"area": {"dim": 4}}')
    config = EmbeddingConfig.from_json(json.dumps(read(output, "embedding_config.json")))
    assert {table.name: table.dim for table in config.tables} == {"company": 24, "area": 4}
    output = run(vocabularies, tmp_path, inputs={"earlier_checkpoint": [earlier]}, tables='{"*": {"dim": 16}}')
    assert [table["dim"] for table in read(output, "embedding_config.json")["tables"]] == [16, 16]


def test_executor_records_facts(vocabularies, tmp_path):
    output = run(vocabularies, tmp_path)
    assert (output.fact("tables"), output.fact("rows"), output.fact("topology")) == (2, 49, None)
    assert output.fact("bytes") == read(output, "plan.json")["total"]["table_bytes"] * 2


def test_same_input_gives_the_same_bytes(vocabularies, tmp_path):
    first, second = run(vocabularies, tmp_path / "1"), run(vocabularies, tmp_path / "2")
    for name in ("embedding_config.json", "plan.json", "vocabularies.json"):
        assert read(first, name) == read(second, name)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"tables": '{"compny": {}}'}, "did you mean 'company'"),
        ({"tables": "{"}, "`tables` is '{': it must be JSON"),
        ({"topology": "v9-8"}, "`topology` is 'v9-8'"),
        ({"topology": "v2-8", "tables": '{"area": {"oov_rows": 3000000000}}'}, r"without 'area' \(.* GiB\)"),
    ],
)
def test_mistake_is_one_clear_error(vocabularies, tmp_path, properties, message):
    with pytest.raises(ConfigError, match=message):
        run(vocabularies, tmp_path, **properties)


def test_damaged_vocabulary_is_refused(vocabularies, tmp_path):
    with open(f"{vocabularies.uri}/area.txt", "ab") as file:
        file.write(b"x\n")
    with pytest.raises(VocabularyError, match="area"):
        run(vocabularies, tmp_path)


def test_vocabulary_of_a_feature_is_by_default_that_of_its_name(vocabularies):
    features = [{"name": "company", "column": {"name": "company"}}, FEATURES[1]]
    component = TableConfigGen(vocabularies=channel_utils.as_channel([vocabularies]), features=features)
    assert json.loads(component.exec_properties["features"]) == FEATURES
