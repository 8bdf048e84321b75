import json

import pytest
from tfx.types import channel_utils

from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.table_config_gen import TableConfigGen
from components.table_config_gen.executor import Executor
from embedding_core.checkpoint.checkpoint_manifest import Manifest, write_manifest
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.vocabulary import FeatureSummary, save_vocabulary
from tests.support.artifacts import artifact, fact
from tests.support.vocabularies import vocabulary_of

pytestmark = pytest.mark.tfx

FEATURES = [
    {"name": "company", "vocabulary": "company", "column": {"name": "company"}},
    {"name": "stops", "vocabulary": "area", "column": {"name": "stops"}, "max_sequence_length": "auto"},
]


def vocabulary(name, size, feature):
    lengths = {"p50": 1, "p90": 2, "p95": 3, "p99": 5, "max": 9}
    column = ColumnConfig(name=feature, dtype="int64")
    summary = FeatureSummary(column=column, rows=9, missing=0, token_count=9, lengths=lengths)
    return vocabulary_of([b"%d" % token for token in range(size)], name, features={feature: summary})


@pytest.fixture
def vocabularies(tmp_path):
    made = artifact(Vocabularies, tmp_path / "vocabularies")
    for words in (vocabulary("company", 40, "company"), vocabulary("area", 7, "stops")):
        save_vocabulary(words, made.uri)
    return made


def run(vocabularies, tmp_path, inputs=None, **properties):
    output = artifact(TableConfigs, tmp_path / "not" / "there" / "yet", made=False)
    properties = {"features": json.dumps(FEATURES), "tables": "{}", "topology": None, **properties}
    Executor().Do({"vocabularies": [vocabularies], **(inputs or {})}, {"table_configs": [output]}, properties)
    return output


def read(output, name):
    with open(f"{output.uri}/{name}") as file:
        return json.load(file)


def test_executor_writes_tables_plan_digests_and_facts(vocabularies, tmp_path):
    output = run(vocabularies, tmp_path, tables='{"area": {"dim": 4}}', topology="v3-8")
    config = EmbeddingConfig.from_json(json.dumps(read(output, "embedding_config.json")))
    assert [(table.name, table.vocabulary_size, table.dim) for table in config.tables] == [
        ("company", 41, 16),
        ("area", 8, 4),
    ]
    assert config.feature("stops").max_sequence_length == 3
    assert read(output, "vocabularies.json")["area"] == vocabulary("area", 7, "stops").digest
    assert read(output, "plan.json")["topology"]["tables"]["area"]["rows_per_host"] == [8]
    assert (fact(output, "tables"), fact(output, "rows"), fact(output, "topology")) == (2, 49, "v3-8")
    assert fact(output, "bytes") == read(output, "plan.json")["total"]["table_bytes"] * 2


def test_tables_keep_dims_of_the_checkpoint_training_starts_from(vocabularies, tmp_path):
    earlier = artifact(EmbeddingCheckpoint, tmp_path / "checkpoint")
    tables = [TableConfig(name=name, vocabulary_size=9, dim=24) for name in ("company", "area", "gone")]
    features = tuple(FeatureConfig(name=table.name, table=table.name) for table in tables)
    trained = EmbeddingConfig(tables=tuple(tables), features=features)
    write_manifest(earlier.uri, Manifest(step=1, config=trained, vocabularies={}))
    output = run(vocabularies, tmp_path, inputs={"earlier_checkpoint": [earlier]}, tables='{"area": {"dim": 4}}')
    config = EmbeddingConfig.from_json(json.dumps(read(output, "embedding_config.json")))
    assert {table.name: table.dim for table in config.tables} == {"company": 24, "area": 4}
    output = run(vocabularies, tmp_path, inputs={"earlier_checkpoint": [earlier]}, tables='{"*": {"dim": 16}}')
    assert [table["dim"] for table in read(output, "embedding_config.json")["tables"]] == [16, 16]


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


def test_vocabulary_of_a_feature_is_by_default_that_of_its_name(vocabularies):
    features = [{"name": "company", "column": {"name": "company"}}, FEATURES[1]]
    component = TableConfigGen(vocabularies=channel_utils.as_channel([vocabularies]), features=features)
    assert json.loads(component.exec_properties["features"]) == FEATURES
