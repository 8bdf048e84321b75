"""Shadow compares what is trained with what was pushed, by requests in the form of the warm-up file of a version."""

import json

import pytest
from tfx.types import channel_utils, standard_artifacts

from components.pusher.executor import WARMUP
from components.pusher.proof import Sources, load_trained
from components.pusher.served import read_facts
from components.shadow import Shadow
from components.shadow.executor import SHADOW_FILE, Executor
from components.shadow.keys import Shadow as Section
from embedding_core.errors import ConfigError
from embedding_core.shadow.request_rows import Visibility
from embedding_core.shadow.shadow_rules import ShadowRules
from tests.components.pusher import test_pusher
from tests.components.pusher.test_pusher import CONFIG, TOKENS, artifact, export, push
from tests.components.shadow.logs import predict_log
from tests.support.tf_examples import example, write_rows

pytestmark = pytest.mark.tfx

run = test_pusher.run  # the fixture: the artifacts of a run

LOG = [
    predict_log(examples=[example({"word": [token], "price": [1.0]}) for token in TOKENS]),
    predict_log("embeddings", examples=[example({"word": [token]}) for token in TOKENS]),
]


@pytest.fixture(scope="module")
def pushed(run, tmp_path_factory):
    return push(run, tmp_path_factory.mktemp("pushed"))


@pytest.fixture(scope="module")
def candidate(run, tmp_path_factory):
    """Return a Model whose row of the token c is another one."""
    folder = tmp_path_factory.mktemp("candidate")
    model = artifact(standard_artifacts.Model, folder, "model")
    keys = ("model_run", "vocabularies", "table_configs", "schema")
    trained = load_trained(Sources(**{key: run[key].uri for key in keys}))
    trained.engine.embedding_tables["words"].scatter_nd_add([[2, 0]], [3.0])
    export(model.uri, trained.engine, trained.model, run["vocabularies"].uri)
    return model


def judge(run, folder, model, previous, requests, **rules):
    """Run the executor; return the blessing and the figures."""
    blessing = artifact(standard_artifacts.ModelBlessing, folder, "blessing")
    inputs = {"model": [model], "table_configs": [run["table_configs"]]}
    if previous is not None:
        inputs["previous_model"] = [previous]
    text = json.dumps(ShadowRules.from_mapping(rules).to_mapping())
    Executor().Do(inputs, {"blessing": [blessing]}, {"requests": requests, "rules": text})
    with open(f"{blessing.uri}/{SHADOW_FILE}") as file:
        return blessing, json.load(file)


def test_changed_row_is_refused_and_its_token_named(run, pushed, candidate, tmp_path):
    log = write_rows(tmp_path / "log", LOG)
    rules = {"outputs": {"serving_default/logit": {"max": 1e-4}}, "slices": ["word"], "worst_rows": 1}
    blessing, figures = judge(run, tmp_path, candidate, pushed, log, **rules)
    assert blessing.get_int_custom_property("blessed") == 0
    assert "max difference of serving_default/logit" in blessing.get_string_custom_property("reason")
    assert figures["requests"]["rows"] == 8
    (worst,) = figures["worst"]["serving_default/logit"]
    assert worst["request"] == {"price": "1", "word": "c"}
    assert worst["place"] == f"{log}, record 1, row 3"
    assert figures["worst"]["embeddings/word"][0]["difference"] == pytest.approx(3.0, rel=1e-6)
    by_word = {part["value"]: part["max"] for part in figures["slices"] if part["output"] == "embeddings/word"}
    assert {word for word, largest in by_word.items() if largest} == {"c"}
    with open(f"{blessing.uri}.lineage.json") as file:
        record = json.load(file)
    assert {made["type"] for made in record["inputs"]} == {"Model", "PushedModel", "components.TableConfigs"}
    assert record["files"][0]["path"] == log


def test_same_model_answers_its_warm_up_requests_the_same(run, pushed, tmp_path):
    blessing, figures = judge(
        run, tmp_path, run["model"], pushed, f"{pushed.uri}/{WARMUP}", outputs={"logit": {"max": 0}}
    )
    assert blessing.get_int_custom_property("blessed") == 1
    assert figures["requests"]["replayed"] == 4
    assert set(figures["outputs"]) == {
        f"{signature}/{two}" for signature in ("serving_default", "raw") for two in ("logit", "probability")
    }


def test_first_push_compares_with_nothing_and_says_so(run, tmp_path):
    blessing, figures = judge(run, tmp_path, run["model"], None, write_rows(tmp_path / "log", LOG))
    assert blessing.get_int_custom_property("blessed") == 1
    assert (
        figures["note"]
        == blessing.get_string_custom_property("note")
        == "no version was pushed yet, so the model was not compared."
    )


def test_pusher_does_not_push_what_shadow_refused(run, tmp_path):
    refusal = artifact(standard_artifacts.ModelBlessing, tmp_path, "refusal")
    refusal.set_int_custom_property("blessed", 0)
    refusal.set_string_custom_property("reason", "p99 difference of raw/logit: 3.")
    found = push({**run, "shadow_blessing": refusal}, tmp_path)
    assert found.get_int_custom_property("pushed") == 0
    assert "p99 difference of raw/logit: 3." in found.get_string_custom_property("reason")


def test_version_says_which_columns_are_public(pushed):
    facts = read_facts(pushed.get_string_custom_property("pushed_destination"))
    assert Visibility.from_json(facts["public"]) == Visibility.of(CONFIG)
    assert facts["public"]["columns"] == ["path", "pieces", "word"]


def test_component_takes_its_section(run):
    channels = {key: channel_utils.as_channel([run[key]]) for key in ("model", "table_configs")}
    section = Section(requests="log", latency={"p95": 1.5})
    assert Shadow(**channels, shadow=section).outputs["blessing"].type_name == "ModelBlessing"
    with pytest.raises(ConfigError, match="has no bound"):
        Section.from_mapping({"requests": "log", "outputs": {"logit": {}}})
