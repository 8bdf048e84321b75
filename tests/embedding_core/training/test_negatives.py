import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.training import Negatives
from embedding_core.training.drawn_candidates import negative_sampler

CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="users", vocabulary_size=50, dim=2),
        TableConfig(name="items", vocabulary_size=11, dim=2, vocabulary="items", oov_rows=1),
    ),
    features=(
        FeatureConfig(name="user", table="users"),
        FeatureConfig(name="item", table="items"),
        FeatureConfig(name="words", table="items"),
    ),
)


def batch(count=6, label=1.0):
    return {
        "ids": {
            "user": tf.RaggedTensor.from_tensor(tf.range(count, dtype=tf.int64)[:, None]),
            "item": tf.RaggedTensor.from_tensor(tf.range(count, dtype=tf.int64)[:, None]),
            "words": tf.ragged.range(tf.range(count, dtype=tf.int64)),
        },
        "dense": {"price": tf.range(count, dtype=tf.float32)[:, None]},
        "label": tf.fill([count, 1], label),
        "weight": tf.range(count, dtype=tf.float32)[:, None],
        "rows": tf.constant(count),
    }


def made(negatives, *, count=6, step=0, label=1.0, seed=1, **arguments):
    """Return only the rows that the sampler adds to a batch."""
    add = tf.function(negative_sampler(negatives, CONFIG, seed=seed, dense=["price"], **arguments))
    both = add(tf.constant(step, tf.int64), batch(count, label))
    rows = both.pop("rows")
    assert rows == len(both["label"])
    return tf.nest.map_structure(lambda part: part[count:], both)


def column(drawn, name):
    return [row[0] for row in drawn["ids"][name].to_list()]


def test_drawn_rows_keep_all_but_the_item_and_have_label_zero():
    drawn = made(Negatives(feature="item", per_positive=2))
    assert column(drawn, "user") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert drawn["weight"][:, 0].numpy().tolist() == column(drawn, "user")
    assert not drawn["label"].numpy().any()


def test_uniform_draws_cover_the_vocabulary_without_its_oov_row():
    items = column(made(Negatives(feature="item", per_positive=500)), "item")
    assert set(items) == set(range(10))
    assert np.bincount(items).std() < 30


def test_draws_by_count_follow_the_counts():
    counts = np.array([60, 30, 10, 0, 0, 0, 0, 0, 0, 0])
    items = column(made(Negatives(feature="item", per_positive=1000, distribution="count"), counts=counts), "item")
    np.testing.assert_allclose(np.bincount(items) / len(items), [0.6, 0.3, 0.1], atol=0.03)


def test_draws_are_a_function_of_seed_and_step():
    negatives = Negatives(feature="item", per_positive=9)
    drawn = [column(made(negatives, step=step, seed=seed), "item") for step, seed in [(0, 1), (0, 1), (1, 1), (0, 2)]]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != drawn[3]


def test_candidate_with_features_is_taken_whole_from_another_row():
    drawn = made(Negatives(feature="item", per_positive=4, candidate_features=("item", "words", "price")))
    items = column(drawn, "item")
    assert all(item != user for item, user in zip(items, column(drawn, "user"), strict=True))
    assert [len(words) for words in drawn["ids"]["words"].to_list()] == items
    assert drawn["dense"]["price"][:, 0].numpy().tolist() == items


@pytest.mark.parametrize(
    ("candidate", "rows"),
    [((), {"label": 0.0}), (("words",), {"label": 0.0}), (("words",), {"count": 1})],
    ids=["label 0", "whole candidates, label 0", "no other candidate"],
)
def test_rows_without_a_candidate_give_no_negatives(candidate, rows):
    drawn = made(Negatives(feature="item", candidate_features=candidate), **rows)
    assert drawn["label"].shape == [0, 1]


@pytest.mark.parametrize(
    ("negatives", "message"),
    [
        (Negatives(feature="price"), "'price'"),
        (Negatives(feature="item", distribution="count"), "no counts"),
    ],
)
def test_negatives_that_cannot_be_drawn_are_refused(negatives, message):
    with pytest.raises(ConfigError, match=message):
        negative_sampler(negatives, CONFIG, seed=0, dense=["price"])
