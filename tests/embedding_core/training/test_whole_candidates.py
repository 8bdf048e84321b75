"""Tests that drawn candidates are those of the train split, with all of their features."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.training.drawn_candidates import candidate_sampler, whole_candidates
from embedding_core.training.training_inputs import Batch
from embedding_core.training_config import Softmax

CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="i", vocabulary_size=5, dim=2, oov_rows=1),
        TableConfig(name="g", vocabulary_size=9, dim=2),
    ),
    features=(FeatureConfig(name="item", table="i"), FeatureConfig(name="group", table="g")),
)
SOFTMAX = Softmax(feature="item", sampled=500, candidate_features=["item", "group", "price"])
COUNTS = np.array([5, 1, 7, 2])


def batch(items, groups, prices):
    ids = {"item": tf.ragged.constant(items, tf.int64), "group": tf.ragged.constant(groups, tf.int64)}
    price, ones = tf.constant(prices)[:, None], tf.ones([len(items), 1])
    return Batch(ids=ids, dense={"price": price}, label=ones, weight=ones, rows=tf.constant(len(items)))


BATCHES = [
    batch([[2], [4], [], [0]], [[5, 6], [1], [1], []], [0.2, 9.0, 9.0, 0.5]),  # 4 is the row for unknown tokens
    batch([[3], [2], [3]], [[7], [8], [8]], [0.7, 9.0, 9.0]),
]
FEATURES = {2: ([5, 6], 0.2), 0: ([], 0.5), 3: ([7], 0.7)}


def test_first_row_of_each_candidate_is_kept():
    found = whole_candidates(BATCHES, "item", SOFTMAX.other_features, 4)
    assert found.known.tolist() == [True, False, True, True]
    for item, (groups, price) in FEATURES.items():
        assert found.ids["group"][item].numpy().tolist() == groups
        assert float(found.dense["price"][item, 0]) == pytest.approx(price)


@pytest.mark.parametrize("distribution", ["uniform", "count"])
def test_drawn_candidates_are_whole_and_of_the_train_split(distribution):
    candidates = whole_candidates(BATCHES, "item", SOFTMAX.other_features, 4)
    softmax = SOFTMAX.replace(distribution=distribution)
    add = candidate_sampler(softmax, CONFIG, seed=1, hosts=1, counts=COUNTS, candidates=candidates)
    made = add(tf.constant(0, tf.int64), BATCHES[1])
    items = made["ids"]["item"].to_list()[3:]
    assert {item for (item,) in items} == set(FEATURES)
    for (item,), groups, price in zip(
        items, made["ids"]["group"].to_list()[3:], made["dense"]["price"][3:, 0], strict=True
    ):
        assert groups == FEATURES[item][0]
        assert float(price) == pytest.approx(FEATURES[item][1])
    drawn = np.array([5, 0, 7, 2]) / 14 if distribution == "count" else np.array([1, 0, 1, 1]) / 3
    np.testing.assert_allclose(np.bincount([item for (item,) in items], minlength=4) / 500, drawn, atol=0.08)
    expected = 3 * COUNTS / (COUNTS.sum() + 1) + 500 * drawn
    (item,) = items[0]
    np.testing.assert_allclose(np.exp(made["softmax"]["log_q"][3, 0]), expected[item], rtol=1e-5)


def test_split_without_any_candidate_is_refused():
    candidates = whole_candidates([batch([[4]], [[1]], [1.0])], "item", SOFTMAX.other_features, 4)
    with pytest.raises(ConfigError, match="no row of the train split has a token of 'item'"):
        candidate_sampler(SOFTMAX, CONFIG, seed=1, hosts=1, counts=COUNTS, candidates=candidates)
