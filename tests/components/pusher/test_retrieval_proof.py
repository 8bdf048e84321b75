"""EmbeddingPusher proves every signature of a two-tower model, and measures an approximate search."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import dataclasses

import numpy as np
import pytest

from components.pusher.proof import Trained, prove
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import build_model
from embedding_core.serving_config import Approximate, TopK
from embedding_core.tasks import POSITIVE
from tests.support.proofs import score_in_this_process
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

pytestmark = pytest.mark.tfx

TOKENS = {"users": [b"u%d" % number for number in range(9)], "items": [b"i%d" % number for number in range(300)]}
CONFIG = EmbeddingConfig(
    tables=tuple(
        TableConfig(name=name, vocabulary=name, vocabulary_size=len(tokens) + 1, dim=6, oov_rows=1)
        for name, tokens in TOKENS.items()
    ),
    features=tuple(
        FeatureConfig(name=name, table=f"{name}s", column=ColumnConfig(name=name)) for name in ("user", "item")
    ),
)
LISTS = Approximate(when="always", lists=30, probes=6, min_recall=0.3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    arguments = {"query_features": ["user"], "candidate_features": ["item"]}
    return Trained(
        config=CONFIG,
        files=write_tokens(tmp_path_factory.mktemp("trained"), TOKENS),
        digests={},
        engine=HostEngine(CONFIG, seed=4, with_slots=False),
        model=build_model("pipelines.models.two_tower", CONFIG, (), arguments),
        dense=None,
        tasks=(POSITIVE,),
    )


ROWS = [example({"user": TOKENS["users"][row], "item": TOKENS["items"][7 * row]}) for row in range(9)]


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch):
    score_in_this_process(monkeypatch)


def proof(folder, trained, settings, exported=None):
    """Export the trained model, or another one, and prove it."""
    (exported or trained).export(str(folder / "model"), top_k=settings)
    return prove(str(folder / "model"), str(folder / "model"), trained, ROWS, 1e-5, settings)


def names(found):
    return {item.name for item in found.report.differences}


def test_every_signature_of_two_towers_is_proven(trained, tmp_path):
    found = proof(tmp_path, trained, TopK(k=12))
    assert found.passed
    assert found.recall == {}
    assert names(found) >= {
        "training/query/vector",
        "training/candidate/vector",
        *(f"training/{name}/{output}" for name in ("top_k", "top_k_filtered") for output in ("tokens", "scores")),
    }


def test_recall_of_an_approximate_search_is_measured_and_bounded(trained, tmp_path):
    found = proof(tmp_path, trained, TopK(k=12, approximate=LISTS))
    assert found.passed
    assert "training/top_k_filtered/scores" in names(found)  # scores of the rows that `among` restricts
    assert "training/top_k/scores" not in names(found)
    assert 0.3 < found.recall["top_k"] < 1.0
    assert found.recall["top_k"] < found.recall["top_k_filtered"] < 1.0
    refused = dataclasses.replace(found, min_recall=0.9999)
    assert not refused.passed
    assert "min_recall" in refused.reason
    assert refused.to_dict()["reason"] == refused.reason
    assert found.to_dict()["recall"] == found.recall


def test_candidates_of_another_training_do_not_pass(trained, tmp_path):
    """No row names the changed item, so only `top_k` and `top_k_filtered` read its vector."""
    engine = HostEngine(CONFIG, seed=4, with_slots=False)
    engine.embedding_tables["items"].scatter_nd_update([[150]], np.full((1, 6), 3.0))
    found = proof(tmp_path, trained, TopK(k=12), exported=dataclasses.replace(trained, engine=engine))
    assert not found.passed
    assert {item.name.split("/")[1] for item in found.report.differences if not item.within} == {
        "top_k",
        "top_k_filtered",
    }


def test_model_without_token_candidates_has_no_candidate_vectors(trained):
    assert trained.candidate_feature == "item"
    ranking = dataclasses.replace(trained, model=build_model("pipelines.models.ranking", CONFIG, (), {}))
    assert ranking.candidate_feature is None
    with pytest.raises(ConfigError, match="top_k"):
        ranking.candidate_vectors()
