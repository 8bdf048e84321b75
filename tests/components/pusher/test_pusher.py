"""EmbeddingPusher pushes a model that passed every check; otherwise its artifact records the reason."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2
from tfx.types import channel_utils, standard_artifacts

from components.artifacts import Vocabularies
from components.pusher import EmbeddingPusher, executor
from components.pusher.executor import WARMUP, Executor
from components.pusher.proof import Trained, prove_again
from components.pusher.push_section import Push
from components.pusher.served import served_versions, verify_version
from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.model_inputs import build_model
from embedding_core.serving import export_model
from embedding_core.vocabulary import save_vocabulary
from tests.support import artifacts
from tests.support.finished_runs import write_checkpoint, write_run
from tests.support.proofs import score_in_this_process
from tests.support.vocabularies import vocabulary_of

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
MODULE = "pipelines.models.ranking"
SCHEMA = 'feature { name: "price" type: FLOAT }'
PRICE = DenseInputs(names=("price",), spec={"price": tf.io.FixedLenFeature([], tf.float32, float("nan"))})
TOKENS = [b"a", b"b", b"c", b"d"]
FILES = ("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index")


def artifact(cls, folder, uri):
    return artifacts.artifact(cls, folder / uri)


def vocabulary(tokens):
    return vocabulary_of(tokens, "words", total_count=10)


def trained(seed=0):
    return HostEngine(CONFIG, seed=seed, with_slots=False), build_model(MODULE, CONFIG, ("price",), {})


def export(uri, engine, model, vocabularies):
    files = {"words": f"{vocabularies}/words.txt"}
    path = f"{uri}/Format-Serving"
    export_model(path, config=CONFIG, tables=engine.embedding_tables, vocabularies=files, model=model, dense=PRICE)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the artifacts of a run by input key, as the other components leave them."""
    folder = tmp_path_factory.mktemp("run")
    words = vocabulary(TOKENS)
    rows = [{"word": b"a", "path": [b"b", b"c"], "pieces": b"d a", "price": 3.5}, {"price": 0.1}]
    kinds = {
        "model": standard_artifacts.Model,
        "model_run": standard_artifacts.ModelRun,
        "schema": standard_artifacts.Schema,
        "model_blessing": standard_artifacts.ModelBlessing,
    }
    inputs = artifacts.inputs_of(folder, CONFIG, [words], eval=rows * 40)
    inputs |= {name: artifact(kind, folder, name) for name, kind in kinds.items()}
    (folder / "schema" / "schema.pbtxt").write_text(SCHEMA)
    engine, model = trained()
    digests = {"words": words.digest}
    write_run(inputs["model_run"].uri, engine, model, digests, module=MODULE, config=CONFIG, dense=("price",))
    export(inputs["model"].uri, engine, model, inputs["vocabularies"].uri)
    inputs["model_blessing"].set_int_custom_property("blessed", 1)
    return inputs


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch):
    """Score in this process in all pushes but the one of the fixture `pushed`."""
    score_in_this_process(monkeypatch)


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


def blessing(folder, *, blessed, reason=""):
    made = artifact(standard_artifacts.ModelBlessing, folder, "quality")
    made.set_int_custom_property("blessed", blessed)
    made.set_string_custom_property("reason", reason)
    return made


@pytest.fixture(scope="module")
def pushed(run, tmp_path_factory):
    """Return the artifact of a push that both judges bless, and its folder."""
    folder = tmp_path_factory.mktemp("pushed")
    return push({**run, "quality_blessing": blessing(folder, blessed=1)}, folder), folder


def test_pusher_pushes_what_was_proven(run, pushed):
    pushed, folder = pushed
    assert pushed.get_int_custom_property("pushed") == 1
    version = int(pushed.get_string_custom_property("pushed_version"))
    assert served_versions(folder / "served") == [version]
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
    prices = {
        price for sent in requests if "price" in sent.inputs for price in tf.make_ndarray(sent.inputs["price"]).flat
    }
    assert prices
    assert not prices & {np.float32(3.5), np.float32(0.1)}  # warm-up requests hold no rows of the data


def evaluated(run, name):
    return Path(run["model"].uri, "Format-Serving", name).read_bytes()


def test_served_files_are_those_that_were_evaluated(run, pushed):
    path = pushed[0].get_string_custom_property("pushed_destination")
    assert all(Path(path, name).read_bytes() == evaluated(run, name) for name in FILES)
    again = prove_again(path, 20, 1e-2).report.differences
    assert not [item for item in again if item.name.startswith("evaluated/")]


def test_version_of_a_lost_record_is_recorded_not_pushed_twice(run, pushed):
    """As if the first pusher was killed before MLMD recorded its execution."""
    first, folder = pushed
    before = served_versions(folder / "served")
    again = push(run, folder)
    for fact in ("pushed_version", "pushed_destination", "model_digest", "parity"):
        assert again.get_string_custom_property(fact) == first.get_string_custom_property(fact)
    assert served_versions(folder / "served") == before
    assert os.path.exists(f"{again.uri}/saved_model.pb")


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


def test_rounded_rows_are_measured_and_proven_again(run, tmp_path):
    pushed = push(run, tmp_path, rows_dtype='"int8"', tolerance=2e-2)
    path = pushed.get_string_custom_property("pushed_destination")
    assert Path(path, FILES[1]).read_bytes() != evaluated(run, FILES[1])
    differences = json.loads(pushed.get_string_custom_property("parity"))["differences"]
    cost = differences["training/embeddings/word"]
    assert 0.0 < cost["mean_abs"] < cost["max_abs"] < 5e-3
    assert differences["rounded/embeddings/word"]["max_abs"] < 1e-6
    assert differences["rounded/embeddings/word"]["tolerance"] == 1e-5
    assert differences["training/logit"]["tolerance"] == 2e-2
    again = prove_again(path, 20, 2e-2)
    assert again.report.passed
    assert (again.rows, set(again.rounded)) == (20, {"words"})
    assert [item for item in again.report.differences if item.name.startswith("evaluated/")]


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
    export(other["model"].uri, *trained(seed=9), run["vocabularies"].uri)
    pushed = push(other, tmp_path)
    assert "training/" in not_pushed(pushed, tmp_path)
    assert not json.loads(pushed.get_string_custom_property("parity"))["passed"]


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        ("model_blessing", "the Evaluator's thresholds were not met."),
        ("quality_blessing", "Recall@10 is 0.01."),
    ],
)
def test_pusher_does_not_push_what_a_judge_refuses(run, tmp_path, judge, reason):
    refused = blessing(tmp_path, blessed=0, reason="Recall@10 is 0.01.")
    pushed = push({**run, judge: refused}, tmp_path)
    assert not_pushed(pushed, tmp_path) == f"the model is not blessed: {reason}"


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
