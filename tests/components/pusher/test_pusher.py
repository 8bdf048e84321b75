"""EmbeddingPusher pushes a model that passed every check; otherwise its artifact records the reason."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2
from tfx.types import artifact_utils, channel_utils, standard_artifacts

from components.artifacts import TableConfigs, Vocabularies
from components.pusher import EmbeddingPusher, executor
from components.pusher.executor import WARMUP, Executor
from components.pusher.proof import prove_again
from components.pusher.push_section import Push
from components.pusher.served import served_versions, verify_version
from components.pusher.trained_model import Trained
from embedding_core.checkpoint import write_training_checkpoint
from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.model_inputs import build_model
from embedding_core.serving import export_model
from embedding_core.tasks import POSITIVE
from embedding_core.training import TrainingConfig
from embedding_core.training.finished_run import RunDescription
from embedding_core.vocabulary import Vocabulary, save_vocabulary

pytestmark = pytest.mark.tfx

CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="words", vocabulary="words", vocabulary_size=5, dim=4, oov_rows=1),),
    features=(
        FeatureConfig(name="word", table="words", column=ColumnConfig(name="word")),
        FeatureConfig(
            name="path", table="words", column=ColumnConfig(name="path", multivalent=True), max_sequence_length=3
        ),
        FeatureConfig(name="pieces", table="words", column=ColumnConfig(name="pieces", separator=" ")),
    ),
)
SCHEMA = 'feature { name: "price" type: FLOAT }'
PRICE = DenseInputs(names=("price",), spec={"price": tf.io.FixedLenFeature([], tf.float32, float("nan"))})
TOKENS = [b"a", b"b", b"c", b"d"]
FILES = ("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index")


def artifact(cls, folder, uri):
    made = cls()
    made.uri = str(folder / uri)
    os.makedirs(made.uri, exist_ok=True)
    return made


def vocabulary(tokens):
    return Vocabulary(
        name="words",
        tokens=pa.array(tokens, pa.large_binary()),
        counts=np.arange(len(tokens), 0, -1),
        total_count=10,
        distinct=len(tokens),
        features={},
    )


def write_examples(uri, rows):
    os.makedirs(f"{uri}/Split-eval")
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(f"{uri}/Split-eval/data-00000-of-00001.gz", options) as writer:
        for row in rows:
            example = tf.train.Example()
            for name, values in row.items():
                feature = example.features.feature[name]
                (feature.bytes_list if isinstance(values[0], bytes) else feature.float_list).value.extend(values)
            writer.write(example.SerializeToString())


def trained(seed=0):
    return HostEngine(CONFIG, seed=seed, with_slots=False), build_model(
        "pipelines.models.ranking", CONFIG, ("price",), {}
    )


def write_checkpoint(uri, engine, model):
    checkpoint = tf.train.Checkpoint(embedding=engine.tables, model=model, step=tf.Variable(7, dtype=tf.int64))
    checkpoint.save_counter.assign_add(1)  # creates the counter, as `save` would
    written = write_training_checkpoint(f"{uri}/checkpoints", 7, checkpoint.write)
    return os.path.basename(written.prefix)


def write_run(uri, engine, model, digests):
    RunDescription(
        model="pipelines.models.ranking",
        arguments={},
        config=CONFIG,
        training=TrainingConfig(steps=7),
        dense=("price",),
        tasks=(POSITIVE,),
        weight=None,
        step=7,
        checkpoint=write_checkpoint(uri, engine, model),
        vocabularies=digests,
    ).save(uri)


def export(uri, engine, model, vocabularies):
    files = {"words": f"{vocabularies}/words.txt"}
    path = f"{uri}/Format-Serving"
    export_model(path, config=CONFIG, tables=engine.embedding_tables, vocabularies=files, model=model, dense=PRICE)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the artifacts of a run by input key, as the other components leave them."""
    folder = tmp_path_factory.mktemp("run")
    inputs = {
        "model": artifact(standard_artifacts.Model, folder, "model"),
        "model_run": artifact(standard_artifacts.ModelRun, folder, "model_run"),
        "examples": artifact(standard_artifacts.Examples, folder, "examples"),
        "vocabularies": artifact(Vocabularies, folder, "vocabularies"),
        "table_configs": artifact(TableConfigs, folder, "table_configs"),
        "schema": artifact(standard_artifacts.Schema, folder, "schema"),
        "model_blessing": artifact(standard_artifacts.ModelBlessing, folder, "blessing"),
    }
    words = vocabulary(TOKENS)
    save_vocabulary(words, inputs["vocabularies"].uri)
    inputs["examples"].split_names = artifact_utils.encode_split_names(["train", "eval"])
    write_examples(
        inputs["examples"].uri,
        [{"word": [b"a"], "path": [b"b", b"c"], "pieces": [b"d a"], "price": [3.5]}, {"price": [0.1]}] * 40,
    )
    (folder / "schema" / "schema.pbtxt").write_text(SCHEMA)
    (folder / "table_configs" / "embedding_config.json").write_text(CONFIG.to_json())
    engine, model = trained()
    write_run(inputs["model_run"].uri, engine, model, {"words": words.digest})
    export(inputs["model"].uri, engine, model, inputs["vocabularies"].uri)
    inputs["model_blessing"].set_int_custom_property("blessed", 1)
    return inputs


def push(run, folder, **properties):
    pushed = artifact(standard_artifacts.PushedModel, folder, "pushed_model")
    properties = {
        "push_destination": str(folder / "served"),
        "tolerance": 1e-5,
        "parity_rows": 50,
        "parity_split": "eval",
        **properties,
    }
    Executor().Do({key: [value] for key, value in run.items()}, {"pushed_model": [pushed]}, properties)
    return pushed


def changed(run, key, folder, uri):
    """Return the artifacts of the run, one of them replaced by a copy that the test may change."""
    copy = artifact(type(run[key]), folder, uri)
    shutil.copytree(run[key].uri, copy.uri, dirs_exist_ok=True)
    return {**run, key: copy}


def not_pushed(pushed, folder):
    """Assert that nothing was pushed and no file of the model is left; return the recorded reason."""
    assert pushed.get_int_custom_property("pushed") == 0
    served = folder / "served"
    assert not served.exists() or not [name for name in os.listdir(served) if not name.endswith(".lock")]
    assert os.listdir(pushed.uri) == []
    return pushed.get_string_custom_property("reason")


def test_pusher_pushes_what_was_proven(run, tmp_path):
    pushed = push(run, tmp_path)
    assert pushed.get_int_custom_property("pushed") == 1
    version = int(pushed.get_string_custom_property("pushed_version"))
    assert served_versions(tmp_path / "served") == [version]
    path = pushed.get_string_custom_property("pushed_destination")
    manifest = verify_version(path)
    assert manifest["digest"] == pushed.get_string_custom_property("model_digest")
    assert len(pushed.get_string_custom_property("vocabularies_digest")) == 64
    parity = json.loads(pushed.get_string_custom_property("parity"))
    assert parity["passed"]
    assert parity["eval_rows"] == 50
    assert parity["edge_rows"] > 20
    assert {name.split("/")[0] for name in parity["differences"]} == {"training", "raw"}
    assert parity["differences"]["training/embeddings/path"]["max_abs"] == 0.0
    assert {"saved_model.pb", "variables", "assets", "assets.extra"} <= set(os.listdir(path))
    assert manifest["facts"]["parity"] == parity
    assert manifest["facts"]["sources"]["model_run"] == run["model_run"].uri
    requests = list(warmup_requests(path))
    assert {(request.model_spec.signature_name, len(request.inputs)) for request in requests} >= {
        ("serving_default", 1)
    }
    examples = tf.make_ndarray(requests[-1].inputs["word"])
    assert (requests[-1].model_spec.signature_name, examples.shape) == ("raw", (32,))
    prices = {price for one in requests if "price" in one.inputs for price in tf.make_ndarray(one.inputs["price"]).flat}
    assert prices
    assert not prices & {np.float32(3.5), np.float32(0.1)}  # warm-up requests hold no rows of the data


@pytest.mark.parametrize("form", [{}, {"rows_dtype": '"float16"', "tolerance": 1e-2}])
def test_served_files_are_those_that_were_evaluated(run, tmp_path, form):
    path = push(run, tmp_path, **form).get_string_custom_property("pushed_destination")
    judged = f"{run['model'].uri}/Format-Serving"
    same = [Path(path, name).read_bytes() == Path(judged, name).read_bytes() for name in FILES]
    assert all(same) == (form == {})
    again = {item.name.split("/")[0] for item in prove_again(path, 20, 1e-2).report.differences}
    assert ("evaluated" in again) == (form != {})


def test_damaged_copy_of_the_evaluated_model_is_refused(run, tmp_path, monkeypatch):
    def damaging(source, target):
        copy(source, target)
        with open(f"{target}/{FILES[1]}", "r+b") as file:
            file.write(bytes([file.read(1)[0] ^ 1]))

    copy = executor.copy_model
    monkeypatch.setattr(executor, "copy_model", damaging)
    with pytest.raises(CheckpointError, match="is not the model that was evaluated"):
        push(run, tmp_path)
    assert served_versions(tmp_path / "served") == []


def warmup_requests(version):
    for record in tf.data.TFRecordDataset(f"{version}/{WARMUP}").as_numpy_iterator():
        yield prediction_log_pb2.PredictionLog.FromString(record).predict_log.request


def test_version_of_a_lost_record_is_recorded_not_pushed_twice(run, tmp_path):
    first = push(run, tmp_path)
    again = push(run, tmp_path)  # as if the first pusher was killed before MLMD recorded its execution
    facts = ("pushed_version", "pushed_destination", "model_digest", "parity")
    assert [again.get_string_custom_property(key) for key in facts] == [
        first.get_string_custom_property(key) for key in facts
    ]
    (version,) = served_versions(tmp_path / "served")
    assert os.path.exists(f"{again.uri}/saved_model.pb")
    (tmp_path / "served" / str(version) / "saved_model.pb").write_bytes(b"damaged")
    shutil.rmtree(again.uri)
    other = push(run, tmp_path, tolerance=1e-4)
    assert served_versions(tmp_path / "served") == [version, int(other.get_string_custom_property("pushed_version"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance", "most"), [("float16", 1e-2, 1e-3), ("int8", 2e-2, 5e-3), ({"words": "int8"}, 2e-2, 5e-3)]
)
def test_pusher_measures_rounded_rows_and_proves_them_again(run, tmp_path, dtype, tolerance, most):
    rounded = {"rows_dtype": json.dumps(dtype)}
    reason = not_pushed(push(run, tmp_path, **rounded, tolerance=1e-6), tmp_path)
    assert "broken rule" in reason
    assert "Rows are rounded ('words' as " in reason
    pushed = push(run, tmp_path, **rounded, tolerance=tolerance)
    path = pushed.get_string_custom_property("pushed_destination")
    differences = json.loads(pushed.get_string_custom_property("parity"))["differences"]
    cost = differences["training/embeddings/word"]
    assert 0.0 < cost["mean_abs"] < cost["max_abs"] < most
    assert differences["rounded/embeddings/word"]["max_abs"] < 1e-6
    assert differences["rounded/embeddings/word"]["tolerance"] == 1e-5
    assert differences["training/logit"]["tolerance"] == tolerance
    again = prove_again(path, 20, tolerance)
    assert again.report.passed
    assert again.rows == 20
    assert set(again.rounded) == {"words"}


@pytest.mark.slow
def test_large_tolerance_pushes_no_rows_other_than_rounded_ones(run, tmp_path, monkeypatch):
    def export(self, folder, rows_dtype, top_k, deltas):
        rows = self.engine.embedding_tables["words"]
        rows.assign_add(tf.fill([5, 4], 0.01))
        found = original(self, folder, rows_dtype, top_k, deltas)
        rows.assign_sub(tf.fill([5, 4], 0.01))
        return found

    original = Trained.export
    monkeypatch.setattr(Trained, "export", export)
    reason = not_pushed(push(run, tmp_path, rows_dtype='"int8"', tolerance=1.0), tmp_path)
    assert "rounded/embeddings/" in reason
    assert "the tolerance is 1e-05" in reason


def test_types_of_rows_of_unknown_tables_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="names table 'word', which does not exist: did you mean 'words'"):
        push(run, tmp_path, rows_dtype='{"word": "int8"}')


def test_pusher_does_not_push_another_model_than_was_evaluated(run, tmp_path):
    other = {**run, "model": artifact(standard_artifacts.Model, tmp_path, "other")}
    engine, model = (
        HostEngine(CONFIG, seed=9, with_slots=False),
        build_model("pipelines.models.ranking", CONFIG, ("price",), {}),
    )
    export(other["model"].uri, engine, model, run["vocabularies"].uri)
    pushed = push(other, tmp_path)
    assert "training/" in not_pushed(pushed, tmp_path)
    assert not json.loads(pushed.get_string_custom_property("parity"))["passed"]


def test_pusher_does_not_push_what_is_not_blessed(run, tmp_path):
    blessing = artifact(standard_artifacts.ModelBlessing, tmp_path, "blessing")
    blessing.set_int_custom_property("blessed", 0)
    assert "not blessed" in not_pushed(push({**run, "model_blessing": blessing}, tmp_path), tmp_path)


@pytest.mark.parametrize("blessed", [1, 0])
def test_pusher_pushes_what_both_of_its_judges_bless(run, tmp_path, blessed):
    quality = artifact(standard_artifacts.ModelBlessing, tmp_path, "quality")
    quality.set_int_custom_property("blessed", blessed)
    quality.set_string_custom_property("reason", "" if blessed else "Recall@10 is 0.01.")
    pushed = push({**run, "quality_blessing": quality}, tmp_path)
    if blessed:
        assert pushed.get_int_custom_property("pushed") == 1
    else:
        assert not_pushed(pushed, tmp_path) == "the model is not blessed: Recall@10 is 0.01."


def test_pusher_does_not_push_what_is_not_finite(run, tmp_path):
    bad = changed(run, "model_run", tmp_path, "bad_run")
    engine, model = trained()
    engine.embedding_tables["words"].scatter_nd_update([[2, 1], [3, 0]], [float("nan"), float("inf")])
    write_checkpoint(bad["model_run"].uri, engine, model)
    pushed = push(bad, tmp_path, rows_dtype='"float16"')
    assert "2 of table 'words' (the first is row 2)" in not_pushed(pushed, tmp_path)
    assert json.loads(pushed.get_string_custom_property("nonfinite_rows")) == {"words": 2}


def test_pusher_refuses_another_vocabulary(run, tmp_path):
    other = {**run, "vocabularies": artifact(Vocabularies, tmp_path, "others")}
    save_vocabulary(vocabulary(TOKENS[::-1]), other["vocabularies"].uri)
    with pytest.raises(VocabularyError, match="same run"):
        push(other, tmp_path)
    assert not (tmp_path / "served").exists()


def test_pusher_refuses_other_tables(run, tmp_path):
    other = changed(run, "table_configs", tmp_path, "tables")
    text = CONFIG.to_json().replace('"combiner": "mean"', '"combiner": "sum"')
    (tmp_path / "tables" / "embedding_config.json").write_text(text)
    with pytest.raises(CheckpointError, match="same run"):
        push(other, tmp_path)


def test_component_checks_its_numbers(run):
    channels = {key: channel_utils.as_channel([value]) for key, value in run.items()}
    assert EmbeddingPusher(**channels, push_destination="x").outputs["pushed_model"].type_name == "PushedModel"
    with pytest.raises(ConfigError, match="parity_rows"):
        EmbeddingPusher(**channels, push_destination="x", parity_rows=0)
    of_tables = EmbeddingPusher(**channels, push_destination="x", push=Push(rows_dtype={"words": "int8"}))
    assert json.loads(of_tables.exec_properties["rows_dtype"]) == {"words": "int8"}


def test_pusher_asks_for_what_dense_features_are_made_from(run, tmp_path):
    with pytest.raises(ConfigError, match="transform_graph"):
        push({key: value for key, value in run.items() if key != "schema"}, tmp_path)
