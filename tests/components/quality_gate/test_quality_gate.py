"""QualityGate on hand-made artifacts of a two-tower run whose rows are all positives."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from tfx.types import artifact_utils, channel_utils, standard_artifacts

from components.artifacts import TableConfigs, Vocabularies
from components.quality_gate import QualityGate
from components.quality_gate.executor import QUALITY_FILE, Executor
from embedding_core.checkpoint import write_training_checkpoint
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.model_inputs import build_model
from embedding_core.quality_rules import Rules
from embedding_core.tasks import POSITIVE
from embedding_core.training import Negatives, TrainingConfig
from embedding_core.training.finished_run import RunDescription
from embedding_core.vocabulary import Vocabulary, save_vocabulary

pytestmark = pytest.mark.tfx

ITEMS = [b"i%d" % number for number in range(60)]
USERS = [b"u%d" % number for number in range(20)]
MODULE = "pipelines.models.two_tower"
TOWERS = {"query_features": ["user"], "candidate_features": ["item"]}


def of(name, tokens):
    table = TableConfig(name=name, vocabulary=name, vocabulary_size=len(tokens), dim=21)
    return table, FeatureConfig(name=name, table=name, column=ColumnConfig(name=name))


CONFIG = EmbeddingConfig(
    tables=(of("user", USERS)[0], of("item", ITEMS)[0]), features=(of("user", USERS)[1], of("item", ITEMS)[1])
)


def rows():
    """Yield purchases: about half are of ten items that all users buy, the others of three items per user."""
    chance = np.random.default_rng(3)
    for _ in range(300):
        user = int(chance.integers(20))
        item = chance.integers(10) if chance.random() < 0.5 else 10 + (user * 3 + chance.integers(3)) % 50
        yield {"user": USERS[user], "item": ITEMS[item]}


def made(cls, folder, name):
    artifact = cls()
    artifact.uri = str(folder / name)
    os.makedirs(artifact.uri)
    return artifact


def write_rows(folder, number):
    os.makedirs(folder)
    with tf.io.TFRecordWriter(f"{folder}/data.gz", tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for _, row in zip(range(number), rows(), strict=False):
            example = tf.train.Example()
            for name, value in row.items():
                example.features.feature[name].bytes_list.value.append(value)
            writer.write(example.SerializeToString())


def write_run(folder, digests, knows_users):
    """Write a run whose model ranks the three items of each user first, or whose tables are all zeros."""
    engine, model = HostEngine(CONFIG, seed=1, with_slots=False), build_model(MODULE, CONFIG, (), TOWERS)
    users, items = np.zeros((20, 21), np.float32), np.zeros((60, 21), np.float32)
    users[:, 1:] = np.eye(20)
    for user in range(20):
        items[10 + (user * 3 + np.arange(3)) % 50, 1 + user] = 1.0
    items[:10, 0] = 0.5  # two_tower adds column 0 as a bias: a higher logit for the items that all users buy
    for name, values in (("user", users), ("item", items)):
        engine.embedding_tables[name].assign(values if knows_users else np.zeros_like(values))
    checkpoint = tf.train.Checkpoint(embedding=engine.tables, model=model, step=tf.Variable(7, dtype=tf.int64))
    checkpoint.save_counter.assign_add(1)
    written = write_training_checkpoint(f"{folder}/checkpoints", 7, checkpoint.write)
    RunDescription(
        model=MODULE, arguments=TOWERS, config=CONFIG, dense=(), tasks=(POSITIVE,), weight=None, step=7,
        training=TrainingConfig(steps=7, negatives=Negatives(feature="item")),
        checkpoint=os.path.basename(written.prefix), vocabularies=digests,
    ).save(folder)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    def make(*, knows_users, eval_rows=300):
        inputs = {
            "model_run": made(standard_artifacts.ModelRun, tmp_path, "model_run"),
            "examples": made(standard_artifacts.Examples, tmp_path, "examples"),
            "vocabularies": made(Vocabularies, tmp_path, "vocabularies"),
            "table_configs": made(TableConfigs, tmp_path, "table_configs"),
        }
        inputs["examples"].split_names = artifact_utils.encode_split_names(["train", "eval"])
        for split, number in (("train", 300), ("eval", eval_rows)):
            write_rows(f"{inputs['examples'].uri}/Split-{split}", number)
        digests = {}
        for name, tokens in (("user", USERS), ("item", ITEMS)):
            ones = np.ones(len(tokens), np.int64)
            size = len(tokens)
            vocabulary = Vocabulary(
                name=name, tokens=pa.array(tokens, pa.large_binary()), counts=ones, total_count=size, distinct=size
            )
            save_vocabulary(vocabulary, inputs["vocabularies"].uri)
            digests[name] = vocabulary.digest
        (tmp_path / "table_configs" / "embedding_config.json").write_text(CONFIG.to_json())
        write_run(inputs["model_run"].uri, digests, knows_users)
        return inputs

    return make


def judge(inputs, folder, gates=(), **rules):
    blessing = made(standard_artifacts.ModelBlessing, folder, "blessing")
    rules = {"draws_negatives": True, **rules}
    properties = {"rules": json.dumps(rules), "seed": 1, "gates": json.dumps(list(gates))}
    Executor().Do({key: [value] for key, value in inputs.items()}, {"blessing": [blessing]}, properties)
    with open(f"{blessing.uri}/{QUALITY_FILE}") as file:
        return blessing, json.load(file)


def test_model_better_than_popularity_is_blessed_with_figures(run, tmp_path):
    blessing, quality = judge(run(knows_users=True), tmp_path, min_rows=100, min_rows_per_class=10)
    assert blessing.get_int_custom_property("blessed") == 1
    assert blessing.get_string_custom_property("reason") == ""
    assert quality["retrieval"]["metrics"]["Recall@10"] > 0.8 > quality["retrieval"]["popularity"]["Recall@10"] > 0.4
    assert quality["retrieval"]["queries"] == quality["eval_split"]["rows"] == 300
    assert quality["eval_split"]["features"]["item"]["unknown_tokens"] == 0
    assert {check["name"] for check in quality["checks"]} == {"rows of the eval split", "Recall@10"}
    assert os.path.isfile(f"{blessing.uri}.lineage.json")


def test_model_worse_than_popularity_is_refused(run, tmp_path):
    """All predictions are equal, so Recall@10 is 10/60, as by chance. AUC is undefined without negatives."""
    blessing, quality = judge(run(knows_users=False), tmp_path)
    assert blessing.get_int_custom_property("blessed") == 0
    assert "Recall@10 is 0.1667: it must be at least popularity's" in blessing.get_string_custom_property("reason")
    assert quality["retrieval"]["metrics"]["Recall@10"] == pytest.approx(10 / 60)


def test_bound_of_minus_one_accepts_it(run, tmp_path):
    retrieval = {"Recall@10": {"min_over_popularity": -1.0}}
    blessing, _ = judge(run(knows_users=False), tmp_path, retrieval=retrieval)
    assert blessing.get_int_custom_property("blessed") == 1


def test_six_rows_are_refused(run, tmp_path):
    blessing, _ = judge(run(knows_users=True, eval_rows=6), tmp_path, min_rows=100)
    assert "rows of the eval split: 6" in blessing.get_string_custom_property("reason")


def test_tables_of_another_run_are_an_error(run, tmp_path):
    inputs = run(knows_users=True)
    other = CONFIG.to_json().replace('"combiner": "mean"', '"combiner": "sum"')
    (tmp_path / "table_configs" / "embedding_config.json").write_text(other)
    with pytest.raises(CheckpointError, match="same run"):
        judge(inputs, tmp_path)


def test_vocabulary_of_another_run_is_an_error(run, tmp_path):
    """The tokens of another run have other row numbers, so counts and recall would be those of other items."""
    inputs = run(knows_users=True)
    other = Vocabulary(
        name="item", tokens=pa.array(ITEMS[::-1], pa.large_binary()), counts=np.ones(60, np.int64), total_count=60,
        distinct=60,
    )  # fmt: skip
    save_vocabulary(other, inputs["vocabularies"].uri)
    with pytest.raises(VocabularyError, match=r"'item' has digest .* same run"):
        judge(inputs, tmp_path)


def test_component_takes_its_rules(run):
    channels = {key: channel_utils.as_channel([value]) for key, value in run(knows_users=False).items()}
    assert QualityGate(**channels, rules=Rules(min_rows=3)).outputs["blessing"].type_name == "ModelBlessing"


def test_unknown_rule_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'min_rows'"):
        judge(run(knows_users=False), tmp_path, min_row=3)
