"""The vectors and top k candidates that a two-tower model serves agree with its logit."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import build_model
from embedding_core.serving import export_model
from embedding_core.serving_config import Approximate, TopK
from tests.support.vocabularies import write_tokens

ITEMS = [b"i%d" % number for number in range(20)]
USERS = [b"u%d" % number for number in range(6)]


def table(name, tokens):
    return TableConfig(name=name, vocabulary=name, vocabulary_size=len(tokens) + 1, dim=5, oov_rows=1)


def feature(name, table, **column):
    return FeatureConfig(name=name, table=table, column=ColumnConfig(name=name, **column))


CONFIG = EmbeddingConfig(
    tables=(table("users", USERS), table("items", ITEMS)),
    features=(feature("user", "users"), feature("bought", "items", separator=" "), feature("item", "items")),
)


def exported(folder, candidate_features, top_k=None, config=CONFIG, rows_dtype="float32"):
    files = write_tokens(folder, {"users": USERS, "items": ITEMS})
    tf_keras.utils.set_random_seed(1)
    query = [name for name in ("user", "bought") if name not in candidate_features]
    arguments = {"query_features": query, "candidate_features": candidate_features}
    model = build_model("pipelines.models.two_tower", config, (), arguments)
    for variable in model.trainable_variables:  # biases start at zero, which would hide a mistake
        variable.assign_add(tf.random.stateless_normal(variable.shape, [1, 2]))
    tables = HostEngine(config, seed=4, with_slots=False).embedding_tables
    given = {"config": config, "tables": tables, "vocabularies": files, "model": model, "top_k": top_k}
    written = export_model(folder / "model", **given, rows_dtype=rows_dtype)
    return written, tf.saved_model.load(str(folder / "model")).signatures


LISTS = Approximate(when="always", lists=4, probes=4)  # searches all lists, so it is exact
FEW = Approximate(when="always", lists=10, probes=1)
SETTINGS = {
    "exact": (TopK(k=7), "float32"),
    "lists, all candidates, int8": (TopK(k=50, approximate=LISTS), "int8"),
    "few probes": (TopK(k=7, approximate=FEW), "float32"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the signatures by the name of the settings."""

    @functools.cache
    def signatures(name):
        top_k, rows_dtype = SETTINGS[name]
        return exported(tmp_path_factory.mktemp("two_tower"), ["item"], top_k, rows_dtype=rows_dtype)[1]

    return signatures


@pytest.fixture(params=SETTINGS)
def served(request, models):
    return models(request.param)


@pytest.fixture(params=[name for name in SETTINGS if name != "few probes"])
def complete(request, models):
    """Return the signatures of a model whose search finds the best candidates."""
    return models(request.param)


QUERIES = {"user": tf.constant([b"u1", b"nobody", b""]), "bought": tf.constant([b"i3 i4", b"", b"what i0"])}


def logits(served, item):
    items = tf.fill([3], item)
    return served["raw"](item=items, **QUERIES)["logit"].numpy()[:, 0]


def test_logit_is_the_product_of_the_vectors(served):
    query = served["query"](**QUERIES)["vector"].numpy()
    candidate = served["candidate"](item=tf.constant([b"i2", b"unknown"]))["vector"].numpy()
    np.testing.assert_allclose(query @ candidate[0], logits(served, b"i2"), rtol=1e-5)
    np.testing.assert_allclose(query @ candidate[1], logits(served, b"unknown"), rtol=1e-5)


def every_logit(served):
    return np.stack([logits(served, item) for item in ITEMS], axis=1)


def filtered(served, exclude, among, queries=QUERIES):
    """Call `top_k_filtered` with lists of tokens per row, padded here; return its tokens and scores."""
    found = served["top_k_filtered"](**queries, exclude=padded(exclude), among=padded(among))
    return found["tokens"].numpy(), found["scores"].numpy()


def padded(rows):
    return tf.ragged.constant(rows, tf.string, ragged_rank=1).to_tensor(b"")


def best(every, allowed, width):
    """Return the tokens and scores that a search among the allowed items must return for one row's logits `[items]`."""
    ranked = sorted((item for item in allowed), key=lambda item: -every[ITEMS.index(item)])[:width]
    gap = width - len(ranked)
    return ranked + [b""] * gap, [every[ITEMS.index(item)] for item in ranked] + [-np.inf] * gap


def test_top_k_is_what_scoring_every_item_gives(complete):
    every = every_logit(complete)
    found = complete["top_k"](**QUERIES)
    width = found["tokens"].shape[1]
    order = np.argsort(-every, axis=1)[:, :width]
    assert width in {7, len(ITEMS)}  # at most all candidates
    assert found["tokens"].numpy().tolist() == np.array(ITEMS)[order].tolist()
    np.testing.assert_allclose(found["scores"], np.take_along_axis(every, order, 1), rtol=1e-5)


EXCLUDE = [[b"i3", b"", b"i7", b"no such item", b"i3"], [], ITEMS[:17]]


def test_excluded_tokens_are_not_returned(complete):
    tokens, scores = filtered(complete, EXCLUDE, [[], [], []])
    for every, gone, found, values in zip(every_logit(complete), EXCLUDE, tokens, scores, strict=True):
        wanted = best(every, set(ITEMS) - set(gone), len(found))
        assert found.tolist() == wanted[0]
        np.testing.assert_allclose(values, wanted[1], rtol=1e-5)


AMONG = [[b"i4", b"i4", b"no such item", b"i9", b"", b"i1"], [], ITEMS[5:15]]


def test_answer_is_among_the_given_tokens(served):
    """Given tokens are compared exactly, however few lists are searched for the other rows."""
    exclude = [[b"i9"], [b"i0"], [b"i6", b"i19"]]
    tokens, scores = filtered(served, exclude, AMONG)
    for row in (0, 2):
        wanted = best(every_logit(served)[row], set(AMONG[row]) & set(ITEMS) - set(exclude[row]), tokens.shape[1])
        assert tokens[row].tolist() == wanted[0]
        np.testing.assert_allclose(scores[row], wanted[1], rtol=1e-5)
    assert b"i0" not in tokens[1]
    assert len(set(tokens[1])) == tokens.shape[1]


def test_row_without_filters_is_answered_as_by_top_k(served):
    found = served["top_k"](**QUERIES)
    for empty in ([[], [], []], [[b""]] * 3, [[b"no such item"]] * 3):
        tokens, scores = filtered(served, empty, [[b"", b""]] * 3)
        assert tokens.tolist() == found["tokens"].numpy().tolist()
        np.testing.assert_allclose(scores, found["scores"], rtol=1e-6)


def test_row_restricted_to_unknown_tokens_gets_nothing(served):
    tokens, scores = filtered(served, [[]] * 3, [[b"no such item"]] * 3)
    assert set(tokens.flat) == {b""}
    assert np.isneginf(scores).all()


def test_answer_is_full_if_the_probed_lists_hold_fewer_than_k(models):
    tokens, _ = filtered(models("few probes"), [ITEMS[:12]] * 3, [[]] * 3)
    assert all(set(row) <= set(ITEMS[12:]) and len(set(row)) == 7 for row in tokens)


@pytest.mark.parametrize("batch", [0, 1])
def test_top_k_of_a_batch_of(served, batch):
    queries = {name: value[:batch] for name, value in QUERIES.items()}
    empty = tf.zeros([batch, 0], tf.string)
    whole, _ = filtered(served, EXCLUDE, AMONG)
    width = whole.shape[1]
    assert served["top_k"](**queries)["tokens"].shape == [batch, width]
    assert served["top_k_filtered"](**queries, exclude=empty, among=empty)["scores"].shape == [batch, width]
    part = served["top_k_filtered"](**queries, exclude=padded(EXCLUDE)[:batch], among=padded(AMONG)[:batch])
    assert part["tokens"].numpy().tolist() == whole[:batch].tolist()


def test_top_k_is_left_out_if_candidates_are_not_tokens(tmp_path):
    written, _ = exported(tmp_path, ["item", "bought"])
    assert {"query", "candidate"} <= set(written)
    assert not {"top_k", "top_k_filtered"} & set(written)


def test_column_of_a_filters_name_is_refused(tmp_path):
    user = feature("user", "users").replace(column=ColumnConfig(name="exclude"))
    config = CONFIG.replace(features=(user, *CONFIG.features[1:]))
    with pytest.raises(ConfigError, match=r"'exclude'.*rename the column"):
        exported(tmp_path, ["item"], config=config)
