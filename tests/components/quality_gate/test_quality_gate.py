"""QualityGate, and gates that users write, on hand-made artifacts of a two-tower run whose rows are all positives."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from tfx.types import standard_artifacts

from components.artifacts import TableConfigs, Vocabularies
from components.column_summary import COLUMNS_FACT, summaries_to_json
from components.quality_gate.executor import PREDICTIONS_FILE, QUALITY_FILE, Executor
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, VocabularyError
from embedding_core.evaluation import Check, Predictions, own_checks
from embedding_core.model_inputs import build_model
from embedding_core.training import Negatives
from embedding_core.vocabulary import save_vocabulary
from tests.support.artifacts import artifact, examples_at, inputs_of, write_split
from tests.support.finished_runs import write_run
from tests.support.vocabularies import vocabulary_of

pytestmark = pytest.mark.tfx

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
TOKENS = {"user": [b"u%d" % number for number in range(20)], "item": [b"i%d" % number for number in range(60)]}
MODULE = "pipelines.models.two_tower"
TOWERS = {"query_features": ["user"], "candidate_features": ["item"]}
CONFIG = EmbeddingConfig(
    tables=tuple(
        TableConfig(name=name, vocabulary=name, vocabulary_size=len(tokens), dim=21) for name, tokens in TOKENS.items()
    ),
    features=tuple(FeatureConfig(name=name, table=name, column=ColumnConfig(name=name)) for name in TOKENS),
)


def rows():
    """Yield purchases: about half are of ten items that all users buy, the others of three items per user."""
    chance = np.random.default_rng(3)
    for _ in range(300):
        user = int(chance.integers(20))
        item = chance.integers(10) if chance.random() < 0.5 else 10 + (user * 3 + chance.integers(3)) % 50
        yield {"user": TOKENS["user"][user], "item": TOKENS["item"][item]}


def tables():
    """Return tables that rank the three items of each user first."""
    users, items = np.zeros((20, 21), np.float32), np.zeros((60, 21), np.float32)
    users[:, 1:] = np.eye(20)
    for user in range(20):
        items[10 + (user * 3 + np.arange(3)) % 50, 1 + user] = 1.0
    items[:10, 0] = 0.5  # two_tower adds column 0 as a bias: a higher logit for the items that all users buy
    return {"user": users, "item": items}


def run_at(folder, *, knows_users):
    """Write the artifacts of a run whose model knows the users' items, or whose tables are all zeros."""
    vocabularies = [vocabulary_of(tokens, name) for name, tokens in TOKENS.items()]
    inputs = inputs_of(folder, CONFIG, vocabularies, train=list(rows()), eval=list(rows()))
    inputs["model_run"] = artifact(standard_artifacts.ModelRun, folder / "model_run")
    engine = HostEngine(CONFIG, seed=1, with_slots=False)
    for name, values in tables().items():
        engine.embedding_tables[name].assign(values * float(knows_users))
    write_run(
        folder / "model_run",
        engine,
        build_model(MODULE, CONFIG, (), TOWERS),
        {vocabulary.name: vocabulary.digest for vocabulary in vocabularies},
        module=MODULE,
        config=CONFIG,
        arguments=TOWERS,
        negatives=Negatives(feature="item"),
    )
    return inputs


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return the artifacts of a run whose model knows the users' items."""
    return run_at(tmp_path_factory.mktemp("good"), knows_users=True)


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    """Return the artifacts of a run whose tables are all zeros."""
    return run_at(tmp_path_factory.mktemp("zeros"), knows_users=False)


def judge(inputs, folder, gates=(), **rules):
    blessing = artifact(standard_artifacts.ModelBlessing, folder / "blessing")
    rules = {"draws_negatives": True, **rules}
    properties = {"rules": json.dumps(rules), "seed": 1, "gates": json.dumps(list(gates))}
    Executor().Do({key: [value] for key, value in inputs.items()}, {"blessing": [blessing]}, properties)
    with open(f"{blessing.uri}/{QUALITY_FILE}") as file:
        return blessing, json.load(file)


def is_blessed(blessing):
    return blessing.get_int_custom_property("blessed") == 1


def test_model_better_than_popularity_is_blessed_with_figures(good, tmp_path):
    blessing, quality = judge(good, tmp_path, min_rows=100, min_rows_per_class=10)
    assert is_blessed(blessing)
    assert blessing.get_string_custom_property("reason") == ""
    assert quality["retrieval"]["metrics"]["Recall@10"] > 0.8 > quality["retrieval"]["popularity"]["Recall@10"] > 0.4
    assert quality["retrieval"]["queries"] == quality["eval_split"]["rows"] == 300
    assert quality["eval_split"]["features"]["item"]["unknown_tokens"] == 0
    names = {"rows of the eval split", "rows of the eval split with label 1", "Recall@10"}
    assert {check["name"] for check in quality["checks"]} == names
    with open(f"{blessing.uri}/{PREDICTIONS_FILE}", "rb") as file:
        predictions = Predictions.from_bytes(file.read())
    assert [predictions.prediction.shape, predictions.label.min(), predictions.weight.min()] == [(300, 1), 1, 1]
    assert os.path.isfile(f"{blessing.uri}.lineage.json")


def test_model_worse_than_popularity_is_refused(zeros, tmp_path):
    """All predictions are equal, so Recall@10 is 10/60, as by chance. AUC is undefined without negatives."""
    blessing, quality = judge(zeros, tmp_path)
    assert not is_blessed(blessing)
    assert "Recall@10 is 0.1667: it must be at least popularity's" in blessing.get_string_custom_property("reason")
    assert quality["retrieval"]["metrics"]["Recall@10"] == pytest.approx(10 / 60)


def test_bound_of_minus_one_accepts_it(zeros, tmp_path):
    blessing, _ = judge(zeros, tmp_path, retrieval={"Recall@10": {"min_over_popularity": -1.0}})
    assert is_blessed(blessing)


@pytest.mark.parametrize(("towers", "words"), [(True, "measuring retrieval"), (False, "applying the rules")])
def test_progress_says_what_is_done(good, tmp_path, monkeypatch, towers, words):
    said, counts = [], {"train": 1, "eval": 300}
    monkeypatch.setattr("components.progress.report", lambda *done, detail="", **__: said.append((*done, detail)))
    monkeypatch.setattr("components.quality_gate.executor.is_two_tower", lambda model: towers)
    good["examples"].set_string_custom_property(COLUMNS_FACT, summaries_to_json(counts, {}))
    judge(good, tmp_path)
    predicted = [done for task, done, total, detail in said if detail == "predicting the eval split"]
    assert (predicted[-1], said[-1]) == (300, ("QualityGate", 300, 300, words))


def test_six_rows_are_refused(good, tmp_path):
    write_split(tmp_path / "examples", list(rows()))
    write_split(tmp_path / "examples", list(rows())[:6], "eval")
    blessing, _ = judge({**good, "examples": examples_at(tmp_path / "examples")}, tmp_path, min_rows=100)
    assert "rows of the eval split: 6" in blessing.get_string_custom_property("reason")


def test_tables_of_another_run_are_an_error(good, tmp_path):
    other = artifact(TableConfigs, tmp_path / "tables")
    text = CONFIG.to_json().replace('"combiner": "mean"', '"combiner": "sum"')
    (tmp_path / "tables" / "embedding_config.json").write_text(text)
    with pytest.raises(CheckpointError, match="same run"):
        judge({**good, "table_configs": other}, tmp_path)


def test_vocabulary_of_another_run_is_an_error(good, tmp_path):
    """The tokens of another run have other row numbers, so counts and recall would be those of other items."""
    other = artifact(Vocabularies, tmp_path / "vocabularies")
    for name, tokens in TOKENS.items():
        save_vocabulary(vocabulary_of(tokens[::-1] if name == "item" else tokens, name), other.uri)
    with pytest.raises(VocabularyError, match=r"'item' has digest .* same run"):
        judge({**good, "vocabularies": other}, tmp_path)


class EnoughRows:
    """Reads the rows of the eval split and the predictions."""

    def judge(self, model):
        sizes = [(len(batch["label"]), len(predicted["label"])) for batch, predicted in model.batches()]
        rows = sum(labels for labels, _ in sizes)
        assert all(labels == predictions for labels, predictions in sizes)
        yield Check(name="rows", value=rows, bound="at least 1000", met=rows >= 1000)
        yield Check(name="a", value=1.0, bound="2", met=False, reason="a is not 2, which nobody expected.")


class Broken:
    def judge(self, model):
        raise KeyError("lost")


class NotChecks:
    def judge(self, model):
        return [True]


class NotANumber:
    def judge(self, model):
        return [Check(name="norms", value=[1, 2], bound="at most 50", met=True)]


@pytest.fixture
def _my_gates(monkeypatch):
    """Make the module `my_gates`: the gates above, and the one of docs/models.md, NoGiantRows."""
    module = types.ModuleType("my_gates")
    vars(module).update({gate.__name__: gate for gate in (EnoughRows, Broken, NotChecks, NotANumber)})
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(next(block for block in blocks if "NoGiantRows" in block), vars(module))
    monkeypatch.setitem(sys.modules, "my_gates", module)


@pytest.mark.usefixtures("_my_gates")
def test_gate_of_the_user_that_refuses_gives_its_reasons(good, tmp_path):
    blessing, quality = judge(good, tmp_path, gates=["my_gates.NoGiantRows", "my_gates.EnoughRows"])
    figures = {check["name"]: check["met"] for check in quality["checks"]}
    assert (figures["largest norm of user"], figures["largest norm of item"]) == (True, True)
    assert not is_blessed(blessing)
    assert blessing.get_string_custom_property("reason") == (
        "my_gates.EnoughRows: rows is 300: it must be at least 1000. "
        "my_gates.EnoughRows: a is not 2, which nobody expected."
    )


@pytest.mark.usefixtures("_my_gates")
def test_gate_of_the_user_that_raises_ends_the_run_unblessed(good, tmp_path):
    with pytest.raises(ConfigError, match=r"gate 'my_gates.Broken' failed with KeyError: 'lost'"):
        judge(good, tmp_path, gates=["my_gates.Broken"])
    assert not (tmp_path / "blessing" / "quality.json").exists()


@pytest.mark.usefixtures("_my_gates")
@pytest.mark.parametrize(
    ("gate", "words"), [("NotChecks", "gave True: it must give"), ("NotANumber", "`value` must be one number")]
)
def test_gate_of_the_user_that_gives_no_checks_is_an_error(gate, words):
    with pytest.raises(ConfigError, match=words):
        own_checks([f"my_gates.{gate}"], None)
