"""Synthetic rows fill every raw column, and hold nothing that is private."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"


import pytest
import tensorflow as tf

from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.serving import columns_of, named_inputs, public_rows, synthetic_rows
from tests.support.vocabularies import write_tokens

TOKENS = {"items": [b"lamp", b"chair", b"x,y"], "years": [b"2021", b"2020"], "users": [b"secret-1", b"secret-2"]}


def feature(name, table, **column):
    return FeatureConfig(name=name, table=table, column=ColumnConfig(**{"name": name, **column}))


CONFIG = EmbeddingConfig(
    tables=(
        *(TableConfig(name=n, vocabulary=n, vocabulary_size=len(t), dim=2) for n, t in TOKENS.items()),
        TableConfig(name="raw", vocabulary_size=2, dim=2),
    ),
    features=(
        feature("item", "items", separator=","),
        feature("seen", "items", multivalent=True),
        feature("year", "years", dtype="int64"),
        feature("user", "users", private=True),
        feature("friend", "users", multivalent=True),
        FeatureConfig(name="raw", table="raw"),
    ),
)
DENSE = DenseInputs(
    names=("price",),
    spec={
        "price": tf.io.FixedLenFeature([], tf.float32),
        "stock": tf.io.VarLenFeature(tf.int64),
        "note": tf.io.FixedLenFeature([], tf.string),
    },
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("vocabularies"), TOKENS)


def test_rows_fill_every_column_with_values_of_its_type(files):
    rows = synthetic_rows(CONFIG, DENSE, files, 3)
    assert rows == synthetic_rows(CONFIG, DENSE, files, 3)
    named, kept = named_inputs(columns_of(CONFIG, DENSE), rows)
    assert kept == [0, 1, 2]
    assert named["item"].tolist() == [b"lamp", b"chair", b"x,y"]
    assert named["year"].tolist() == [2021, 2020, 2021]
    assert named["raw"].tolist() == [[0], [1], [0]]
    assert named["price"].tolist() == [1.0, 2.0, 3.0]
    assert set(named) == {"item", "seen", "year", "user", "friend", "raw", "price", "stock", "note"}


def test_private_tokens_are_made_up_for_a_shared_vocabulary_too(files):
    rows = b"".join(synthetic_rows(CONFIG, DENSE, files, 2))
    assert b"secret" not in rows
    assert rows.count(b"synthetic-0") == 3  # the user, the friend, and the text that a dense input is computed from


def test_column_of_a_private_and_a_plain_feature_is_private(files):
    twin = FeatureConfig(name="twin", table="items", column=ColumnConfig(name="user"))
    both = CONFIG.replace(features=(*CONFIG.features, twin))
    rows = synthetic_rows(both, DENSE, files, 1)
    named, _ = named_inputs(columns_of(both, DENSE), rows)
    assert named["user"].tolist() == [b"synthetic-0"]


@pytest.mark.parametrize(("dtype", "kind"), [("string", bytes), ("int64", int), ("float32", float)])
@pytest.mark.parametrize("tokens", [[], [b"abc"]])
def test_vocabulary_without_a_fitting_token_gets_made_up_ones(tmp_path, dtype, kind, tokens):
    files = write_tokens(tmp_path, {"v": tokens})
    config = EmbeddingConfig(
        tables=(TableConfig(name="v", vocabulary="v", vocabulary_size=1, dim=2, oov_rows=1),),
        features=(feature("f", "v", dtype=dtype),),
    )
    named, kept = named_inputs(columns_of(config, None), synthetic_rows(config, None, files))
    assert kept == [0]
    assert isinstance(named["f"].tolist()[0], kind)


def row_of(**values):
    example = tf.train.Example()
    for name, value in values.items():
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(value)]
        getattr(example.features.feature[name], kind).value.append(value)
    return example.SerializeToString()


FULL = {
    "item": b"chair", "seen": b"lamp", "year": 2020, "user": b"secret-1", "friend": b"secret-2", "raw": 1,
    "price": 9.5, "stock": 3, "note": b"n",
}  # fmt: skip


def test_public_rows_are_complete_with_private_values_made_up(files):
    lacking = {name: value for name, value in FULL.items() if name != "price"}
    rows = [row_of(**lacking), row_of(**FULL, label=1, other=b"x"), row_of(**{**FULL, "note": b"a longer row"})]
    shown = public_rows(CONFIG, DENSE, files, rows, 2)
    named, _ = named_inputs(columns_of(CONFIG, DENSE), shown)
    assert named["price"].tolist() == [9.5, 9.5]
    assert (named["item"].tolist(), named["year"].tolist()) == ([b"chair", b"chair"], [2020, 2020])
    assert named["user"].tolist() == [b"synthetic-0", b"synthetic-1"]
    assert named["friend"].tolist() == [[b"synthetic-0"], [b"synthetic-1"]]
    assert b"label" not in shown[0]
    assert len(public_rows(CONFIG, DENSE, files, rows[:1], 2)) == 2


def test_public_rows_beside_private_ones_hide_unmarked_text(files):
    named, _ = named_inputs(columns_of(CONFIG, DENSE), public_rows(CONFIG, DENSE, files, [row_of(**FULL)], 1))
    assert (named["note"].tolist(), named["price"].tolist()) == ([b"synthetic-0"], [9.5])
    features = (feature("user", "users") if each.name == "user" else each for each in CONFIG.features)
    public = CONFIG.replace(features=tuple(features))
    named, _ = named_inputs(columns_of(public, DENSE), public_rows(public, DENSE, files, [row_of(**FULL)], 1))
    assert named["note"].tolist() == [b"n"]


def test_public_rows_hide_what_a_private_column_is_computed_from(files):
    computed = FeatureConfig(
        name="group", table="users", column=ColumnConfig(name="group", private=True, after_transform=True)
    )
    config = CONFIG.replace(features=(*CONFIG.features, computed))
    named, _ = named_inputs(columns_of(config, DENSE), public_rows(config, DENSE, files, [row_of(**FULL)], 1))
    assert named["price"].tolist() == [1.0]
    assert named["item"].tolist() == [b"chair"]
