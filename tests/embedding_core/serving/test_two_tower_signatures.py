"""The vectors and top k candidates that a two-tower model serves agree with its logit."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.model_inputs import build_model
from embedding_core.serving import export_model

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


def exported(folder, candidate_features):
    files = {"users": folder / "users.txt", "items": folder / "items.txt"}
    for name, tokens in (("users", USERS), ("items", ITEMS)):
        files[name].write_bytes(b"".join(token + b"\n" for token in tokens))
    tf_keras.utils.set_random_seed(1)
    query = [name for name in ("user", "bought") if name not in candidate_features]
    arguments = {"query_features": query, "candidate_features": candidate_features}
    model = build_model("pipelines.models.two_tower", CONFIG, (), arguments)
    for variable in model.trainable_variables:  # biases start at zero, which would hide a mistake
        variable.assign_add(tf.random.stateless_normal(variable.shape, [1, 2]))
    tables = HostEngine(CONFIG, seed=4, with_slots=False).embedding_tables
    written = export_model(folder / "model", config=CONFIG, tables=tables, vocabularies=files, model=model, top_k=7)
    return written, tf.saved_model.load(str(folder / "model")).signatures


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("two_tower"), ["item"])[1]


QUERIES = {"user": tf.constant([b"u1", b"nobody", b""]), "bought": tf.constant([b"i3 i4", b"", b"what i0"])}


def logits(served, item):
    items = tf.fill([3], item)
    return served["raw"](item=items, **QUERIES)["logit"].numpy()[:, 0]


def test_logit_is_the_product_of_the_vectors(served):
    query = served["query"](**QUERIES)["vector"].numpy()
    candidate = served["candidate"](item=tf.constant([b"i2", b"unknown"]))["vector"].numpy()
    np.testing.assert_allclose(query @ candidate[0], logits(served, b"i2"), rtol=1e-5)
    np.testing.assert_allclose(query @ candidate[1], logits(served, b"unknown"), rtol=1e-5)


def test_top_k_is_what_scoring_every_item_gives(served):
    every = np.stack([logits(served, item) for item in ITEMS], axis=1)
    order = np.argsort(-every, axis=1)[:, :7]
    found = served["top_k"](**QUERIES)
    assert found["tokens"].numpy().tolist() == np.array(ITEMS)[order].tolist()
    np.testing.assert_allclose(found["scores"], np.take_along_axis(every, order, 1), rtol=1e-5)


def test_top_k_is_left_out_if_candidates_are_not_tokens(tmp_path):
    written, _ = exported(tmp_path, ["item", "bought"])
    assert {"query", "candidate"} <= set(written)
    assert "top_k" not in written
